/* The ABI of mrcd: what programs, daemon and wire share. Python's view (mrcd/abi.py) is checked
 * against this header's BTF by a test. All integers in tables are host byte order, all integers in
 * packets network byte order; times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef MRC_ABI_H
#define MRC_ABI_H

#include <linux/types.h>

#define MRC_ABI_VERSION 9 /* tables: names the directory of the pins */
#define MRC_WIRE_VERSION 2 /* packets: mrc_hdr.version */

enum mrc_version { /* the same in the object's BTF, where the loader looks before it touches anything */
	MRC_VERSION_ABI = MRC_ABI_VERSION,
	MRC_VERSION_WIRE = MRC_WIRE_VERSION,
};

#define MRC_MAX_PLANES 8
#define MRC_MAX_EVS_PER_PEER 256
#define MRC_EV_WORDS (MRC_MAX_EVS_PER_PEER / 64)
#define MRC_MAX_SEGMENTS 6 /* in the destination and a reduced SRH together */
#define MRC_SRH_MAX (8 + 16 * (MRC_MAX_SEGMENTS - 1))
#define MRC_HOP_LIMIT 64
#define MRC_SPORT_BASE 0xc000 /* UDP source port = base + EV */
#define MRC_REPORT_EVS 128 /* most EVs whose counts one probe reply carries */
#define MRC_BALLAST 64 /* bytes between a probe and its counts; see struct mrc_probe */
#define MRC_REPORTS_KEPT 4 /* reports of one EV that may be under way */
#define MRC_REPORT_PARTS ((MRC_MAX_EVS_PER_PEER + MRC_REPORT_EVS - 1) / MRC_REPORT_EVS)
#define MRC_REPORT_SLOTS 8 /* reports of one peer that may be under way: a power of two */
#define MRC_UNPROBED_MOST 0x8000 /* where mrc_rotation.unprobed stops */
#define MRC_WEIGHT_FULL 8 /* mrc_ev.weight of an EV that takes every turn */
#define MRC_DST_ENTRIES 4096 /* destinations that each CPU remembers: a power of two */
#define MRC_TIMER_NS 1000000 /* between two beats, see timer_packet.h */
#define MRC_MERGE_QUEUES 16 /* most queues of mrc0, each merging for a CPU, see deliver.h */
#define MRC_BUCKETS 256 /* of a histogram: four per power of two */

/* ---- packets ---------------------------------------------------------------------------- */

enum mrc_type {
	MRC_DATA = 1, /* an inner IPv4 or IPv6 packet follows */
	MRC_PROBE_REQUEST = 2, /* mrc_probe follows */
	MRC_PROBE_REPLY = 3, /* mrc_probe follows */
};

/* Bits of mrc_hdr.flags. Bit 0 is reserved for retransmissions.
 *
 * DIAGNOSTIC: asked by a tool of an administrator (mrcctl probe, trace, doctor), beside what the programs ask. A
 * request is answered and counted nowhere; a reply is for the tool's packet socket, which sees it before the
 * programs do, and tells them nothing. So what a tool sends has no part in any verdict.
 */
#define MRC_FLAG_DIAGNOSTIC 0x2

/* Behind UDP. The uSID carrier is consumed hop by hop, so the header says which path it was. */
struct mrc_hdr {
	__u8 version; /* MRC_WIRE_VERSION */
	__u8 type; /* enum mrc_type */
	__u8 flags; /* MRC_FLAG_*; echoed in replies */
	__u8 reserved;
	__be16 sender; /* host id */
	__be16 ev; /* of the sender's EVs to the receiver; in a reply: the EV that was probed */
	__be32 seq; /* data: wire packets sent on this EV before this one; probes: mrc_probe.seq */
	__be16 segments; /* wire packets in this burst; 1 unless the sender left a GSO packet whole */
	__be16 receiver; /* host id */
	__be64 tx_ns; /* the sender's clock */
	__be64 auth; /* authentication tag; 0 while authentication is off */
};
_Static_assert(sizeof(struct mrc_hdr) == 32, "mrc_hdr is 32 bytes on the wire");

/* Status of the host that sent a probe: bits of mrc_probe.status and mrc_node.status. */
#define MRC_STATUS_DETACHED 0x1 /* its data plane is being taken down: use plain SRv6 towards it */

