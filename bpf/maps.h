/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Declares all maps of the programs and the settings, and looks up entries of the shared tables.
 *
 * mrcd/kernel/dataplane.py sets the sizes that the configuration determines.
 */
#ifndef MRC_MAPS_H
#define MRC_MAPS_H

#include "mrc_state.h"

const volatile struct mrc_settings settings;
volatile struct mrc_health health SEC(".data.health");

/* An array or per-CPU array; the loader sets its size. */
#define MRC_ARRAY(name, kind, flags, value_type)                                                   \
	struct {                                                                                   \
		__uint(type, kind);                                                                \
		__uint(map_flags, flags);                                                          \
		__uint(max_entries, 1);                                                            \
		__type(key, __u32);                                                                \
		__type(value, value_type);                                                         \
	} name SEC(".maps")

/* The same with a fixed size. */
#define MRC_FIXED_ARRAY(name, kind, entries, value_type)                                           \
	struct {                                                                                   \
		__uint(type, kind);                                                                \
		__uint(max_entries, entries);                                                      \
		__type(key, __u32);                                                                \
		__type(value, value_type);                                                         \
	} name SEC(".maps")

/* ---- pinned: shared with the daemon, kept over upgrades (mrc_abi.h, mrc_events.h) ---------- */

MRC_ARRAY(mrc_evs, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_ev);
MRC_ARRAY(mrc_path_stats, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_path_stats);
MRC_ARRAY(mrc_rxs, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_rx);
MRC_ARRAY(mrc_srhs, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_srh);
MRC_ARRAY(mrc_peers, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_peer);
MRC_ARRAY(mrc_auths, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_auth);
MRC_ARRAY(mrc_replays, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_replay);
MRC_ARRAY(mrc_copies, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_copies);
MRC_ARRAY(mrc_reports, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_reports);
MRC_ARRAY(mrc_watches, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_watch);
MRC_ARRAY(mrc_clock, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_clock);
MRC_ARRAY(mrc_probes_sent, BPF_MAP_TYPE_PERCPU_ARRAY, 0, __u64); /* index: enum mrc_probe_kind */
MRC_ARRAY(mrc_unsent_packets, BPF_MAP_TYPE_PERCPU_ARRAY, 0, __u64); /* index: plane */
MRC_ARRAY(mrc_links, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_link);
MRC_ARRAY(mrc_planes, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_plane);
MRC_ARRAY(mrc_node, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_node);
MRC_ARRAY(mrc_rotations, BPF_MAP_TYPE_PERCPU_ARRAY, 0, struct mrc_rotation);
MRC_ARRAY(mrc_drops, BPF_MAP_TYPE_PERCPU_ARRAY, 0, __u64); /* index: enum mrc_drop */
MRC_ARRAY(mrc_histograms, BPF_MAP_TYPE_PERCPU_ARRAY, 0, __u64); /* index: see enum mrc_histogram */
MRC_ARRAY(mrc_transitions, BPF_MAP_TYPE_PERCPU_ARRAY, 0, struct mrc_changes);

/* Size: set by the loader; a full page at least. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} mrc_events SEC(".maps");

/* The overlay trie: destination prefix → host id and policy. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct mrc_prefix);
	__type(value, __u32);
} mrc_prefixes SEC(".maps");

MRC_ARRAY(mrc_idle_timers, BPF_MAP_TYPE_ARRAY, 0, struct mrc_idle_timer);
MRC_FIXED_ARRAY(mrc_clone_jobs, BPF_MAP_TYPE_PERCPU_ARRAY, 1, struct mrc_clone_job); /* old and new programs share it */

/* ---- created anew with each object (mrc_state.h) ------------------------------------------- */

MRC_ARRAY(mrc_dst_cache, BPF_MAP_TYPE_ARRAY, 0, struct mrc_dst_entry);
MRC_ARRAY(mrc_paces, BPF_MAP_TYPE_ARRAY, 0, struct mrc_pace);
MRC_ARRAY(mrc_plane_losses, BPF_MAP_TYPE_ARRAY, 0, struct mrc_plane_losses);
MRC_ARRAY(mrc_selections, BPF_MAP_TYPE_ARRAY, 0, struct mrc_selection);
/* Probes that traffic has paid for since the last refill. */
MRC_FIXED_ARRAY(mrc_paid, BPF_MAP_TYPE_ARRAY, 1, __u32);
MRC_FIXED_ARRAY(mrc_t1_recorded, BPF_MAP_TYPE_ARRAY, 1, __u32); /* T1 failures recorded; a count */
MRC_FIXED_ARRAY(mrc_timers, BPF_MAP_TYPE_ARRAY, 1, struct mrc_timer);
MRC_FIXED_ARRAY(mrc_classes, BPF_MAP_TYPE_ARRAY, 1, struct mrc_classes);
MRC_FIXED_ARRAY(mrc_flowlets, BPF_MAP_TYPE_ARRAY, FLOWLETS, struct mrc_flowlet);
/* Time of a flow's newest ACK; index: low bits of its hash. */
MRC_FIXED_ARRAY(mrc_acks, BPF_MAP_TYPE_ARRAY, ACK_FLOWS, __u64);
MRC_FIXED_ARRAY(mrc_copied, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u64); /* time up to which the CPU's copies are paid */
MRC_FIXED_ARRAY(mrc_sack_gaps, BPF_MAP_TYPE_ARRAY, SACK_GAPS, struct mrc_sack_gap);
MRC_FIXED_ARRAY(mrc_scratch, BPF_MAP_TYPE_PERCPU_ARRAY, 1, struct mrc_scratch);
MRC_FIXED_ARRAY(mrc_t1_failures, BPF_MAP_TYPE_ARRAY, T1_FAILURES, struct mrc_t1_failure);
MRC_FIXED_ARRAY(mrc_t0_verdicts, BPF_MAP_TYPE_ARRAY, T0_VERDICTS, struct mrc_t0_verdict);

