/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Defines the tables that the programs share with the daemon. Packets are in mrc_wire.h, events in mrc_events.h.
 *
 * Each field's comment says who writes it. mrcd/kernel/abi.py reads these structures from the object's BTF.
 * Integers are in host byte order; times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef MRC_ABI_H
#define MRC_ABI_H

#include <linux/types.h>

#include "mrc_events.h"
#include "mrc_wire.h"

#define MRC_ABI_VERSION 15 /* of the tables: it names the directory of the pins */

enum mrc_version { /* the versions as BTF: the loader reads them from an object before it changes anything */
	MRC_VERSION_ABI = MRC_ABI_VERSION,
	MRC_VERSION_WIRE = MRC_WIRE_VERSION,
};

#define MRC_MAX_EVS_PER_PEER 256 /* bits of mrc_peer.usable */
#define MRC_EV_WORDS (MRC_MAX_EVS_PER_PEER / 64) /* 64-bit words of a bitmap of EVs */
#define MRC_REPORTS_KEPT 4 /* reports of one EV in flight, at most: each needs a mark in mrc_path_stats */
#define MRC_REPORT_PARTS ((MRC_MAX_EVS_PER_PEER + MRC_REPORT_EVS - 1) / MRC_REPORT_EVS) /* reports that cover all EVs */
#define MRC_REPORT_SLOTS 8 /* reports of one peer in flight, at most (a power of two): MRC_REPORTS_KEPT per part */
#define MRC_UNPROBED_MAX 0x8000 /* mrc_rotation.unprobed stops here, before its 16 bits wrap */
#define MRC_WEIGHT_FULL 8 /* mrc_ev.weight of an EV that takes every turn */
#define MRC_DST_ENTRIES 4096 /* destinations that each CPU caches: a power of two */
#define MRC_TIMER_NS 1000000 /* interval of the timer packet (timer_packet.h): shorter than TCP's timers */
#define MRC_MERGE_QUEUES 16 /* queues of mrc0, at most; each merges segments on one CPU (deliver.h) */

/* One path to one peer and the packets sent on it: all that mrc_push reads of it, except an SRH. Index: host id of the
 * peer × evs_per_peer + EV.
 */
struct mrc_ev {
	__u8 dst[16]; /* daemon: outer destination: the carrier, or the first segment */
	__u8 configured; /* daemon: 0 = no such path */
	__u8 plane; /* daemon */
	__u8 srh_len; /* daemon: bytes used of this EV's mrc_srh; 0 = no SRH */
	__u8 weight; /* programs: turns taken out of MRC_WEIGHT_FULL, a ramp after a return; daemon: full at first */
	__u32 state; /* programs: enum mrc_ev_state; changed by compare-and-exchange only */
	__u64 tx_packets; /* programs: data packets as they appear on the wire */
	__u64 tx_bytes; /* programs: inner bytes */
	__u64 last_tx_ns; /* programs: when the newest data packet left, or will leave a pacing qdisc */
	__u64 state_since_ns; /* programs; a change between GOOD and SKIP does not set it */
	__u32 probe_seq; /* programs: probes sent; a count */
	__u8 reason; /* programs: enum mrc_reason of the newest change */
	__u8 skip_reason; /* programs: enum mrc_reason of the newest change to SKIP */
	__u8 flaps; /* programs: failures not yet forgotten; each after the first doubles the hold-down */
	__u8 reserved; /* always 0; mrc_push writes it to prefetch the cache line */
};
_Static_assert(sizeof(struct mrc_ev) == 64, "mrc_ev is one cache line");

/* Path statistics: arrivals and losses on an EV by the peer's reports. Same index as mrc_ev. The programs write them.
 * The daemon writes zeros where another path takes the EV's place.
 */