/* Behind mrc_hdr in probe requests and replies. A request may ask for a report: what has arrived on
 * each of the requester's EVs, or on up to MRC_REPORT_EVS of them. Then `counts` records of struct
 * mrc_count follow, MRC_BALLAST bytes behind this one: a request that rides on traffic is made from a
 * packet of it, and the NIC may yet write that packet's checksum there. Request and reply are of one
 * length.
 */
struct mrc_probe {
	__be32 seq; /* of the probes on this EV; echoed */
	__be16 plane_mask; /* port status: planes on which this packet's sender has a working link */
	__be16 status; /* MRC_STATUS_* of this packet's sender */
	__be32 generation; /* of the tables of this packet's sender */
	__be32 report_seq; /* of the reports that this requester asked this peer for; echoed */
	__be16 first; /* the EV of the first count; echoed */
	__be16 counts; /* EVs in the report; 0 = none asked for; echoed */
	__be32 reserved;
	__be64 tx_ns; /* requester's clock at the request; echoed */
};
_Static_assert(sizeof(struct mrc_probe) == 32, "mrc_probe is 32 bytes on the wire");

/* What has arrived on one EV since the tables of the reply's sender were made. All wrap. */
struct mrc_count {
	__be32 packets; /* data packets */
	__be16 probes; /* probe requests, this one included */
	__be16 ce; /* data packets that carried a CE mark */
};
_Static_assert(sizeof(struct mrc_count) == 8, "mrc_count is 8 bytes on the wire");

/* ---- tables ----------------------------------------------------------------------------- */

/* EV states, in the words of the OCP MRC specification. */
enum mrc_ev_state {
	MRC_EV_UNKNOWN = 0, /* not probed yet */
	MRC_EV_GOOD = 1,
	MRC_EV_SKIP = 2, /* congested: passed over once; or lagging: carries no data until that is cleared up */
	MRC_EV_ASSUMED_BAD = 3, /* automatic */
	MRC_EV_DENIED = 4, /* by an administrator */
};

/* Why an EV is in its state. */
enum mrc_reason {
	MRC_REASON_NEW = 0, /* no transition yet */
	MRC_REASON_PROBED, /* its first probes arrived */
	MRC_REASON_OVERDUE, /* nothing arrived by it while later packets on other EVs did */
	MRC_REASON_LOSS, /* the loss rule */
	MRC_REASON_GREY_LOSS, /* a small loss over a long time, which other EVs do not have */
	MRC_REASON_ICMP_ERROR, /* the fabric said that it cannot forward it */
	MRC_REASON_LINK_DOWN, /* this host's link on the plane */
	MRC_REASON_PEER_LINK_DOWN, /* the peer's link on the plane, by its port status */
	MRC_REASON_HEALED, /* good probes over the whole hold-down */
	MRC_REASON_ADMIN, /* denied or allowed by an administrator */
	MRC_REASON_CONGESTED, /* SKIP: CE marks, or more delay than the other EVs have */
	MRC_REASON_LAGGING, /* SKIP: its packets are overdue, which is being looked into */
	MRC_REASON_MAX,
};

/* One path to one peer, and what was sent on it: what mrc_push needs of one in use, but for an SRH. Index: host id of
 * the peer × evs_per_peer + EV.
 */
struct mrc_ev {
	__u8 dst[16]; /* daemon: outer destination: the carrier, or the first segment */
	__u8 configured; /* daemon: 0 = no such path */
	__u8 plane; /* daemon */
	__u8 srh_len; /* daemon: bytes used of this EV's mrc_srh; 0 = no SRH */
	__u8 weight; /* programs: takes this many of MRC_WEIGHT_FULL turns: a ramp after it returned; daemon: full at first */
	__u32 state; /* programs: enum mrc_ev_state; changed by compare-and-exchange only */
	__u64 tx_packets; /* programs: data packets as they appear on the wire */
	__u64 tx_bytes; /* programs: inner bytes */
	__u64 last_tx_ns; /* programs: when the newest data packet was put on it */
	__u64 state_since_ns; /* programs; GOOD to SKIP and back is no change */
	__u32 probe_seq; /* programs: probes sent; a count */
	__u8 reason; /* programs: enum mrc_reason of the newest change */
	__u8 skip_reason; /* programs: enum mrc_reason of the newest change to SKIP */
	__u8 flaps; /* programs: falls that are not forgotten yet; doubles the hold-down */
	__u8 reserved; /* always 0; mrc_push writes it to have the line in a cache */
};
_Static_assert(sizeof(struct mrc_ev) == 64, "mrc_ev is one cache line");

