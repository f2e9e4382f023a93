/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Defines the tables that only the programs use. maps.h declares the maps; the header of each table's job uses it.
 *
 * The loader creates the maps of these structures anew with each object, so their layout may change without a new ABI
 * version. Only mrc_idle_timers and mrc_clone_jobs are pinned. Times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef MRC_STATE_H
#define MRC_STATE_H

#include <linux/bpf.h>

#include "mrc_abi.h"

/* Entries of the maps whose index is a hash. More entries mean fewer flows that share one. All are powers of two. */
#define ACK_FLOWS 4096 /* flows that share an entry count as one flow */
#define FLOWLETS 8192 /* flows that share an entry share its pauses */
#define SACK_GAPS 4096 /* while one flow hides a gap or loses packets, the flows that share its entry hide none */

#define T1_FAILURES 8 /* failures whose neighbours are being probed: twice T1_FAILURES_PER_WINDOW; a power of two */
#define T0_VERDICTS 2048 /* T0s; a power of two */
#define IDLE_QUEUE_PEERS 256 /* peers; further ones are left to the tick */

#define BURSTS_AT_ONCE 8 /* EVs that one report can have probed by bursts: a power of two, bounds the cost per report */

/* ---- choosing an EV: balance.h, classes.h, states.h ---------------------------------------- */

/* Packets in flight to a peer, by plane. Index: host id. */
struct mrc_pace {
	__u32 plane_skew_now_ns; /* largest delay difference between planes in this period of SKEW_PERIOD_NS */
	__u32 epoch; /* number of this period */
	__u64 sent_ns[MRC_MAX_PLANES]; /* time of the newest packet on each plane; kept while mrc_peer.queued */
	/* Until then the plane carries nothing, so its base delay can be measured. */
	__u64 paused_until_ns[MRC_MAX_PLANES];
	__u64 paced_ns; /* the peer's clock when `paced` was taken */
	__u32 queues; /* planes that had a queue then, as bits */
	__u32 turns; /* packets that chose while planes were marked unequally; a count */
	__u32 marked[MRC_MAX_PLANES]; /* CE marks since then */
	__u8 marking[MRC_MAX_PLANES]; /* CE marks per 256 packets, smoothed, 1/4 */
	__u32 paced[MRC_MAX_PLANES]; /* sum of `arrived` over all parts */
	/* By the newest report of each part of the EVs. One plane's EVs can be in both parts. */
	__u32 arrived[MRC_REPORT_PARTS][MRC_MAX_PLANES]; /* data packets, a count */
	__u32 in_flight[MRC_REPORT_PARTS][MRC_MAX_PLANES]; /* data packets in flight */
	__u32 sent[MRC_MAX_PLANES]; /* data packets since that report, approximately; kept while mrc_peer.queued */
	__u32 pace_ns[MRC_MAX_PLANES]; /* time per packet, smoothed, 1/4 */
	__u32 slow_ns[MRC_MAX_PLANES]; /* the same while the plane had a queue: it can do no better; fades */
	__u32 newest_delay_ns[MRC_MAX_PLANES]; /* extra delay of the newest probe */
	__u32 extra_delay_ns[MRC_MAX_PLANES]; /* as mrc_path_stats.extra_delay_ns, over all EVs of the plane */
	__u32 base_delay_ns[MRC_MAX_PLANES]; /* the part of it that remains without queues, as far as known */
};

/* Policies by DSCP and by TCP or UDP port, at either end. The daemon writes them before it attaches the programs. */
struct mrc_classes {
	__u8 dscp[64]; /* enum mrc_policy */
	__u8 ports[65536]; /* enum mrc_policy */
};

/* The EV of a flow's newest packet. Index: low bits of the flow's hash. */
struct mrc_flowlet {
	__u64 ns; /* time of that packet */
	__u32 host_id;
	__u32 number; /* of the EV */
};

/* Work area for the usable EVs of a peer. Index: host id, while the CPU holds mrc_peer.busy. It is per peer, not per
 * CPU: on Linux 6.1 a packet can interrupt a program that the daemon runs, and bring another peer's report to the same
 * CPU.
 */
struct mrc_selection {
	__u64 words[MRC_EV_WORDS]; /* the EVs selected, a bit each */
	__u32 planes; /* of these EVs, a bit each */
	__u32 host_id;
	__u32 plane_mask; /* planes that may be used */
	__s32 rank; /* enum rank to select now */
	__u32 most; /* EVs to select, at most */
	__u32 count; /* EVs selected */
	__u32 first; /* EV to begin with: slot × planes + plane */
	__u32 reserved;
};

/* ---- probing: send_probe.h, piggyback.h, idle_timeout.h, timer_packet.h -------------------- */

/* A probe request to send. */
struct request {
	__u64 now;
	__u32 host_id;
	__u32 number; /* of the EV */
	__u32 report_seq; /* of the report, if one is requested; of a copy: its number (replicate.h) */
	__u16 kind; /* enum mrc_probe_kind */
	__u16 traffic_class; /* of the packet under a piggybacked request; others use mrc_reports.traffic_class */
	__u16 first; /* EV of the report's first count */
	__u16 counts; /* EVs in the report; 0 = no report */
};

/* Jobs of mrc_probe: the packet that it makes of a clone. */
#define CLONE_REQUEST 1
#define CLONE_TIMER_PACKET 2 /* timer_packet.h */
#define CLONE_COPY 3 /* replicate.h */

