/* The ABI of mrcd: what programs, daemon and wire share. Python's view (mrcd/abi.py) is checked
 * against this header's BTF by a test. All integers in tables are host byte order, all integers in
 * packets network byte order; times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef MRC_ABI_H
#define MRC_ABI_H

#include <linux/types.h>

#define MRC_ABI_VERSION 1 /* tables: names the directory of the pins */
#define MRC_WIRE_VERSION 1 /* packets: mrc_hdr.version */

#define MRC_MAX_PLANES 8
#define MRC_MAX_EVS_PER_PEER 256
#define MRC_EV_WORDS (MRC_MAX_EVS_PER_PEER / 64)
#define MRC_MAX_SEGMENTS 6 /* in the destination and a reduced SRH together */
#define MRC_SRH_MAX (8 + 16 * (MRC_MAX_SEGMENTS - 1))
#define MRC_HOP_LIMIT 64
#define MRC_SPORT_BASE 0xc000 /* UDP source port = base + EV */

/* ---- packets ---------------------------------------------------------------------------- */

enum mrc_type {
	MRC_DATA = 1, /* an inner IPv4 or IPv6 packet follows */
	MRC_PROBE_REQUEST = 2, /* mrc_probe follows */
	MRC_PROBE_REPLY = 3, /* mrc_probe follows */
};

/* Behind UDP. The uSID carrier is consumed hop by hop, so the header says which path it was. */
struct mrc_hdr {
	__u8 version; /* MRC_WIRE_VERSION */
	__u8 type; /* enum mrc_type */
	__u8 flags; /* 0; bit 0 is reserved for retransmissions */
	__u8 reserved;
	__be16 sender; /* host id */
	__be16 ev; /* of the sender's EVs to the receiver; in a reply: the EV that was probed */
	__be32 seq; /* data: wire packets sent on this EV before this one; probes: 0 */
	__be16 segments; /* wire packets in this burst; 1 unless the sender left a GSO packet whole */
	__be16 reserved2;
	__be64 tx_ns; /* the sender's clock */
	__be64 auth; /* authentication tag; 0 while authentication is off */
};
_Static_assert(sizeof(struct mrc_hdr) == 32, "mrc_hdr is 32 bytes on the wire");

/* Status of the host that sent a probe: bits of mrc_probe.status and mrc_node.status. */
#define MRC_STATUS_DETACHED 0x1 /* its data plane is being taken down: use plain SRv6 towards it */

/* Behind mrc_hdr in probe requests and replies. */
struct mrc_probe {
	__be32 seq; /* of the probes on this EV; echoed */
	__be16 ports; /* port status: planes on which this packet's sender has a working link */
	__be16 status; /* MRC_STATUS_* of this packet's sender */
	__be32 generation; /* of the tables of this packet's sender */
	__be32 reserved;
	__be64 tx_packets; /* requester's count of data packets put on the EV; echoed */
	__be64 tx_ns; /* requester's clock at the request; echoed */
	__be64 rx_packets; /* reply: reflector's count of data packets that came by this EV */
	__be64 rx_ce; /* reply: those of them that carried a CE mark */
};
_Static_assert(sizeof(struct mrc_probe) == 48, "mrc_probe is 48 bytes on the wire");

/* ---- tables ----------------------------------------------------------------------------- */

/* EV states, in the words of the OCP MRC specification. */
enum mrc_ev_state {
	MRC_EV_UNKNOWN = 0, /* not probed yet */
	MRC_EV_GOOD = 1,
	MRC_EV_SKIP = 2, /* congested: passed over once */
	MRC_EV_ASSUMED_BAD = 3, /* automatic */
	MRC_EV_DENIED = 4, /* by an administrator */
};

