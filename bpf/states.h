/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Changes the states of EVs, and computes which EVs are usable.
 *
 * A state changes by one compare-and-exchange. The CPU that succeeds writes the other fields and sends the event to the
 * daemon. The caller then has the peer's usable EVs computed again, once for all changes of a report. No CPU waits for
 * another.
 */
#ifndef MRC_STATES_H
#define MRC_STATES_H

#include "loss.h"
#include "wake_up.h"

/* Records failed T1s, so that the tick probes the EVs of other peers that share the links (neighbours.h).
 *
 * A uSID carrier names the switches in travel order. Two EVs cross the same NIC link, T0 and T1 if the first 64 bits of
 * their carriers are equal: the block and two uSIDs. With an SRH, or without source routing, the destination does not
 * tell the switches, and nothing is recorded.
 */

/* Least time between two records of the same T1: each neighbour's failure reports it again. */
#define T1_FAILURE_WINDOW_NS 1000000000ULL
/* Records in that time, at most: if many T1s fail towards some peers, their T0 has failed. */
#define T1_FAILURES_PER_WINDOW 4

static __always_inline struct mrc_t1_failure *t1_failure_at(__u32 i)
{
	i &= T1_FAILURES - 1;
	return bpf_map_lookup_elem(&mrc_t1_failures, &i);
}

/* Return 1 if an EV crosses the NIC link, T0 and T1 that a carrier begins with. */
static __always_inline int shares_links(const struct mrc_ev *ev, __u64 carrier)
{
	return ev->configured && !ev->srh_len && *(const __u64 *)ev->dst == carrier;
}

/* Record the T1 of a failed EV. */
__noinline int record_t1_failure(__u32 host_id, __u32 number)
{
	const struct mrc_ev *ev = ev_at(ev_index(host_id, number));
	__u64 carrier, now = now_ns();
	__u32 zero = 0, recent = 0, i, *made;
	struct mrc_t1_failure *failure;

	if (!ev || ev->srh_len || !settings.shared_links)
		return 0;
	carrier = *(const __u64 *)ev->dst;
	for (i = 0; i < T1_FAILURES; i++) {
		failure = t1_failure_at(i);
		if (!failure || aged(now, failure->ns, T1_FAILURE_WINDOW_NS))
			continue;
		recent++;
		if (failure->carrier == carrier)
			return 0;
	}
	if (recent >= T1_FAILURES_PER_WINDOW)
		return 0;
	made = bpf_map_lookup_elem(&mrc_t1_recorded, &zero);
	failure = made ? t1_failure_at(__sync_fetch_and_add(made, 1)) : 0;
	if (!failure)
		return 0;
	failure->carrier = carrier;
	failure->ns = now;
	failure->number = number;
	failure->host_id = host_id;
	__sync_fetch_and_add(&failure->made, 1); /* last: the tick begins when it sees this change */
	return 0;
}

#define REFRESH_TRIES 16 /* bounds the time for which one program follows changes by other CPUs */

/* Count a value in a histogram. */
static __always_inline void observe(__u32 histogram, __u64 value)
{
	__u32 index = histogram * MRC_BUCKETS + bucket_of(value);
	__u64 *count = bpf_map_lookup_elem(&mrc_histograms, &index);

	if (count)
		(*count)++;
}

/* Set an EV's deadline bit, and have the tick serve it at once. */
static __always_inline void set_deadline(__u32 host_id, __u32 number)
{
	struct mrc_watch *watch = watch_at(host_id);

	if (!watch)
		return;
	__sync_fetch_and_or(&watch->deadlines[(number / 64) & (MRC_EV_WORDS - 1)], 1ULL << (number % 64));
	watch->due_ns = 0;
}

/* Have the tick serve a peer at once. */
static __always_inline void serve_soon(__u32 host_id)
{
	struct mrc_watch *watch = watch_at(host_id);

	if (watch)
		watch->due_ns = 0;
}