/* What became of the packets on an EV, by the peer's reports. Same index as mrc_ev. Programs only, but for what says
 * daemon, which also writes zeros where the path is another one than before.
 */
struct mrc_path_stats {
	__u64 lost_before; /* data packets lost in earlier generations of the peer's tables */
	__u64 judged; /* data packets sent and judged, over all generations */
	__u64 rx_ce; /* CE marks that the peer has seen, over all generations */
	__u64 arrived_ns; /* when the newest packet that is known to have arrived was sent, or later */
	__u64 lag_ns; /* since when it lags: something is missing; 0 = it does not */
	__u64 loss_ns; /* when a loss was last noticed; while ASSUMED_BAD, when it was last not known to be well */
	__u64 unsure_ns; /* when `unsure` was taken */
	__u32 rtt_ns; /* smoothed, 1/8 per reply; below 4.3 s */
	__u32 replies; /* to probes on this EV; a count */
	/* second cache line */
	__u32 deficit; /* data packets lost in this generation, as far as known */
	__u32 offset; /* tx_packets minus the peer's count when the generation began */
	__u32 rx; /* newest report: data packets */
	__u32 generation; /* of the peer's tables that offset belongs to; 0 = none yet */
	__u16 rx_probes; /* newest report: probes */
	__u16 ce; /* newest report: CE marks */
	__u16 probe_offset; /* probe_seq minus the peer's count when the generation began */
	__u16 missed; /* probes lost in this generation, as far as known */
	__u32 reply_seq; /* newest probe answered */
	__u16 good; /* reports in a row that knew of new arrivals and of no new loss; stops at 65535 */
	__u16 burst_end; /* while it lags: probe_seq when all of its newest probe burst will have been sent */
	__u32 judged_tx; /* newest mark judged */
	__u32 window_tx; /* packets judged in the loss window, which fades: halved twice per period */
	__u32 window_lost; /* of these lost */
	__u32 window_samples; /* in the loss window: reports that knew of new data packets, and probes judged */
	__u16 window_losses; /* samples with a loss */
	__u16 unsure; /* of these, known at unsure_ns */
	__u16 sure; /* of these, known for some time: they will not come late */
	__u16 backoff; /* probes in a row without an answer: each doubles the time to the next */
	__u32 after_good; /* judged_tx when arrived_ns was last set */
	__u16 lost_bursts; /* since it began to lag, reports that knew of lost probes and of no arrival */
	__u16 epoch; /* when the loss window was last halved */
	/* third cache line: what was sent, for the reports */
	__u64 probe_ns; /* when the newest probe was sent */
	__u64 noted_ns; /* when noted_tx and noted_probes were taken: when a report was asked for */
	__u32 noted_tx; /* low bits of mrc_ev.tx_packets at noted_ns */
	__u32 noted_probes; /* the same of probe_seq */
	__u32 mark_tx[MRC_REPORTS_KEPT]; /* of tx_packets, sent a reordering window before round i */
	__u16 mark_probes[MRC_REPORTS_KEPT]; /* the same of probe_seq */
	__u32 late_ns; /* its one-way delay beyond the least of the peer's EVs, smoothed, 1/4 per reply */
	__u32 skips; /* how often the EV became SKIP; a count */
	__u64 probe_after_ns; /* no probe is due on it before (back-off); 0 = at once */
};
_Static_assert(sizeof(struct mrc_path_stats) == 192, "mrc_path_stats is three cache lines");

/* One path from one peer, seen by its receiver. Index: host id of the sender × evs_per_peer + EV. */
struct mrc_rx {
	__u64 packets; /* programs: data packets as they appear on the wire */
	__u64 bytes; /* programs: inner bytes */
	__u32 ce; /* programs; a count */
	__u32 probes; /* programs: probe requests; a count */
	__u64 reserved; /* so that no record is in two cache lines, and no more than two share one: each EV has its RX queue */
};
_Static_assert(sizeof(struct mrc_rx) == 32, "mrc_rx is half a cache line");