struct mrc_path_stats {
	__u64 lost_before; /* data packets lost in earlier generations of the peer's tables */
	__u64 judged; /* data packets sent and judged, over all generations */
	__u64 rx_ce; /* CE marks that the peer has seen, over all generations */
	__u64 arrived_ns; /* send time, or later, of the newest packet that is known to have arrived */
	__u64 lag_ns; /* since when the EV lags (something is missing that may be late); 0 = it does not lag */
	__u64 loss_ns; /* when a loss was last noticed; while ASSUMED_BAD: when the EV was last not known to work */
	__u64 pending_losses_ns; /* when `pending_losses` was taken */
	__u32 rtt_ns; /* smoothed, 1/8 per reply; below 4.3 s */
	__u32 replies; /* to probes on this EV; a count */
	/* second cache line */
	__u32 deficit; /* data packets known to be lost in this generation */
	__u32 offset; /* tx_packets minus the peer's count when the generation began */
	__u32 rx; /* newest report: data packets */
	__u32 generation; /* of the peer's tables that `offset` belongs to; 0 = none yet */
	__u16 rx_probes; /* newest report: probes */
	__u16 ce; /* newest report: CE marks */
	__u16 probe_offset; /* probe_seq minus the peer's count when the generation began */
	__u16 missed; /* probes known to be lost in this generation */
	__u32 reply_seq; /* newest probe answered */
	__u16 good; /* reports in a row with new arrivals and without new losses; stops at 65535 */
	__u16 burst_end; /* while the EV lags: probe_seq at the end of its newest probe burst; if it failed: how many
			  * packets were lost before the one that is missing now
			  */
	__u32 judged_tx; /* newest mark judged */
	__u32 window_tx; /* packets judged in the loss window, which is halved twice per period */
	__u32 window_lost; /* of these, lost packets */
	__u32 window_samples; /* in the loss window: reports with new data packets, and judged probes */
	__u16 window_losses; /* of these samples, samples with a loss */
	__u16 pending_losses; /* window_losses at pending_losses_ns: confirmed unless late packets arrive */
	__u16 confirmed_losses; /* losses known for so long that late packets would have arrived */
	__u8 backoff; /* probes in a row without an answer; each doubles the interval */
	__u8 long_sent; /* since `good` was last 0: 1 = a probe as long as data was sent; and good reports since, 2 at most */
	__u32 after_good; /* judged_tx when arrived_ns was last set */
	__u16 lost_bursts; /* since the EV began to lag: reports with lost probes and no arrivals */
	__u16 epoch; /* half-period in which the loss window was last halved */
	/* third cache line: what was sent, for the reports */
	__u64 probe_ns; /* time of the newest probe sent */
	__u64 noted_ns; /* time of noted_tx and noted_probes: when a report was requested, or all have left */
	__u32 noted_tx; /* low bits of mrc_ev.tx_packets at noted_ns */
	__u32 noted_probes; /* the same of probe_seq */
	__u32 mark_tx[MRC_REPORTS_KEPT]; /* tx_packets a reordering window before report i was requested */
	__u16 mark_probes[MRC_REPORTS_KEPT]; /* the same of probe_seq */
	__u32 extra_delay_ns; /* one-way delay beyond the least of the peer's EVs, smoothed, 1/4 per reply */
	__u32 skips; /* changes to SKIP; a count */
	__u64 probe_after_ns; /* no probe is due on the EV before (back-off); of a slow EV: no data; 0 = at once */
};
_Static_assert(sizeof(struct mrc_path_stats) == 192, "mrc_path_stats is three cache lines");

/* One path from one peer, counted by its receiver. Index: host id of the sender × evs_per_peer + EV. */
struct mrc_rx {
	__u64 packets; /* programs: data packets as they appear on the wire */
	__u64 bytes; /* programs: inner bytes */
	__u32 ce; /* programs: CE marks; a count */
	__u32 probes; /* programs: probe requests; a count */
	/* So no record straddles cache lines, and at most two share one: each EV has its own RX queue. */
	__u64 reserved;
};
_Static_assert(sizeof(struct mrc_rx) == 32, "mrc_rx is half a cache line");

/* Reduced SRH of an EV, ready to be copied (RFC 8754 §2, RFC 8986 §5.2). Same index as mrc_ev. */
struct mrc_srh {
	__u8 bytes[MRC_SRH_MAX]; /* daemon */
};
_Static_assert(sizeof(struct mrc_srh) == 88, "mrc_srh is 88 bytes");