/* Have the tick request a report from a peer at once. */
static __always_inline void request_report(__u32 host_id)
{
	struct mrc_watch *watch = watch_at(host_id);

	if (!watch)
		return;
	watch->announce = 1;
	watch->due_ns = 0;
	end_calm(host_id);
}

/* Return the planes that have a link at both ends, as bits. */
static __always_inline __u32 linked_planes(const struct mrc_node *node, const struct mrc_peer *peer)
{
	return node->plane_mask & peer->plane_mask;
}

/* Preference among EVs; lower is better. */
enum rank {
	RANK_GOOD = 1,
	RANK_UNKNOWN,
	RANK_LAGGING, /* or slow */
	RANK_LOSSY, /* failed, but packets arrive */
	RANK_SILENT, /* failed, and nothing arrives: the EV is silent */
	RANK_NEVER, /* denied, no such path, or no link */
};

static __always_inline int is_in_use(const struct mrc_ev *ev)
{
	return ev->state == MRC_EV_GOOD || ev->state == MRC_EV_SKIP;
}

/* Return 1 if an EV is left for a while because it is slow (apply_reply.h). */
static __always_inline int is_slow(const struct mrc_ev *ev)
{
	return ev->state == MRC_EV_SKIP && ev->skip_reason == MRC_REASON_SLOW;
}

/* Return an EV's rank. A global function: the verifier checks it once, not at each call. */
__noinline int rank_at(__u32 index, __u32 plane_mask)
{
	const struct mrc_path_stats *stats = path_stats_at(index);
	const struct mrc_ev *ev = ev_at(index);

	if (!ev || !stats || !ev->configured || !(plane_mask & (1u << (ev->plane & 31))))
		return RANK_NEVER;
	switch (ev->state) {
	case MRC_EV_GOOD:
		return RANK_GOOD;
	case MRC_EV_SKIP:
		return stats->lag_ns || is_slow(ev) ? RANK_LAGGING : RANK_GOOD;
	case MRC_EV_UNKNOWN:
		return RANK_UNKNOWN;
	case MRC_EV_ASSUMED_BAD:
		if (ev->reason == MRC_REASON_LOSS || ev->reason == MRC_REASON_GREY_LOSS)
			return stats->lost_bursts ? RANK_SILENT : RANK_LOSSY;
		return stats->good && !stats->lag_ns ? RANK_LOSSY : RANK_SILENT;
	default:
		return RANK_NEVER;
	}
}

/* Select an EV if it has the wanted rank. EVs come slot by slot over all planes, so that a few EVs are of different
 * planes; from another one on for each pair of hosts, so that the few EVs of all hosts are not those of one T1.
 */
static long select_usable(__u64 cursor, void *context)
{
	struct mrc_selection *c = *(struct mrc_selection **)context;
	__u32 at = c->first + cursor, plane = at % settings.planes;
	__u32 slot = at / settings.planes % settings.evs_per_plane, number = plane * settings.evs_per_plane + slot;

	if (rank_at(ev_index(c->host_id, number), c->plane_mask) != c->rank)
		return 0;
	if (c->count >= c->most)
		return 1;
	c->words[(number / 64) & (MRC_EV_WORDS - 1)] |= 1ULL << (number % 64);
	c->planes |= 1u << plane;
	c->count++;
	return 0;
}

/* Compute and store the usable EVs: the good ones, and while these are fewer than the floor, the best of the others. An
 * EV without arrivals is taken only if there is no other.
 */