/* Reduced SRH of an EV, ready to be copied (RFC 8754 §2, RFC 8986 §5.2). Same index as mrc_ev. */
struct mrc_srh {
	__u8 bytes[MRC_SRH_MAX]; /* daemon */
};
_Static_assert(sizeof(struct mrc_srh) == 88, "mrc_srh is 88 bytes");

/* Another host. Index: host id. */
struct mrc_peer {
	/* first cache line: what each packet to or from it reads, and little that changes often */
	__u32 configured; /* daemon */
	__u32 slots; /* daemon: EVs in the plane that has most, never 0: whose turn it is is taken modulo this */
	__u32 plane_mask; /* programs: port status of the peer; daemon: all ones at first */
	__u32 status; /* programs: MRC_STATUS_* of the peer */
	__u64 usable[MRC_EV_WORDS]; /* programs: a bit per EV */
	__u32 queued; /* programs: 1: some plane has a queue: look at its mrc_pace for each packet */
	__u32 apart_ns; /* programs: by how much planes differed in delay, at most, lately; see mrc_pace.epoch */
	__u32 floor; /* daemon: ev_min_active: no fewer usable EVs than this */
	__u32 busy; /* programs: someone is at `usable` */
	/* second cache line */
	__u64 heard_ns; /* programs: when the newest probe or reply came */
	__u64 plane_mask_ns; /* programs: the peer's clock in the packet that set ports and status */
	__u32 generation; /* programs: of the peer's tables, from its newest probe */
	__u32 wanted; /* programs: changes that the usable EVs were to follow; a count */
	__u32 usable_planes; /* programs: a bit per plane that has usable EVs */
	__u32 dup_acks; /* programs: acknowledgements that went to it twice, see dup_ack.h; a count */
	__u32 reserved[8];
	/* third and fourth cache line */
	__u8 address[MRC_MAX_PLANES][16]; /* daemon: outer source of what the peer sends */
};
_Static_assert(sizeof(struct mrc_peer) == 256, "mrc_peer is four cache lines");

/* The reports asked of a peer. Same index. Programs only. */
struct mrc_reports {
	__u64 asked_ns; /* when the newest was asked for */
	__u64 rtt_ns; /* smoothed over all EVs, 1/8 per reply; beside asked_ns: each packet looks at both */
	__u64 sent_ns[MRC_REPORT_SLOTS]; /* by the low bits of the round */
	__u32 report_seq; /* newest asked for; a count */
	__u32 settled; /* newest that came back */
	__u32 cursor; /* on which EV the next one travels */
	__u32 busy; /* a CPU is judging a report */
	__u64 rtt_var_ns; /* mean deviation, 1/4 per reply (RFC 6298 §2) */
	__u64 min_delay; /* least one-way delay lately, by two clocks that do not agree: a difference mod 2^64 */
	__u64 min_delay_ns; /* when it was measured */
	__u64 icmp_ns; /* when an ICMPv6 error last changed a state */
	__u64 told_ns; /* the peer's clock in the newest report judged */
	__u32 debt; /* data packets that are to be judged until probe bursts may be sent again */
	__u32 least_ns; /* least mrc_path_stats.late_ns lately: at once, and up by 1/8 per reply on each EV */
	__u32 judged; /* data packets judged on all EVs; a count */
	__u32 lossy; /* reports by which an EV has lost more; a count */
	__u32 traffic_class; /* of probes that ride on no packet: DSCP as the newest that did, ECT(0) */
	__u32 reserved;
};
_Static_assert(sizeof(struct mrc_reports) == 160, "mrc_reports has no padding");