/* Another host. Index: host id. */
struct mrc_peer {
	/* first cache line: every packet to or from the peer reads it; its fields rarely change */
	__u32 configured; /* daemon */
	__u32 slots; /* daemon: EVs in the plane that has most, never 0: modulus of cursors over EVs */
	__u32 plane_mask; /* programs: port status of the peer; daemon: all ones at first */
	__u32 status; /* programs: MRC_STATUS_* of the peer */
	__u64 usable[MRC_EV_WORDS]; /* programs: a bit per EV */
	__u32 queued; /* programs: 1 = planes are unequal (queues, slow, marked), so each packet reads mrc_pace */
	__u32 plane_skew_ns; /* programs: largest recent delay difference between planes; see mrc_pace.epoch */
	__u32 floor; /* daemon: ev_min_active: while fewer EVs are good, others are usable too (states.h) */
	__u32 busy; /* programs: 1 = a CPU writes `usable` */
	/* second cache line */
	__u64 heard_ns; /* programs: time of the newest probe or reply */
	__u64 plane_mask_ns; /* programs: the peer's clock in the packet that set plane_mask and status */
	__u32 generation; /* programs: of the peer's tables, from its newest probe */
	__u32 usable_changes; /* programs: changes after which `usable` must be computed again; a count */
	__u32 usable_planes; /* programs: a bit per plane that has usable EVs */
	__u8 key_ids[4]; /* programs: keys that the peer accepts, by its newest probe; MRC_KEY_IDS of them */
	__u32 refused; /* programs: packets that arrived with foreign inner addresses (source_check.h); a count */
	__u32 fingerprint; /* programs: of the peer's cluster file, from its newest probe; 0 = not told */
	__u64 plain_ns; /* programs: when the peer last sent by plain SRv6, by its newest probe, or was not heard */
	__u32 slow_planes; /* programs: planes that are much slower than the quickest, as bits (balance.h) */
	__u32 slow_ns; /* programs: time per packet of the slowest of these */
	__u64 reserved;
	/* four more cache lines */
	__u8 address[MRC_MAX_PLANES][16]; /* daemon: outer source of the peer's packets */
};
_Static_assert(sizeof(struct mrc_peer) == 384, "mrc_peer is six cache lines");

/* Whether packets of a peer must have a tag ([auth] mode). */
enum mrc_auth_mode {
	MRC_AUTH_OFF = 0, /* tags are neither made nor looked at */
	MRC_AUTH_PERMISSIVE, /* packets without a tag are accepted, and counted; those with a wrong tag are dropped */
	MRC_AUTH_REQUIRED, /* packets without a tag are dropped */
};

/* The keys shared with a peer, and its clock (auth.h). Index: host id. A key is 16 bytes. A key in use is never
 * overwritten: the daemon writes the other one.
 */
struct mrc_auth {
	/* first cache line: sending */
	__u32 tx_slot; /* daemon: which key of `tx_key` is used */
	__u8 tx_id[4]; /* daemon: ids of the MRC_KEY_IDS keys; 0 = no tag is made */
	__u64 tx_key[MRC_KEY_IDS][2]; /* daemon */
	__u32 status; /* daemon: MRC_STATUS_* that probes to this peer carry, beside mrc_node.status */
	__u32 sent; /* programs: requests to this peer, a count; kept when the peer leaves: it may come back */
	__u64 sending_reserved[2];
	/* second cache line: receiving */
	__u8 mode; /* daemon: enum mrc_auth_mode */
	__u8 rx_id[3]; /* daemon: ids of the MRC_KEY_IDS keys that are accepted; 0 = none */
	__u32 mode_reserved;
	__u64 rx_key[MRC_KEY_IDS][2]; /* daemon */
	__u64 clock_ns; /* programs: the peer's clock minus this host's, plus the delay of its packets; 0 = unknown */
	__u64 untagged; /* programs: packets accepted without a tag; a count */
	__u64 receiving_reserved;
};
_Static_assert(sizeof(struct mrc_auth) == 128, "mrc_auth is two cache lines");

#define MRC_REPLAY_WORDS 64 /* of 32 numbers each; a power of two */

/* The newest probes of a peer, so that none is believed twice. A request has a number among all requests to its
 * receiver; its reply has the same. Index: host id. Programs only: a row outlives its peer, which may come back and
 * count on.
 */