__noinline int write_usable(struct mrc_peer *peer, __u32 host_id, __u32 plane_mask)
{
	struct mrc_selection *c = bpf_map_lookup_elem(&mrc_selections, &host_id);
	__u32 i;
	int rank;

	if (!peer || !c)
		return 0;
	__builtin_memset(c, 0, sizeof(*c));
	c->host_id = host_id;
	c->plane_mask = plane_mask;
	c->first = pair_offset(settings.host_id, host_id, settings.planes * peer->slots);
	c->most = MRC_MAX_EVS_PER_PEER;
	for (rank = RANK_GOOD; rank < RANK_NEVER; rank++) {
		if (rank != RANK_GOOD) {
			c->most = peer->floor ? peer->floor : 1;
			if (c->count >= c->most || (rank == RANK_SILENT && c->count))
				break;
		}
		c->rank = rank;
		bpf_loop(settings.planes * settings.evs_per_plane, select_usable, &c, 0);
	}
	/* At no moment may a plane be listed without a usable EV. */
	*(volatile __u32 *)&peer->usable_planes &= c->planes;
	for (i = 0; i < MRC_EV_WORDS; i++)
		if (peer->usable[i] != c->words[i])
			*(volatile __u64 *)&peer->usable[i] = c->words[i];
	*(volatile __u32 *)&peer->usable_planes = c->planes;
	return 0;
}

/* Compute the usable EVs after a change. If another CPU is computing them, it notices usable_changes and repeats. */
__noinline int refresh_usable(struct mrc_peer *peer, __u32 host_id)
{
	struct mrc_node *self = node();
	__u32 i, seen;

	if (!peer)
		return 0;
	serve_soon(host_id);
	__sync_fetch_and_add(&peer->usable_changes, 1);
	for (i = 0; self && i < REFRESH_TRIES; i++) {
		seen = *(volatile __u32 *)&peer->usable_changes;
		if (__sync_val_compare_and_swap(&peer->busy, 0, 1))
			return 0;
		write_usable(peer, host_id, linked_planes(self, peer));
		__sync_lock_test_and_set(&peer->busy, 0);
		if (*(volatile __u32 *)&peer->usable_changes == seen)
			break;
	}
	return 0;
}

static __always_inline __u32 count_bits(const __u64 *words)
{
	__u32 i, count = 0;

	for (i = 0; i < MRC_EV_WORDS; i++)
		count += __builtin_popcountll(words[i]);
	return count;
}

/* Return 1 if an EV can be withdrawn: it is not the last usable one of its plane, and the floor allows it. */
static __always_inline int can_spare(const struct mrc_peer *peer, __u32 number)
{
	__u32 first = number / settings.evs_per_plane * settings.evs_per_plane;

	return count_bits(peer->usable) > (peer->floor ?: 1) &&
	       next_slot(peer->usable, first, settings.evs_per_plane, number - first + 1) != number - first;
}

/* Withdraw a failed EV. This is faster than refresh_usable(), which runs only where few EVs are left. */
__noinline int drop_usable(struct mrc_peer *peer, __u32 host_id, __u32 number)
{
	__u32 seen;
	int spared;

	if (!peer)
		return 0;
	seen = __sync_fetch_and_add(&peer->usable_changes, 1) + 1;
	if (__sync_val_compare_and_swap(&peer->busy, 0, 1))
		return 0;
	spared = can_spare(peer, number);
	if (spared)
		__sync_fetch_and_and(&peer->usable[(number / 64) & (MRC_EV_WORDS - 1)], ~(1ULL << (number % 64)));
	__sync_lock_test_and_set(&peer->busy, 0);
	if (!spared || *(volatile __u32 *)&peer->usable_changes != seen)
		refresh_usable(peer, host_id);
	return 0;
}

/* Return the flaps after a failure: one more, less one for each hold_down_max_ms of service. */
static __always_inline __u8 flaps_after(const struct mrc_ev *ev, __u64 now)
{
	__u64 well = (now - ev->state_since_ns) / ((health.hold_down_max_ms ?: 1) * NS_PER_MS);
	__u32 left = ev->flaps > well ? ev->flaps - well : 0;

	return left < 255 ? left + 1 : 255;
}

