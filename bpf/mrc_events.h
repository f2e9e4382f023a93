/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Defines what the programs report to the daemon: EV states, their reasons, events, histograms and drop reasons.
 *
 * mrcd/kernel/abi.py reads the structures from the object's BTF, mrcd/kernel/enums.py repeats the enums, and
 * tests/unit/test_abi.py compares these. Integers are in host byte order, times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef MRC_EVENTS_H
#define MRC_EVENTS_H

#include <linux/types.h>

#include "mrc_wire.h"

/* EV states, in the words of the OCP MRC specification. */
enum mrc_ev_state {
	MRC_EV_UNKNOWN = 0, /* not probed yet */
	MRC_EV_GOOD = 1,
	MRC_EV_SKIP = 2, /* congested: skipped once; or lagging: carries no data until probes have cleared it */
	MRC_EV_ASSUMED_BAD = 3, /* the programs found it failed */
	MRC_EV_DENIED = 4, /* by an administrator */
};

/* Why an EV is in its state. */
enum mrc_reason {
	MRC_REASON_NEW = 0, /* no transition yet */
	MRC_REASON_PROBED, /* its first probes arrived */
	MRC_REASON_OVERDUE, /* nothing arrived on it while later packets on other EVs did */
	MRC_REASON_LOSS, /* the loss rule */
	MRC_REASON_GREY_LOSS, /* a small loss over a long time, which other EVs do not have */
	MRC_REASON_ICMP_ERROR, /* a switch reported that it cannot forward a packet of the EV */
	MRC_REASON_LINK_DOWN, /* this host's link on the plane */
	MRC_REASON_PEER_LINK_DOWN, /* the peer's link on the plane, by its port status */
	MRC_REASON_HEALED, /* good reports over the whole hold-down */
	MRC_REASON_ADMIN, /* denied or allowed by an administrator */
	MRC_REASON_CONGESTED, /* SKIP: CE marks, or more delay than the other EVs have */
	MRC_REASON_LAGGING, /* SKIP: some of its packets are missing, and probes test it */
	MRC_REASON_SLOW, /* SKIP: packets take much longer than on the other EVs */
	MRC_REASON_MAX,
};

#define MRC_EVENT_IDLE_TIMEOUT 0xffff /* in mrc_event.ev: a flow to the peer has stopped; all other fields are 0 */

/* One state transition, in the ring buffer. Evidence that does not belong to the reason is 0. */
struct mrc_event {
	__u64 ns;
	__u32 host_id; /* the peer's */
	__u16 ev;
	__u8 before; /* enum mrc_ev_state */
	__u8 after;
	__u8 reason; /* enum mrc_reason */
	__u8 flaps;
	__u8 icmp_type; /* of the ICMPv6 error */
	__u8 icmp_code;
	__u32 reports; /* as mrc_path_stats.lost_bursts; with MRC_REASON_HEALED: as mrc_path_stats.good */
	__u64 silent_ns; /* since the newest packet on the EV that is known to have arrived */
	__u32 lost_packets; /* in the loss window */
	__u32 sent_packets; /* in the loss window */
};
_Static_assert(sizeof(struct mrc_event) == 40, "mrc_event is 40 bytes");

/* Counts transitions. Index: enum mrc_ev_state after it × MRC_REASON_MAX + enum mrc_reason. */
struct mrc_changes {
	__u64 count; /* programs */
	__u64 lost_events; /* programs: transitions for which the ring buffer had no room */
};
_Static_assert(sizeof(struct mrc_changes) == 16, "mrc_changes is 16 bytes");

#define MRC_BUCKETS 256 /* per histogram: four per power of two of a 64-bit value */

/* Histograms. Index: enum × MRC_BUCKETS + bucket; bucket_of() in arith.h maps a value to its bucket. */
enum mrc_histogram {
	MRC_HISTOGRAM_DETECTION = 0, /* ns from the last packet known to have arrived to ASSUMED_BAD */
	MRC_HISTOGRAM_AFTER_GOOD, /* data packets put on the EV in that time */
	MRC_HISTOGRAM_RTT, /* ns, plane 0; then one for each plane */
	MRC_HISTOGRAM_REINSTATEMENT = MRC_HISTOGRAM_RTT + MRC_MAX_PLANES, /* ns from ASSUMED_BAD to GOOD */
	MRC_HISTOGRAM_MAX,
};