struct mrc_replay {
	__u32 generation; /* of the peer's tables, by its newest tagged request */
	__u32 epoch; /* changes of the generation; a count */
	/* Numbers that arrived, 32 in each word: seen_after() in arith.h. Index: low bits of the number / 32. */
	__u64 requests[MRC_REPLAY_WORDS]; /* of the peer */
	__u64 replies[MRC_REPLAY_WORDS]; /* to requests of this host */
};
_Static_assert(sizeof(struct mrc_replay) == 1032, "mrc_replay has no padding");

/* The critical packets of a peer: each has a number among all critical packets to its receiver. Index: host id. Programs
 * only: a row outlives its peer, as mrc_replay.
 */
struct mrc_copies {
	__u32 generation; /* of the peer's tables, by its newest probe: new tables count anew */
	__u32 epoch; /* changes of the generation; a count */
	__u64 seen[MRC_REPLAY_WORDS]; /* numbers that arrived, as in mrc_replay */
	__u64 sent_once; /* critical packets sent to the peer once: the CPU had copied too many; a count */
	__u64 delivered; /* critical packets from the peer: the first copy, as far as that is known; a count */
	__u64 unchecked; /* of these, packets too old to tell whether the other copy had come; a count */
	__u64 eliminated; /* second copies from the peer; a count */
	__u32 sent; /* critical packets sent to the peer twice; a count */
	__u32 reserved;
};
_Static_assert(sizeof(struct mrc_copies) == 560, "mrc_copies has no padding");

/* The reports requested from a peer. Index: host id. Programs only. */
struct mrc_reports {
	__u64 requested_ns; /* when the newest was requested */
	__u64 rtt_ns; /* smoothed over all EVs, 1/8 per reply; beside requested_ns, because each packet reads both */
	__u64 sent_ns[MRC_REPORT_SLOTS]; /* when each was requested; index: low bits of the report's sequence number */
	__u32 report_seq; /* newest requested; a count */
	__u32 applied_seq; /* newest applied */
	__u32 cursor; /* selects the EV on which the next request travels */
	__u32 busy; /* 1 = a CPU applies a report */
	__u64 rtt_var_ns; /* mean deviation, 1/4 per reply (RFC 6298 §2) */
	__u64 min_delay; /* least recent one-way delay; the two clocks differ, so this is a difference mod 2^64 */
	__u64 min_delay_ns; /* when it was measured */
	__u64 icmp_ns; /* when an ICMPv6 error last changed a state */
	__u64 report_tx_ns; /* the peer's clock in the newest report applied */
	__u32 unpaid_packets; /* data packets that must be judged before the peer gets more probe bursts */
	__u32 least_extra_delay_ns; /* least recent mrc_path_stats.extra_delay_ns: down at once, up slowly */
	__u32 judged; /* data packets judged on all EVs; a count */
	__u32 lossy; /* reports with a new loss on some EV; a count */
	__u16 traffic_class; /* of probes that are not piggybacked: DSCP of the newest piggybacked probe, ECT(0) */
	__u16 scattered; /* parts of the EVs, as bits, in whose newest report EVs lagged on several T1s */
	__u32 priority; /* of requests on this host: 1 + skb->priority of the newest large packet; 0 = none yet */
};
_Static_assert(sizeof(struct mrc_reports) == 160, "mrc_reports has no padding");

/* The deadlines of a peer, which the tick serves (tick.h). Index: host id. Programs only, unless marked daemon. */
struct mrc_watch {
	__u64 due_ns; /* when the tick serves the peer next; daemon: 0 = at once */
	__u64 swept_ns; /* time of its newest sweep, which probes EVs in turn; 0 = never */
	__u32 unanswered_ms; /* time of the first unanswered sweep; low bits */
	__u32 probed_us; /* time of the newest pending probe; low bits */
	__u64 deadlines[MRC_EV_WORDS]; /* a bit per EV with a deadline: new, lagging, failed, denied, or on its ramp */
	__u16 linked; /* planes with a link at both ends when the tick last served the peer */
	__u8 next; /* EV at which the next sweep begins */
	__u8 unanswered; /* sweeps in a row without a reply; stops at 255 */
	__u8 pending; /* unanswered probes, without a report, of EVs that work; stops at 255 */
	__u8 silent; /* 1 = the peer answers nothing; then MRC_HEARD_AGAIN, until the tick serves it */
	__u8 announce; /* reports to request now; daemon: 1 = have a request carry this host's new status */
	__u8 timed_out; /* 1 = a flow has stopped: sweep the peer */
};
#define MRC_HEARD_AGAIN 2 /* mrc_watch.silent: the peer answers again, and its EVs' hold-downs are to begin anew */
_Static_assert(sizeof(struct mrc_watch) == 64, "mrc_watch is one cache line");