/* Count a transition and send its event to the daemon. */
static __always_inline void report_transition(__u32 host_id, __u32 number, __u32 before, __u32 after, __u32 why,
					      __u64 now, const struct mrc_ev *ev, const struct mrc_path_stats *stats)
{
	__u32 index = after * MRC_REASON_MAX + (why & 0xff);
	struct mrc_changes *changes = bpf_map_lookup_elem(&mrc_transitions, &index);
	struct mrc_event *event;

	if (changes)
		changes->count++;
	event = bpf_ringbuf_reserve(&mrc_events, sizeof(*event), 0);
	if (!event) { /* the daemon finds the state in the tables */
		if (changes)
			changes->lost_events++;
		return;
	}
	event->ns = now;
	event->host_id = host_id;
	event->ev = number;
	event->before = before;
	event->after = after;
	event->reason = why;
	event->flaps = ev->flaps;
	event->icmp_type = why >> 16;
	event->icmp_code = why >> 8;
	event->reports = (why & 0xff) == MRC_REASON_HEALED ? stats->good : stats->lost_bursts;
	event->silent_ns = stats->arrived_ns ? now - stats->arrived_ns : 0;
	event->lost_packets = stats->window_lost;
	event->sent_packets = stats->window_tx;
	bpf_ringbuf_submit(event, 0);
}

/* MRC_REASON_ICMP_ERROR with the error's type and code above it. */
#define ICMP_REASON(type, code) ((type) << 16 | (code) << 8 | MRC_REASON_ICMP_ERROR)

/* Change the state of an EV, if it is `before`. `why` is an enum mrc_reason or ICMP_REASON(). Returns 1 if the state
 * changed: then the caller must have the usable EVs computed again, except after changes between GOOD and congested
 * SKIP, which mrc_push handles.
 */
__noinline int transit(__u32 host_id, __u32 number, __u32 before, __u32 after, __u32 why)
{
	__u32 index = ev_index(host_id, number), reason = why & 0xff;
	struct mrc_path_stats *stats = path_stats_at(index);
	struct mrc_ev *ev = ev_at(index);
	__u64 now = now_ns();

	if (!ev || !stats || before == after ||
	    __sync_val_compare_and_swap(&ev->state, before, after) != before)
		return 0;
	if (before == MRC_EV_SKIP && after == MRC_EV_GOOD)
		return 1;
	if (before == MRC_EV_GOOD && after == MRC_EV_SKIP) {
		ev->skip_reason = reason;
		__sync_fetch_and_add(&stats->skips, 1);
		return 1;
	}
	ev->reason = reason;
	if (after == MRC_EV_ASSUMED_BAD) {
		if (reason != MRC_REASON_LINK_DOWN && reason != MRC_REASON_PEER_LINK_DOWN && stats->arrived_ns) {
			observe(MRC_HISTOGRAM_DETECTION, now - stats->arrived_ns);
			observe(MRC_HISTOGRAM_AFTER_GOOD, (__u32)ev->tx_packets - stats->after_good);
		}
		ev->flaps = flaps_after(ev, now);
		stats->good = stats->long_sent = 0;
		stats->loss_ns = now;
	}
	if (after == MRC_EV_ASSUMED_BAD || after == MRC_EV_UNKNOWN) {
		stats->backoff = 0;
		stats->probe_after_ns = 0;
	}
	if (before == MRC_EV_ASSUMED_BAD && after == MRC_EV_GOOD)
		observe(MRC_HISTOGRAM_REINSTATEMENT, now - ev->state_since_ns);
	ev->state_since_ns = now;
	report_transition(host_id, number, before, after, why, now, ev, stats);
	begin_loss_window(stats);
	stats->lag_ns = 0;
	set_deadline(host_id, number);
	if (after == MRC_EV_ASSUMED_BAD && (reason == MRC_REASON_OVERDUE || reason == MRC_REASON_ICMP_ERROR))
		record_t1_failure(host_id, number);
	return 1;
}

#endif