/* The deadlines of a peer, which the tick serves (tick.h). Index: host id. Programs only, but for what says daemon. */
struct mrc_watch {
	__u64 due_ns; /* when the tick serves the peer next; daemon: 0 = at once */
	__u64 swept_ns; /* when its EVs were last probed in turn; 0 = never */
	__u32 unanswered_ms; /* when the first of the unanswered sweeps was sent; low bits */
	__u32 probed_us; /* when the newest of the pending probes was sent; low bits */
	__u64 deadlines[MRC_EV_WORDS]; /* a bit per EV that has a deadline: new, lagging, failed, denied, or on its ramp */
	__u16 next; /* EV at which the next sweep begins */
	__u8 unanswered; /* sweeps in a row without a reply; stops at 255 */
	__u8 pending; /* probes of EVs that are well, without a report, that were not answered yet; stops at 255 */
	__u8 silent; /* 1 = the peer answers nothing */
	__u8 linked; /* planes that had a link at both ends when the tick last served the peer */
	__u8 announce; /* reports to ask for; daemon: 1 = this host has news of itself, which requests tell */
	__u8 timed_out; /* 1 = a flow has stopped: sweep it */
};
_Static_assert(sizeof(struct mrc_watch) == 64, "mrc_watch is one cache line");

/* Why a probe request is sent. */
enum mrc_probe_kind {
	MRC_PROBE_TRAFFIC = 0, /* it rides on a packet of a flow */
	MRC_PROBE_SUSPICION, /* something is missing on an EV, or a flow has stopped */
	MRC_PROBE_RETRY, /* the EV has failed, is new or is denied */
	MRC_PROBE_IDLE, /* an EV in use, in its turn */
	MRC_PROBE_KINDS,
};

/* The tick of this host. One entry. Programs only. */
struct mrc_clock {
	__u64 packet_due_ns; /* when the timer packet runs the tick next, while the daemon is silent */
	__u64 active_ns; /* when the tick last served a peer that has an EV with a deadline, or is in doubt */
	__u64 refilled_ns; /* when the budget was last refilled */
	__s64 budget; /* probes that may be sent now beyond those that traffic pays for; below 0 where overdrawn */
	__u64 by_daemon; /* runs of the tick by the daemon; a count */
	__u64 by_packet; /* runs of the tick by the timer packet; a count */
	__u32 cursor; /* host id at which the next tick begins */
	__u32 busy; /* a CPU runs the tick, of which is what follows: the stack has no room for it on Linux 6.1 */
	__u64 began_ns;
	__u64 now_ns; /* when it began to serve the peer */
	__u64 wait_ns; /* until the next tick */
	__u64 due_ns; /* when the peer is due next */
	__u32 linked; /* planes with a link at both ends */
	__u32 at; /* EV at which the search for the next one begins */
};
_Static_assert(sizeof(struct mrc_clock) == 96, "mrc_clock has no padding");

/* One NIC of this host. Index: plane. */
struct mrc_plane {
	__u32 ifindex; /* daemon: where packets leave and arrive; 0 = none */
	__u16 vlan; /* daemon: VLAN id; 0 = untagged */
	__u8 smac[6]; /* daemon */
	__u8 dmac[6]; /* daemon: the T0's, from the neighbour table; all 0 = not resolved yet */
	__u8 nests; /* daemon: 1 = bursts that have a tunnel already go to it whole (tunnel.h) */
	__u8 reserved[5];
	__u8 address[16]; /* daemon: outer source of what this host sends */
	__u8 sid[16]; /* daemon: outer destination of what arrives */
};
_Static_assert(sizeof(struct mrc_plane) == 56, "mrc_plane is 56 bytes");

/* This host. One entry. */
struct mrc_node {
	__u32 generation; /* daemon: random when the tables were made; 0 = not all programs are there, with these: no answers */
	__u32 plane_mask; /* daemon: planes with carrier, and a first hop that has been resolved */
	__u32 status; /* daemon: MRC_STATUS_* */
	__u32 probe_ifindex; /* daemon: at whose egress mrc_probe is attached; 0 = nowhere */
	__u32 epoch; /* daemon: another number after each change of the overlay trie, never 0 */
	__u32 timer_ifindex; /* daemon: what this sends leaves MRC_TIMER_NS apart, and comes to mrc_timer; 0 = nothing does */
	__u32 overlay_ifindex; /* daemon: mrc0, which receives what was popped; 0 = the plane's NIC does */
	__u32 merge_ifindex; /* daemon: mrc0's peer, by which TCP's segments get there, to be merged; 0 = as they are */
	__u32 merge_xdp; /* daemon: 1 = those that XDP has popped, too: the NIC could not merge them */
	__u8 overlay_eth[12]; /* daemon: mrc0's address and its peer's, as an Ethernet header has them */
	__u64 ticked_ns; /* programs: when the daemon last ran the tick */
	__u32 idle_us; /* daemon: between two sweeps of a peer */
	__u32 idle_evs; /* daemon: EVs that such a sweep probes; 0 = all */
};
_Static_assert(sizeof(struct mrc_node) == 64, "mrc_node is one cache line");