/* Why a probe request is sent. */
enum mrc_probe_kind {
	MRC_PROBE_TRAFFIC = 0, /* piggybacked on a packet of a flow */
	MRC_PROBE_SUSPICION, /* something is missing on an EV, or a flow has stopped */
	MRC_PROBE_RETRY, /* the EV has failed, is new or is denied */
	MRC_PROBE_IDLE, /* each EV of a peer in its turn, with and without traffic */
	MRC_PROBE_LINK, /* a link of this host: a switch sends it back (link_probe.h) */
	MRC_PROBE_KINDS,
};

/* The tick of this host. One entry. Programs only. */
struct mrc_clock {
	__u64 packet_due_ns; /* when the timer packet runs the tick next, while the daemon is silent */
	__u64 active_ns; /* when the tick last found EV deadlines, overdue answers, or probes that traffic has paid for */
	__u64 refilled_ns; /* when the budget was last refilled */
	__s64 budget; /* probes that may be sent now beyond those that traffic pays for; negative = overdrawn */
	__u64 by_daemon; /* ticks run by the daemon; a count */
	__u64 by_packet; /* ticks run by the timer packet; a count */
	__u32 cursor; /* host id at which the next tick begins */
	__u32 busy; /* 1 = a CPU runs the tick; the fields below are its own: Linux 6.1 has no stack for them */
	__u64 began_ns; /* when this tick began */
	__u64 now_ns; /* when it began to serve the peer */
	__u64 wait_ns; /* time to the next tick */
	__u64 due_ns; /* when the peer is due next */
	__u16 linked; /* planes with a link at both ends */
	__u16 unpaid_ms; /* when a failed EV was last probed beyond the budget; low bits */
	__u16 unpaid_from; /* EV at which the next turn to do so begins */
	__u16 at; /* EV at which the search for the next one begins; or the T1 failure in hand (neighbours.h) */
};
_Static_assert(sizeof(struct mrc_clock) == 96, "mrc_clock has no padding");

/* One NIC of this host. Index: plane. */
struct mrc_plane {
	__u32 ifindex; /* daemon: where packets leave and arrive; 0 = none */
	__u16 vlan; /* daemon: VLAN id; 0 = untagged */
	__u8 smac[6]; /* daemon */
	__u8 dmac[6]; /* daemon: the T0's, from the neighbour table; all 0 = not resolved yet */
	__u8 nested_gso; /* daemon: 1 = the NIC takes whole bursts that have a tunnel already (tunnel.h) */
	__u8 reserved[5];
	__u8 address[16]; /* daemon: outer source of this host's packets */
	__u8 sid[16]; /* daemon: outer destination of arriving packets */
};
_Static_assert(sizeof(struct mrc_plane) == 56, "mrc_plane is 56 bytes");

/* One link that this host watches by link probes (link_probe.h). Index: row × MRC_MAX_PLANES + plane. Row 0: from this
 * host's NIC to its T0; row 1 + n: from there to T1 n.
 */
struct mrc_link {
	__u8 dst[16]; /* daemon: carrier that turns round at the end of the link */
	__u8 configured; /* daemon: 0 = no such link */
	__u8 plane; /* daemon */
	__u8 reserved[2];
	__u32 unanswered; /* programs: probes sent since the newest arrival */
	__u64 sent; /* programs: probes, a count */
	__u64 received; /* programs: of these, probes that came back */
	__u64 lost; /* programs: of those before the newest, probes that had not come back when the newest was sent */
	__u64 tx_ns; /* programs: time of the newest probe */
	__u64 rx_ns; /* programs: time of the newest arrival */
	__u32 rtt_ns; /* programs: smoothed, 1/8 per arrival */
	__u32 rtt_reserved;
};
_Static_assert(sizeof(struct mrc_link) == 72, "mrc_link has no padding");

