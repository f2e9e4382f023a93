/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Defines the packets of mrcd: what follows UDP. All integers are in network byte order.
 *
 * scripts/labkit/traffic/wire.py repeats these structures for Python; tests/unit/test_abi.py compares the two by BTF.
 */
#ifndef MRC_WIRE_H
#define MRC_WIRE_H

#include <linux/types.h>

/* mrc_hdr.version of data, and of probes. Probes are the same in all versions: they say which data their sender takes. */
#define MRC_WIRE_VERSION 3
#define MRC_PROBE_VERSION 2

#define MRC_MAX_PLANES 16 /* bits of mrc_probe.plane_mask in use */
#define MRC_MAX_SEGMENTS 6 /* uSID carriers or SIDs in the destination address and a reduced SRH together */
#define MRC_SRH_MAX (8 + 16 * (MRC_MAX_SEGMENTS - 1)) /* bytes of the longest SRH */
#define MRC_HOP_LIMIT 64 /* of the outer IPv6 header */
/* UDP source port = base + EV, or base + 14 bits of the flow's hash: the dynamic ports (RFC 6335 §6). */
#define MRC_SPORT_BASE 0xc000
#define MRC_REPORT_EVS 128 /* EVs, at most, in one probe reply: the longest report fits the least MTU */
#define MRC_KEY_IDS 2 /* keys that a host accepts at once: the present one, and the next or the previous */
#define MRC_UDT4 0xe004 /* uSID function: the kernel decapsulates IPv4 (mrcd/fabric/srv6.py) */
#define MRC_UDT6 0xe006 /* and IPv6 */
#define MRC_BALLAST 64 /* bytes between a probe and its counts; see struct mrc_probe */

enum mrc_type {
	MRC_DATA = 1, /* an inner IPv4 or IPv6 packet follows */
	MRC_PROBE_REQUEST = 2, /* mrc_probe follows */
	MRC_PROBE_REPLY = 3, /* mrc_probe follows */
};

/* Bits of mrc_hdr.flags.
 *
 * CRITICAL: the sender sent this data packet twice, on two EVs, with the same number. The receiver delivers the copy that
 * comes first (IEEE 802.1CB calls this frame replication and elimination).
 *
 * DIAGNOSTIC: a tool of an administrator sent this probe (mrcctl probe, trace, doctor). The peer answers the request
 * but does not count it. The tool reads the reply from its packet socket, and the programs then discard it. So no
 * diagnostic probe changes path statistics or EV states.
 */
#define MRC_FLAG_CRITICAL 0x1
#define MRC_FLAG_DIAGNOSTIC 0x2

/* Follows the UDP header. It names the path, because every hop consumes a part of the uSID carrier. */
struct mrc_hdr {
	__u8 version; /* MRC_WIRE_VERSION, or of probes MRC_PROBE_VERSION */
	__u8 type; /* enum mrc_type */
	__u8 flags; /* MRC_FLAG_*; a reply echoes them */
	__u8 key_id; /* key of `auth`: mrc_auth.tx_id of the sender; 0 = not tagged */
	__be16 sender; /* host id */
	__be16 ev; /* of the sender's EVs to the receiver; in a reply: the EV that was probed, whichever way it takes */
	/* Data: wire packets sent on this EV before this one; critical: number of the packet among all critical ones to this
	 * receiver. Requests: number to this receiver. Replies: the request's.
	 */
	__be32 seq;
	__be16 segments; /* wire packets in this burst; 1 unless the sender left a GSO packet whole */
	__be16 receiver; /* host id */
	__be64 tx_ns; /* the sender's clock */
	/* Tag: SipHash-2-4 of the 24 bytes before it; in probes also of struct mrc_probe and the counts (auth.h). */
	__u64 auth; /* in the byte order of SipHash: little-endian */
};
_Static_assert(sizeof(struct mrc_hdr) == 32, "mrc_hdr is 32 bytes on the wire");

/* Status of the host that sent a probe: bits of mrc_probe.status and mrc_node.status. */
#define MRC_STATUS_DETACHED 0x1 /* the host detaches its data plane: send to it by plain SRv6 */
#define MRC_STATUS_PLAIN 0x2 /* probes only: the host sends to the receiver by plain SRv6 */
#define MRC_STATUS_TAGS_ONLY 0x4 /* probes only: the host takes no packet without a tag from the receiver */
#define MRC_STATUS_WIRE 8 /* bits 8 to 15: the host's MRC_WIRE_VERSION; 0 = 2, of hosts that do not tell it */
#define MRC_WIRE_CHANGING 0xff /* there: programs of another version are being attached, and the host sends plain SRv6 */

/* Follows mrc_hdr in probe requests and replies. A request can include one for a report: the receiver's counts for
 * up to MRC_REPORT_EVS EVs of the requester. Then `counts` records of struct mrc_count follow, MRC_BALLAST bytes behind
 * this structure. The gap is there because a piggybacked request is made of a packet's clone, and the NIC can still
 * write that packet's checksum into it. A request and its reply have the same length.
 */
struct mrc_probe {
	__be32 seq; /* of the probes on this EV; echoed */
	__be16 plane_mask; /* port status: planes on which this packet's sender has a working link */
	__be16 status; /* MRC_STATUS_* of this packet's sender */
	__be32 generation; /* of the tables of this packet's sender */
	__be32 report_seq; /* of the reports that this requester requested from this peer; echoed */
	__be16 first; /* the EV of the first count; echoed */
	__be16 counts; /* EVs in the report; 0 = no report is requested; echoed */
	__u8 key_ids[MRC_KEY_IDS]; /* keys that this packet's sender accepts from the receiver; 0 = none */
	__be16 fingerprint; /* of what this packet's sender knows of the whole cluster; 0 = not told */
	__be64 tx_ns; /* requester's clock at the request; echoed */
};
_Static_assert(sizeof(struct mrc_probe) == 32, "mrc_probe is 32 bytes on the wire");

/* Arrivals on one EV since the sender of the reply made its tables. All counts wrap. */
struct mrc_count {
	__be32 packets; /* data packets */
	__be16 probes; /* probe requests, this one included */
	__be16 ce; /* data packets that carried a CE mark */
};
_Static_assert(sizeof(struct mrc_count) == 8, "mrc_count is 8 bytes on the wire");

#endif