/* How a packet's EV is chosen. */
enum mrc_policy {
	MRC_POLICY_NONE = 0, /* no word on it: as MRC_POLICY_SPRAY */
	MRC_POLICY_SPRAY, /* every packet, or burst, the next one */
	MRC_POLICY_FLOWLET, /* a flow stays until it pauses */
	MRC_POLICY_PINNED, /* a flow stays until the EV fails */
};

/* Key of the overlay trie: IPv4 as ::ffff:a.b.c.d, its prefix length + 96. Value: __u32 host id, and above it
 * enum mrc_policy.
 */
#define MRC_DST_HOST 0xffff
#define MRC_DST_POLICY 16 /* the bit where it begins */

struct mrc_prefix {
	__u32 prefixlen;
	__u8 address[16];
};
_Static_assert(sizeof(struct mrc_prefix) == 20, "mrc_prefix is 20 bytes");

/* Whose a destination was when a CPU last looked it up in the trie. Index: CPU × MRC_DST_ENTRIES + slot, by the address.
 * Programs only.
 */
struct mrc_dst_entry {
	__u32 address[4];
	__u32 epoch; /* of the trie: older ones count for nothing */
	__u32 value; /* of the trie */
	__u64 reserved;
};
_Static_assert(sizeof(struct mrc_dst_entry) == 32, "mrc_dst_entry never straddles two cache lines");

/* Where each CPU stands in its rotation, per peer. Programs only. */
struct mrc_rotation {
	__u32 plane;
	__u16 slot[MRC_MAX_PLANES];
	__u16 unprobed; /* wire packets pushed since this CPU last asked for a report, or MRC_UNPROBED_MOST and more */
	__u8 turns; /* of EVs whose weight is not full */
	__u8 data; /* 1 = more than acknowledgements was pushed since then */
	__u32 unprobed_bytes; /* inner bytes pushed since then */
	__u32 denied; /* 1 = a report was due since then, and the budget was spent */
};
_Static_assert(sizeof(struct mrc_rotation) == 32, "mrc_rotation never straddles two cache lines");

/* What not every kernel can do: bits of mrc_settings.kernel_has. The loader asks the kernel, never its version. */
enum mrc_kernel_has {
	MRC_KERNEL_HAS_KERN_CTX = 0x1, /* the kfunc bpf_cast_to_kern_ctx: Linux 6.2 */
	MRC_KERNEL_HAS_DECAP_L3 = 0x2, /* BPF_F_ADJ_ROOM_DECAP_L3_IPV4 and _IPV6: Linux 6.3 */
};

/* Fixed when the object is loaded: the verifier sees them as constants. */
struct mrc_settings {
	__u32 planes;
	__u32 evs_per_peer;
	__u32 evs_per_plane;
	__u32 inner_mtu; /* bytes */
	__u16 host_id;
	__u16 udp_port;
	__u32 srh; /* 1 = some path needs an SRH */
	/* health: see [health] in the configuration */
	__u32 probe_packets; /* a report is asked for when this many wire packets were pushed, */
	__u32 probe_gap_us; /* but not sooner than this after the last, */
	__u32 probe_late_us; /* or when this has passed */
	__u32 reorder_us; /* least reordering window */
	__u32 overdue_us; /* an EV that lags for so long is ASSUMED_BAD */
	__u32 skip_delay_us; /* this much more delay than the others have: SKIP; 0 = never */
	__u32 loss_any; /* 1 = any loss that lasts is failure */
	__u32 loss_ppm; /* else this ratio over the window, parts per million, */
	__u32 loss_samples; /* seen in at least this many samples; twice as many where EVs are few */
	__u32 loss_window_us;
	__u32 hold_down_ms; /* an EV that failed once returns when it was well for so long; doubles with each flap, */
	__u32 hold_down_max_ms; /* up to this; an EV in use for so long forgets one flap */
	__u32 good_probes; /* reports in a row with arrivals and without loss, for an EV to return */
	__u32 ramp_us; /* an EV that returned takes 1/8, 1/4, 1/2 of its turns for a third of this each; 0 = all at once */
	__u32 probe_interval_us; /* between two probes of an EV that failed and answers again */
	__u32 probe_backoff_us; /* most time between two probes of an EV by which nothing arrives */
	__u32 unanswered; /* sweeps in a row without a reply: the peer answers nothing */
	__u32 idle_probes; /* probes per second that may be sent beyond those that traffic pays for */
	__u32 peers; /* rows of the peers' tables */
	__u32 shared_fate; /* 1 = carriers name the switches that a path crosses */
	__u32 classes; /* 1 = some ports or DSCPs have a policy */
	__u32 flowlet_us; /* a flow under MRC_POLICY_FLOWLET that paused for so long may take another EV */
	__u32 dup_ack_us; /* an acknowledgement goes twice if the flow's last is so old; 0 = none does */
	__u32 kernel_has; /* enum mrc_kernel_has: a kernel that lacks one takes a slower way */
	__u32 netns; /* of the NICs: its inode number */
};
_Static_assert(sizeof(struct mrc_settings) == 124, "mrc_settings is 124 bytes");