/* This host. One entry. */
struct mrc_node {
	/* In all ABI versions the first three fields are here: a start reads and changes them in other versions' tables. */
	/* Daemon: random per set of tables; 0 = programs are still being attached, answer no probes. */
	__u32 generation;
	__u32 plane_mask; /* daemon: planes with carrier and a resolved first hop */
	__u32 status; /* daemon: MRC_STATUS_* */
	__u32 probe_ifindex; /* daemon: interface with mrc_probe at its egress; 0 = none */
	__u32 epoch; /* daemon: a new number after each change of the overlay trie, never 0 */
	__u32 timer_ifindex; /* daemon: sends packets MRC_TIMER_NS apart, to mrc_timer; 0 = no such interface */
	__u32 overlay_ifindex; /* daemon: mrc0, which receives popped packets; 0 = the plane's NIC receives them */
	__u32 merge_ifindex; /* daemon: mrc0's peer, through which TCP segments reach GRO; 0 = they are not merged */
	__u32 merge_xdp; /* daemon: 1 = also those that XDP has popped, because the NIC cannot merge them */
	__u8 overlay_eth[12]; /* daemon: mrc0's address and its peer's, in the order of an Ethernet header */
	__u64 ticked_ns; /* programs: when the daemon last ran the tick; later by what the next one is later than usual */
	__u32 idle_us; /* daemon: time between two sweeps of a peer */
	__u32 idle_evs; /* daemon: EVs that such a sweep probes; 0 = all */
};
_Static_assert(sizeof(struct mrc_node) == 64, "mrc_node is one cache line");

/* How a packet's EV is chosen. */
enum mrc_policy {
	MRC_POLICY_NONE = 0, /* not configured: as MRC_POLICY_SPRAY */
	MRC_POLICY_SPRAY, /* each packet, or burst, takes the next EV */
	MRC_POLICY_FLOWLET, /* a flow keeps its EV until it pauses */
	MRC_POLICY_PINNED, /* a flow keeps its EV until the EV fails */
	MRC_POLICY_CRITICAL, /* each packet takes two EVs (replicate.h) */
};

/* Value of the overlay trie: __u32, the host id and above it enum mrc_policy. */
#define MRC_DST_HOST 0xffff /* mask of the host id */
#define MRC_DST_POLICY 16 /* bit at which the policy begins */

/* Key of the overlay trie: IPv4 as ::ffff:a.b.c.d, its prefix length + 96. */
struct mrc_prefix {
	__u32 prefixlen;
	__u8 address[16];
};
_Static_assert(sizeof(struct mrc_prefix) == 20, "mrc_prefix is 20 bytes");

/* Destination cache (inner.h). Index: CPU × MRC_DST_ENTRIES + dst_slot() of the address. Programs only. */
struct mrc_dst_entry {
	__u32 address[4];
	__u32 epoch; /* mrc_node.epoch at the lookup; entries of older epochs are invalid */
	__u32 value; /* of the trie */
	__u64 reserved;
};
_Static_assert(sizeof(struct mrc_dst_entry) == 32, "mrc_dst_entry never straddles two cache lines");

/* A CPU's round-robin position per peer. Index: host id. Programs only. */
struct mrc_rotation {
	__u32 plane; /* the next */
	__u16 slot[MRC_MAX_PLANES]; /* the next EV of each plane */
	/* Wire packets pushed since this CPU last requested a report; at most MRC_UNPROBED_MAX and one burst. */
	__u16 unprobed;
	__u16 turns; /* of EVs whose weight is not full; wraps */
	__u32 unprobed_bytes; /* inner bytes pushed since then */
	__u16 substitutes; /* EVs that took the turn of another; wraps */
	__u8 data; /* 1 = since then the CPU pushed more than ACKs */
	__u8 denied; /* 1 = since then a report was due, but the probe budget was spent */
	__u64 reserved[2];
};
_Static_assert(sizeof(struct mrc_rotation) == 64, "mrc_rotation never straddles two cache lines");

