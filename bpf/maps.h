/* The tables, and the settings that the loader fixes. Sizes of 1 are set at load. */
#ifndef MRC_MAPS_H
#define MRC_MAPS_H

#include "mrc_abi.h"

const volatile struct mrc_settings settings;

#define MRC_ARRAY(name, kind, flags, value_type)                                                   \
	struct {                                                                                   \
		__uint(type, kind);                                                                \
		__uint(map_flags, flags);                                                          \
		__uint(max_entries, 1);                                                            \
		__type(key, __u32);                                                                \
		__type(value, value_type);                                                         \
	} name SEC(".maps")

MRC_ARRAY(mrc_evs, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_ev);
MRC_ARRAY(mrc_path_stats, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_path_stats);
MRC_ARRAY(mrc_rxs, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_rx);
MRC_ARRAY(mrc_srhs, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_srh);
MRC_ARRAY(mrc_peers, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_peer);
MRC_ARRAY(mrc_reports, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_reports);
MRC_ARRAY(mrc_watches, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_watch);
MRC_ARRAY(mrc_clock, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_clock);
MRC_ARRAY(mrc_probes_sent, BPF_MAP_TYPE_PERCPU_ARRAY, 0, __u64);
MRC_ARRAY(mrc_unsent_packets, BPF_MAP_TYPE_PERCPU_ARRAY, 0, __u64);
MRC_ARRAY(mrc_planes, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_plane);
MRC_ARRAY(mrc_node, BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE, struct mrc_node);
MRC_ARRAY(mrc_dst_cache, BPF_MAP_TYPE_ARRAY, 0, struct mrc_dst_entry);
MRC_ARRAY(mrc_rotations, BPF_MAP_TYPE_PERCPU_ARRAY, 0, struct mrc_rotation);
MRC_ARRAY(mrc_drops, BPF_MAP_TYPE_PERCPU_ARRAY, 0, __u64);
MRC_ARRAY(mrc_histograms, BPF_MAP_TYPE_PERCPU_ARRAY, 0, __u64);
MRC_ARRAY(mrc_transitions, BPF_MAP_TYPE_PERCPU_ARRAY, 0, struct mrc_changes);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} mrc_events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct mrc_prefix);
	__type(value, __u32);
} mrc_prefixes SEC(".maps");

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

/* Whether an EV is one of the usable ones. */
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

#endif