/* Peers that the timer packet is to sweep. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, IDLE_QUEUE_PEERS);
	__type(value, struct mrc_idle_peer);
} mrc_idle_peers SEC(".maps");

/* ---- look-ups ------------------------------------------------------------------------------ */

static __always_inline struct mrc_node *node(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&mrc_node, &zero);
}

static __always_inline struct mrc_plane *plane_at(__u32 plane)
{
	return bpf_map_lookup_elem(&mrc_planes, &plane);
}

static __always_inline struct mrc_peer *peer_at(__u32 host_id)
{
	return bpf_map_lookup_elem(&mrc_peers, &host_id);
}

/* Return 1 if an EV is usable. */
static __always_inline int is_usable(const struct mrc_peer *peer, __u32 number)
{
	return peer->usable[(number / 64) & (MRC_EV_WORDS - 1)] >> (number % 64) & 1;
}

static __always_inline __u32 ev_index(__u32 host_id, __u32 ev)
{
	return host_id * settings.evs_per_peer + ev;
}

static __always_inline struct mrc_ev *ev_at(__u32 index)
{
	return bpf_map_lookup_elem(&mrc_evs, &index);
}

static __always_inline struct mrc_path_stats *path_stats_at(__u32 index)
{
	return bpf_map_lookup_elem(&mrc_path_stats, &index);
}

static __always_inline struct mrc_auth *auth_at(__u32 host_id)
{
	return bpf_map_lookup_elem(&mrc_auths, &host_id);
}

static __always_inline struct mrc_replay *replay_at(__u32 host_id)
{
	return bpf_map_lookup_elem(&mrc_replays, &host_id);
}

static __always_inline struct mrc_copies *copies_at(__u32 host_id)
{
	return bpf_map_lookup_elem(&mrc_copies, &host_id);
}

/* Return the number of the next critical packet to a peer (replicate.h). */
static __always_inline __u32 critical_number(__u32 host_id)
{
	const struct mrc_copies *copies = copies_at(host_id);
	const struct mrc_node *self = node();

	return copies && self ? self->generation + copies->sent : 0;
}

static __always_inline struct mrc_watch *watch_at(__u32 host_id)
{
	return bpf_map_lookup_elem(&mrc_watches, &host_id);
}

static __always_inline struct mrc_clock *tick_clock(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&mrc_clock, &zero);
}

static __always_inline void count_probe(__u32 kind)
{
	__u64 *count = bpf_map_lookup_elem(&mrc_probes_sent, &kind);

	if (count)
		(*count)++;
}

static __always_inline struct mrc_reports *reports_at(__u32 host_id)
{
	return bpf_map_lookup_elem(&mrc_reports, &host_id);
}

/* ---- time ---------------------------------------------------------------------------------- */

/* Reads the time, for all programs: CLOCK_MONOTONIC, or a clock that tests set.
 *
 * The loader decides which, by a setting that the verifier knows, so it removes the other branch.
 */

/* Tests write it (tests/packet/clock.py). */
volatile struct {
	__u64 now_ns;
	__u64 step_ns; /* added by each reading */
} test_clock SEC(".data.clock") = {};

static __always_inline __u64 test_time_ns(void)
{
	return __sync_fetch_and_add(&test_clock.now_ns, test_clock.step_ns);
}

/* Return the time in nanoseconds. */
static __always_inline __u64 now_ns(void)
{
	return settings.test_clock ? test_time_ns() : bpf_ktime_get_ns();
}

/* Return the time of the last timer interrupt: up to 10 ms ago, but cheaper. */
static __always_inline __u64 coarse_now_ns(void)
{
	return settings.test_clock ? test_time_ns() : bpf_ktime_get_coarse_ns();
}

/* ---- drop counters ------------------------------------------------------------------------- */

static __always_inline void count_drop(enum mrc_drop reason)
{
	__u32 index = reason;
	__u64 *count = bpf_map_lookup_elem(&mrc_drops, &index);

	if (count)
		(*count)++;
}

/* Set or clear this CPU's mark of a packet that a tc program drops: the kernel frees it on this CPU next, and tells
 * mrc_unsent. Packets that are consumed are not marked: none of them is at mrc0. Returns the mark before.
 */
static __always_inline __u64 mark_own_drop(__u64 is_own)
{
	__u32 index = MRC_DROP_NONE;
	__u64 *mark = bpf_map_lookup_elem(&mrc_drops, &index);
	__u64 before = mark ? *mark : 0;

	if (mark)
		*mark = is_own;
	return before;
}

static __always_inline int drop_skb(enum mrc_drop reason)
{
	count_drop(reason);
	mark_own_drop(1);
	return TC_ACT_SHOT;
}

static __always_inline int drop_xdp(enum mrc_drop reason)
{
	count_drop(reason);
	return XDP_DROP;
}

#endif