/* Kernel features that not every supported kernel has: bits of mrc_settings.kernel_has. The loader tests for the
 * feature.
 */
enum mrc_kernel_has {
	MRC_KERNEL_HAS_KERN_CTX = 0x1, /* the kfunc bpf_cast_to_kern_ctx: Linux 6.2 */
	MRC_KERNEL_HAS_DECAP_L3 = 0x2, /* BPF_F_ADJ_ROOM_DECAP_L3_IPV4 and _IPV6: Linux 6.3 */
};

/* Settings. The loader writes them into .rodata before the load, so the verifier sees constants. */
struct mrc_settings {
	__u32 planes;
	__u32 evs_per_peer;
	__u32 evs_per_plane;
	__u32 inner_mtu; /* bytes */
	__u16 host_id;
	__u16 udp_port;
	__u32 srh; /* 1 = some path needs an SRH */
	__u32 peers; /* rows of the peers' tables */
	__u16 shared_links; /* 1 = carriers name the switches of a path, so shared links are known */
	__u16 classes; /* 1 = some ports or DSCPs have a policy */
	__u32 flowlet_us; /* a flow under MRC_POLICY_FLOWLET that pauses for so long may take another EV */
	__u32 dup_ack_us; /* an ACK is critical if the flow's previous ACK is this old; 0 = never */
	__u32 copy_ns; /* each CPU copies one critical packet in so long, on average; 0 = none */
	__u32 kernel_has; /* enum mrc_kernel_has; without a feature the programs use a slower way */
	__u32 netns; /* inode number of the NICs' network namespace */
	__u16 source_check; /* 1 = inner addresses must be those of their hosts (source_check.h) */
	__u16 flow_ports; /* 1 = the UDP source port of data follows the flow, not the EV */
	__u16 fingerprint; /* of the cluster file, for probes (mrcd/config/cluster_file.py), never 0 */
	__u16 per_packet; /* 1 = packet granularity: mrc0 segments bursts, and its peer's packets are pushed */
	__u32 test_clock; /* 1 = the time is what a test sets (maps.h) */
	__u64 link_key[2]; /* key of this host's link probes: random, another one after each load */
};
_Static_assert(sizeof(struct mrc_settings) == 80, "mrc_settings is 80 bytes");

/* When an EV is left and when it returns: [health] in the configuration. These are variables, because a reload changes
 * them in the running programs.
 */
struct mrc_health {
	__u32 probe_packets; /* wire packets after which a report is requested, */
	__u32 probe_gap_us; /* but no sooner than this after the previous request, */
	__u32 probe_late_us; /* and in any case after this time */
	__u32 reorder_us; /* least reordering window */
	__u32 overdue_us; /* an EV that lags for so long becomes ASSUMED_BAD */
	__u32 skip_delay_us; /* an EV becomes SKIP by so much more delay, if the round trip is long too; 0 = never */
	__u32 loss_any; /* 1 = any confirmed loss is a failure */
	__u32 loss_ppm; /* otherwise: loss ratio over the window that is a failure, parts per million, */
	__u32 loss_samples; /* in at least this many samples; in twice or three times as many where EVs are few */
	__u32 loss_window_us;
	__u32 hold_down_ms; /* an EV returns after working for so long; each flap doubles the time, */
	__u32 hold_down_max_ms; /* up to this; an EV in use for so long forgets one flap */
	__u32 good_probes; /* reports in a row with arrivals and without loss before an EV returns */
	__u32 ramp_us; /* a returned EV takes 1/8, 1/4, 1/2 of its turns for a third of this each; 0 = all at once */
	__u32 probe_interval_us; /* between two probes of a failed EV that answers again */
	__u32 probe_backoff_us; /* most time between two probes of an EV that does not answer */
	__u32 unanswered; /* sweeps in a row without a reply after which the peer is silent */
	__u32 idle_probes; /* probes per second that may be sent beyond those that traffic pays for */
};
_Static_assert(sizeof(struct mrc_health) == 72, "mrc_health is 72 bytes");

#endif