/* Why a program dropped a packet. It is the verdict's reason, the counter's index, the metric's label and mrcctl's
 * text.
 */
enum mrc_drop {
	MRC_DROP_NONE = 0, /* its counter is 1 while a packet that a tc program has dropped is not freed yet */
	MRC_DROP_NOT_IP, /* push: neither IPv4 nor IPv6 */
	MRC_DROP_NO_PEER, /* push: the destination is in no peer's prefixes */
	MRC_DROP_NO_USABLE_EV, /* push: each EV is denied, or its plane is down here or at the peer */
	MRC_DROP_TOO_BIG, /* push: longer than the inner MTU */
	MRC_DROP_PUSH_FAILED, /* push: the kernel refused to make room */
	MRC_DROP_PROBE_FAILED, /* probe: a packet's clone could not be made a probe */
	MRC_DROP_TRUNCATED, /* pop: outer headers not whole, or their lengths differ; or a probe is shorter than they say */
	MRC_DROP_BAD_VERSION, /* pop: another wire version */
	MRC_DROP_BAD_TYPE, /* pop: unknown type */
	MRC_DROP_BAD_SRH, /* pop: segments left, or a malformed SRH */
	MRC_DROP_UNKNOWN_SENDER, /* pop: no peer has this host id */
	MRC_DROP_BAD_EV, /* pop: EV out of range */
	MRC_DROP_WRONG_PLANE, /* pop: arrived on another plane than its EV's */
	MRC_DROP_WRONG_SOURCE, /* pop: not the sender's address on this plane */
	MRC_DROP_BAD_INNER, /* pop: the inner packet is neither IPv4 nor IPv6 */
	MRC_DROP_CE_NOT_ECT, /* pop: CE outside, Not-ECT inside (RFC 6040 §4.2) */
	MRC_DROP_MERGED, /* pop: receive offload merged packets of the fabric */
	MRC_DROP_POP_FAILED, /* pop: the kernel refused to remove the headers */
	MRC_DROP_UNSOLICITED_REPLY, /* pop: answers no outstanding probe */
	MRC_DROP_REPLY_FAILED, /* pop: a probe could not be answered */
	MRC_DROP_BAD_PROBE, /* pop: a report of EVs that do not exist */
	MRC_DROP_WRONG_RECEIVER, /* pop: addressed to another host id */
	MRC_DROP_UNTAGGED, /* pop: without a tag, although one is required */
	MRC_DROP_UNKNOWN_KEY, /* pop: tagged with a key that this host does not have */
	MRC_DROP_BAD_TAG, /* pop: the tag does not match: forged, or the two hosts have different secrets */
	MRC_DROP_STALE, /* pop: sent too long ago, before newer tables, or by an unknown clock */
	MRC_DROP_REPLAYED, /* pop: a probe that has arrived before */
	MRC_DROP_WRONG_INNER_SOURCE, /* pop: the inner source is not in the sender's prefixes */
	MRC_DROP_WRONG_INNER_DESTINATION, /* pop: the inner destination is not in this host's prefixes */
	MRC_DROP_FOREIGN_SOURCE, /* push: the source is not in this host's prefixes */
	MRC_DROP_STRAY_SRV6, /* pop: for the kernel's SIDs, from no peer or from one that does not use them */
	MRC_DROP_FIREWALL, /* host: mrc0 has received it, and netfilter drops it */
	MRC_DROP_REVERSE_PATH, /* host: mrc0 has received it, and rp_filter drops it: its sender's route is elsewhere */
	MRC_DROP_OTHER_PROGRAM, /* host: another tc program, or a filter, drops it at mrc0 */
	MRC_DROP_TRIMMED, /* pop: a congested switch has cut its end off: it counts as arrived, with a CE mark */
	MRC_DROP_MAX,
};

#endif