/* Why an EV is in its state. */
enum mrc_reason {
	MRC_REASON_NEW = 0, /* no transition yet */
	MRC_REASON_PROBED, /* its first probes came back */
	MRC_REASON_UNANSWERED, /* probes in a row unanswered while others came back */
	MRC_REASON_LOSS, /* loss ratio over a window */
	MRC_REASON_LINK_DOWN, /* this host's link on the plane */
	MRC_REASON_PEER_LINK_DOWN, /* the peer's link on the plane, by its port status */
	MRC_REASON_HEALED, /* good probes over the whole hold-down */
	MRC_REASON_ADMIN, /* denied or allowed by an administrator */
	MRC_REASON_MAX,
};

/* One path to one peer, seen by its sender. Index: host id of the peer × evs_per_peer + EV. */
struct mrc_ev {
	__u8 dst[16]; /* daemon: outer destination: the carrier, or the first segment */
	__u8 configured; /* daemon: 0 = no such path */
	__u8 plane; /* daemon */
	__u8 state; /* daemon: enum mrc_ev_state */
	__u8 srh_len; /* daemon: bytes used of this EV's mrc_srh; 0 = no SRH */
	__u32 probe_seq; /* programs: last probe sent; a count */
	__u64 state_since_ns; /* daemon */
	__u32 reply_seq; /* programs: newest probe answered */
	__u32 replies; /* programs: a count */
	__u64 probe_ns; /* programs: when probe_seq was sent */
	__u64 reply_ns; /* programs: when the newest reply came */
	__u64 rtt_ns; /* programs: smoothed, 1/8 per reply */
	/* second cache line: counters */
	__u64 tx_packets; /* programs: data packets as they appear on the wire */
	__u64 tx_bytes; /* programs: inner bytes */
	__u64 settled_tx; /* programs: sent up to the newest answered probe, since base */
	__u64 settled_rx; /* programs: of these received; written before settled_tx */
	__u64 base_tx; /* programs: counts at the first reply of a generation */
	__u64 base_rx; /* programs */
	__u64 rx_ce; /* programs: CE marks the peer has seen on this EV */
	__u32 rx_generation; /* programs: generation of the peer's tables the base belongs to */
	__u8 reason; /* daemon: enum mrc_reason of the newest transition */
	__u8 relapses; /* daemon: falls since it was last well for long; doubles the hold-down */
	__u8 reserved[2];
};
_Static_assert(sizeof(struct mrc_ev) == 128, "mrc_ev is two cache lines");

/* One path from one peer, seen by its receiver. Index: host id of the sender × evs_per_peer + EV. */
struct mrc_rx {
	__u64 packets; /* programs: data packets as they appear on the wire */
	__u64 bytes; /* programs: inner bytes */
	__u64 ce; /* programs */
	__u64 last_ns; /* programs: when the newest came */
};
_Static_assert(sizeof(struct mrc_rx) == 32, "mrc_rx is 32 bytes");

/* Reduced SRH of an EV, ready to be copied (RFC 8754 §2, RFC 8986 §5.2). Same index as mrc_ev. */
struct mrc_srh {
	__u8 bytes[MRC_SRH_MAX]; /* daemon */
};
_Static_assert(sizeof(struct mrc_srh) == 88, "mrc_srh is 88 bytes");

/* Another host. Index: host id. */
struct mrc_peer {
	__u32 configured; /* daemon */
	__u32 generation; /* programs: of the peer's tables, from its newest probe */
	__u32 ports; /* programs: port status of the peer; daemon: all ones at first */
	__u32 status; /* programs: MRC_STATUS_* of the peer */
	__u64 heard_ns; /* programs: when the newest probe or reply came */
	__u64 ports_ns; /* programs: the peer's clock in the packet that set ports and status */
	__u64 usable[MRC_MAX_PLANES][MRC_EV_WORDS]; /* daemon: per plane a bit per slot */
	__u8 address[MRC_MAX_PLANES][16]; /* daemon: outer source of what the peer sends */
};
_Static_assert(sizeof(struct mrc_peer) == 416, "mrc_peer is 416 bytes");