#define MRC_EVENT_IDLE_TIMEOUT 0xffff /* for an EV: no transition, but a flow that has stopped; the rest is 0 */

/* A transition, in the ring buffer. Evidence that the reason has no use for is 0. */
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
	__u32 lost_bursts; /* as mrc_path_stats.trials; of MRC_REASON_HEALED: as mrc_path_stats.good */
	__u64 silent_ns; /* since a packet by it was last known to have arrived */
	__u32 lost_packets; /* in the loss window */
	__u32 sent_packets;
};
_Static_assert(sizeof(struct mrc_event) == 40, "mrc_event is 40 bytes");

/* Histograms: index = enum × MRC_BUCKETS + bucket; see bucket_of() in arith.h. */
enum mrc_histogram {
	MRC_HISTOGRAM_DETECTION = 0, /* ns from the last packet known to have arrived to ASSUMED_BAD */
	MRC_HISTOGRAM_AFTER_GOOD, /* data packets put on it in that time */
	MRC_HISTOGRAM_RTT, /* ns, plane 0; then one for each plane */
	MRC_HISTOGRAM_REINSTATEMENT = MRC_HISTOGRAM_RTT + MRC_MAX_PLANES, /* ns from ASSUMED_BAD to GOOD */
	MRC_HISTOGRAM_MAX,
};

/* Changes of state that are events. Index: enum mrc_ev_state that came × MRC_REASON_MAX + enum mrc_reason. */
struct mrc_changes {
	__u64 count; /* programs */
	__u64 untold; /* programs: of these, the ring buffer had no room for */
};
_Static_assert(sizeof(struct mrc_changes) == 16, "mrc_changes is 16 bytes");

/* Why a packet was dropped: counter index, metric label and the text of mrcctl, all from here. */
enum mrc_drop {
	MRC_DROP_NONE = 0,
	MRC_DROP_NOT_IP, /* push: neither IPv4 nor IPv6 */
	MRC_DROP_NO_PEER, /* push: no peer owns the destination */
	MRC_DROP_NO_USABLE_EV, /* push: every plane is down, here or at the peer */
	MRC_DROP_TOO_BIG, /* push: longer than the inner MTU */
	MRC_DROP_PUSH_FAILED, /* push: the kernel refused to make room */
	MRC_DROP_PROBE_FAILED, /* push: a probe could not be made of a packet's clone */
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
	MRC_DROP_MERGED, /* pop: packets of the fabric merged by receive offload */
	MRC_DROP_POP_FAILED, /* pop: the kernel refused to remove the headers */
	MRC_DROP_UNSOLICITED_REPLY, /* pop: answers no probe that is outstanding */
	MRC_DROP_REPLY_FAILED, /* pop: a probe could not be reflected */
	MRC_DROP_BAD_PROBE, /* pop: a report of EVs that there are not */
	MRC_DROP_WRONG_RECEIVER, /* pop: meant for another host */
	MRC_DROP_MAX,
};

#endif