/* The job that mrc_push or mrc_pop leaves for mrc_probe, which runs on the clone at once. One per CPU. */
struct mrc_clone_job {
	__u32 job; /* CLONE_*; 0 = none */
	__u32 plane; /* of the newest copy */
	struct request request;
};

/* One per peer: its callback runs when dense traffic to the peer stops. Index: host id. */
struct mrc_idle_timer {
	struct bpf_timer timer;
};

/* The timer packet. One entry. */
struct mrc_timer {
	__u64 ns; /* when it last passed; 0 = it has ended */
	__u64 made_ns; /* when it was made */
	__u64 dense_ns; /* when there was last dense traffic, within MRC_TIMER_NS */
	__u32 id; /* its mark */
	__u32 early_passes; /* passes in a row that came much too early */
};

/* A peer that the timer packet is to sweep. */
struct mrc_idle_peer {
	__u64 due_ns;
	__u32 host_id;
	__u32 left; /* sweeps */
};

/* ---- judging: answer_probe.h, judge.h, loss.h ---------------------------------------- */

/* The fixed part of a probe packet. */
struct control {
	struct mrc_hdr mrc;
	struct mrc_probe probe;
};

/* Losses of a plane: sums over the loss windows of its EVs in use. */
struct plane_loss {
	__u32 sent; /* data packets and probes */
	__u32 lost; /* of these */
	__u32 samples; /* as mrc_path_stats.window_samples */
	__u32 losses; /* samples with a confirmed loss */
	__u32 known_losses; /* samples with any known loss: the other planes' losses count as soon as they are known */
	__u32 evs; /* EVs in use with samples */
	__u32 lossy_evs; /* of these, EVs with a confirmed loss */
};

/* Losses of the EVs in use, by how many confirmed losses each EV has. */
struct part_loss {
	__u32 below_limit; /* EVs with fewer losses than the loss rule needs */
	__u32 above_limit; /* the other EVs */
	__u32 samples; /* of the EVs below the limit */
	__u32 losses; /* of these samples, samples with a loss */
};

/* Work area for one report or control packet: the stack of Linux 6.1 has no room for it. One per CPU. */
struct mrc_scratch {
	struct control control; /* of the probe that arrived */
	struct mrc_count count[MRC_REPORT_EVS]; /* of the report that is read or written */
	__u32 lagging[BURSTS_AT_ONCE]; /* EVs that lag and get a probe burst */
	__u32 in_flight[MRC_MAX_PLANES]; /* data packets in flight on each plane */
	__u32 arrived[MRC_MAX_PLANES]; /* data packets that have arrived on it */
	__u32 marked[MRC_MAX_PLANES]; /* new CE marks on it */
	struct plane_loss loss[MRC_MAX_PLANES + 1]; /* by plane; last: the sum of all planes */
};

/* Losses by the newest report of each part of the EVs. Index: host id. */
struct mrc_plane_losses {
	struct plane_loss of[MRC_REPORT_PARTS][MRC_MAX_PLANES];
	struct part_loss part[MRC_REPORT_PARTS];
	__u64 ns[MRC_REPORT_PARTS]; /* when the report arrived */
};

/* ---- shared links: states.h, neighbours.h ---------------------------------------------- */

/* A T1 on which an EV failed. The fields marked `tick` belong to the walk over the peers (neighbours.h). */
struct mrc_t1_failure {
	__u64 carrier; /* first 64 bits of the EV's destination, in network byte order: block, T0 and T1 */
	__u64 ns; /* when the EV failed */
	__u64 probed_ns; /* tick: when one peer under each T0 had been probed */
	__u32 number; /* of the EV: in most peers the EV of this number crosses the same T1 */
	__u32 host_id; /* of the peer whose EV failed */
	__u32 made; /* times that this entry was filled in; a count */
	__u32 begun; /* tick: `made` when the walk began */
	__u32 next; /* tick: host id of the next peer */
	__u32 left; /* tick: peers still to visit */
	/* Tick: 0 = first walk, which probes a peer under each T0; 1 = second walk, which judges all. */
	__u32 is_judging;
	__u16 visited; /* tick: EV of the peer that is being visited, */
	__u16 other; /* and a usable one of its plane, through another T1 */
};

/* Verdict of a walk on the links from the failed T1 to one T0. Index: low bits of the T0's uSID. */
struct mrc_t0_verdict {
	__u32 walk; /* walk_id() of the failure; an entry of another walk is stale */
	__u32 host_id; /* of the peer that was probed */
	__u16 number; /* of its EV on the failed T1 */
	__u16 t0; /* uSID */
	__u16 other; /* of its EV through another T1 */
	__u16 verdict; /* enum t0_state */
	__u32 seq; /* of the last probe on that EV */
	__u32 other_seq; /* of the probe on the other one */
};

/* ---- TCP: sack_hiding.h -------------------------------------------------------------------- */

/* The newest gap of a flow. Index: high bits of the flow's hash. */
struct mrc_sack_gap {
	__u32 flow; /* its hash */
	__u32 ack; /* where the gap begins: the TCP sequence number of the newest ACK */
	__u64 ns; /* when the gap was first seen, or when one had lasted */
	__u32 is_lossy; /* 1 = one has lasted: data are lost, so the flow's TCP sees all blocks for some time */
	__u32 reserved;
};

#endif