/* One NIC of this host. Index: plane. */
struct mrc_plane {
	__u32 ifindex; /* daemon: where packets leave and arrive; 0 = none */
	__u16 vlan; /* daemon: VLAN id; 0 = untagged */
	__u8 smac[6]; /* daemon */
	__u8 dmac[6]; /* daemon: the T0's, from the neighbour table; all 0 = not resolved yet */
	__u8 reserved[6];
	__u8 address[16]; /* daemon: outer source of what this host sends */
	__u8 sid[16]; /* daemon: outer destination of what arrives */
};
_Static_assert(sizeof(struct mrc_plane) == 56, "mrc_plane is 56 bytes");

/* This host. One entry. */
struct mrc_node {
	__u32 generation; /* daemon: random when the tables were made, never 0 */
	__u32 ports; /* daemon: planes with carrier, and a first hop that has been resolved */
	__u32 status; /* daemon: MRC_STATUS_* */
	__u32 reserved;
};
_Static_assert(sizeof(struct mrc_node) == 16, "mrc_node is 16 bytes");

/* Key of the overlay trie: IPv4 as ::ffff:a.b.c.d, its prefix length + 96. Value: __u32 host id. */
struct mrc_prefix {
	__u32 prefixlen;
	__u8 address[16];
};
_Static_assert(sizeof(struct mrc_prefix) == 20, "mrc_prefix is 20 bytes");

/* Where each CPU stands in its rotation, per peer. Programs only. */
struct mrc_rotation {
	__u32 plane;
	__u16 slot[MRC_MAX_PLANES];
	__u32 reserved;
};
_Static_assert(sizeof(struct mrc_rotation) == 24, "mrc_rotation is 24 bytes");

/* Fixed when the object is loaded: the verifier sees them as constants. */
struct mrc_settings {
	__u32 planes;
	__u32 evs_per_peer;
	__u32 evs_per_plane;
	__u32 inner_mtu; /* bytes */
	__u16 host_id;
	__u16 udp_port;
	__u32 srh; /* 1 = some path needs an SRH */
};
_Static_assert(sizeof(struct mrc_settings) == 24, "mrc_settings is 24 bytes");

/* Why a packet was dropped: counter index, metric label and the text of mrcctl, all from here. */
enum mrc_drop {
	MRC_DROP_NONE = 0,
	MRC_DROP_NOT_IP, /* push: neither IPv4 nor IPv6 */
	MRC_DROP_NO_PEER, /* push: no peer owns the destination */
	MRC_DROP_NO_USABLE_EV, /* push: every plane is down, here or at the peer */
	MRC_DROP_TOO_BIG, /* push: longer than the inner MTU */
	MRC_DROP_PUSH_FAILED, /* push: the kernel refused to make room */
	MRC_DROP_TRUNCATED, /* pop: shorter than its headers say */
	MRC_DROP_BAD_VERSION, /* pop: another wire version */
	MRC_DROP_BAD_TYPE, /* pop: unknown type */
	MRC_DROP_BAD_SRH, /* pop: segments left, or a malformed SRH */
	MRC_DROP_UNKNOWN_SENDER, /* pop: no peer has this host id */
	MRC_DROP_BAD_EV, /* pop: EV out of range */
	MRC_DROP_WRONG_PLANE, /* pop: came in by another plane than its EV's */
	MRC_DROP_WRONG_SOURCE, /* pop: not the sender's address on this plane */
	MRC_DROP_BAD_INNER, /* pop: the inner packet is neither IPv4 nor IPv6 */
	MRC_DROP_CE_NOT_ECT, /* pop: CE outside, Not-ECT inside (RFC 6040 §4.2) */
	MRC_DROP_GLUED, /* pop: packets of the fabric merged by receive offload */
	MRC_DROP_POP_FAILED, /* pop: the kernel refused to remove the headers */
	MRC_DROP_UNASKED_REPLY, /* pop: answers no probe that is outstanding */
	MRC_DROP_REPLY_FAILED, /* pop: a probe could not be reflected */
	MRC_DROP_MAX,
};

#endif
