/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Judges the EVs of all peers that cross the same T1 as a failed EV (states.h), by a few probes.
 *
 * A dead T1 takes one EV of every peer with it. A dead link of a T1 takes one EV of every peer under one T0. So the
 * tick walks over the peers twice. The first walk probes one peer under each T0: on its EV through that T1, and on
 * another EV of the plane. The second walk begins when the replies are due. If the first EV did not answer and the
 * other did, it leaves the EVs of all peers under that T0. If neither answered, nothing is known of the T0, and each of
 * its peers is probed. So is a peer whose packets have arrived on the EV since the failure: a switch may lose
 * the packets to some hosts only.
 */
#ifndef MRC_NEIGHBOURS_H
#define MRC_NEIGHBOURS_H

#include "maps.h"
#include "send_probe.h"

#define T0_PROBES 3 /* on the EV of the first peer under a T0; three, because one may be lost */
/* Of one tick: longer than TICK_MAX_NS, but once per T1 and second, and then for all peers at once. */
#define NEIGHBOURS_MAX_NS 4000000ULL

#define TICK_RESUME_NS 1000000ULL /* to the next tick, if this one ran out of time */
/* A reply is missing after this time, or after four round trips if that is longer. */
#define REPLY_TIMEOUT_MIN_NS 2000000ULL

enum t0_state {
	T0_OPEN = 0, /* not judged yet */
	T0_UNKNOWN,
	T0_ALIVE,
	T0_DEAD,
};

/* Return the uSID of the T0 at the far end of an EV. In the carrier it follows the block and the uSIDs of the near T0
 * and the T1.
 */
static __always_inline __u16 far_t0(const struct mrc_ev *ev)
{
	return *(const __u16 *)(ev->dst + sizeof(__u64));
}

static __always_inline struct mrc_t0_verdict *t0_verdict_at(__u16 t0)
{
	__u32 index = bpf_ntohs(t0) & (T0_VERDICTS - 1);

	return bpf_map_lookup_elem(&mrc_t0_verdicts, &index);
}

static __always_inline __u32 walk_id(const struct mrc_t1_failure *failure)
{
	return (__u32)failure->ns | 1;
}

/* Return the next EV of the same plane that is usable, or NO_SLOT. It crosses another T1. */
static __always_inline __u32 other_t1_ev(const struct mrc_peer *peer, __u32 number)
{
	__u32 at = number % settings.evs_per_plane;
	__u32 slot = usable_slot(peer, number / settings.evs_per_plane, at + 1);

	return slot == NO_SLOT || slot == at ? NO_SLOT : number - at + slot;
}

static __always_inline __u32 probe_seq_of(__u32 host_id, __u32 number)
{
	const struct mrc_ev *ev = ev_at(ev_index(host_id, number));

	return ev ? ev->probe_seq : 0;
}

/* Return how many probes on an EV, up to sequence number `seq`, were sent after the newest answered one. */
static __always_inline __s32 unanswered_on(__u32 host_id, __u32 number, __u32 seq)
{
	const struct mrc_path_stats *stats = path_stats_at(ev_index(host_id, number));

	return stats ? (__s32)(seq - stats->reply_seq) : 0;
}

/* Return 1 if packets arrived on an EV after a failure, by a report. */
static __always_inline int has_arrivals_since(__u32 host_id, __u32 number, const struct mrc_t1_failure *failure)
{
	const struct mrc_path_stats *stats = path_stats_at(ev_index(host_id, number));

	return stats && aged(stats->arrived_ns, failure->ns, 1);
}

/* Note which probes were sent to the first peer under a T0. If some of them were not due, because the peer is being
 * probed already, the next peer under the T0 takes its place.
 */
static __always_inline void note_probes(struct mrc_t0_verdict *entry, __u32 sent)
{
	if (sent != T0_PROBES + 1) {
		entry->walk = 0;
		return;
	}
	entry->seq = probe_seq_of(entry->host_id, entry->number);
	entry->other_seq = probe_seq_of(entry->host_id, entry->other);
}

/* Return the state of a T0, by the answers of the peer that was probed, and by what arrived there. */
static __always_inline __u32 judge_t0(const struct mrc_t1_failure *failure, const struct mrc_t0_verdict *entry)
{
	__s32 missing = unanswered_on(entry->host_id, entry->number, entry->seq);

	if (unanswered_on(entry->host_id, entry->other, entry->other_seq) > 0)
		return T0_UNKNOWN;
	if (missing <= 0)
		return T0_ALIVE;
	/* Arrivals do not prove the T0 alive: those packets may have been sent before the failure. */
	return missing >= T0_PROBES && !has_arrivals_since(entry->host_id, entry->number, failure) ? T0_DEAD : T0_UNKNOWN;
}

/* Return the EV of a peer that crosses the failed T1, if it is in use, or NO_SLOT. Most peers have it at the same
 * number.
 */
__noinline __u32 shared_ev(__u32 host_id, __u32 failure_number)
{
	const struct mrc_t1_failure *failure = t1_failure_at(failure_number);
	__u32 number, slot, first;
	const struct mrc_ev *ev;

	if (!failure)
		return NO_SLOT;
	first = failure->number / settings.evs_per_plane * settings.evs_per_plane;
	for (slot = 0; slot <= settings.evs_per_plane && slot <= MRC_MAX_EVS_PER_PEER; slot++) {
		number = slot ? first + slot - 1 : failure->number;
		ev = ev_at(ev_index(host_id, number));
		if (ev && shares_links(ev, failure->carrier))
			return ev->state == MRC_EV_GOOD || ev->state == MRC_EV_SKIP ? number : NO_SLOT;
	}
	return NO_SLOT;
}

/* Return the time after which a reply is missing. */
static __always_inline __u64 reply_timeout_ns(const struct mrc_reports *reports)
{
	return 4 * reports->rtt_ns > REPLY_TIMEOUT_MIN_NS ? 4 * reports->rtt_ns : REPLY_TIMEOUT_MIN_NS;
}

/* Return the failure in hand. */
static __always_inline struct mrc_t1_failure *current_failure(void)
{
	const struct mrc_clock *clock = tick_clock();

	return clock ? t1_failure_at(clock->at) : 0;
}

/* Probe the EV of a neighbour, and last another EV of its plane. */
static long probe_neighbour(__u64 i, void *context)
{
	const struct mrc_t1_failure *failure = current_failure();
	struct sweep *s = context;

	if (!failure)
		return 1;
	s->first = i < T0_PROBES ? failure->visited : failure->other;
	sweep_ev(0, s);
	return 0;
}

/* Return how many probes a peer needs. In the first walk: those of the first peer under each T0 that can be judged by
 * them. In the second walk: one where nothing is known of the T0, or packets arrive nevertheless; and the EV is left where
 * the T0's link is dead.
 */
static __always_inline __u32 probes_needed(struct mrc_t1_failure *failure, struct mrc_peer *peer, __u32 host_id,
					   const struct mrc_ev *ev)
{
	__u32 state = ev->state, other;
	__u16 t0 = far_t0(ev);
	struct mrc_t0_verdict *entry = t0_verdict_at(t0);
	int is_known = entry && entry->walk == walk_id(failure) && entry->t0 == t0;

	if (!entry)
		return 0;
	if (!failure->is_judging) {
		other = is_known ? NO_SLOT : other_t1_ev(peer, failure->visited);
		if (other == NO_SLOT)
			return 0;
		failure->other = other;
		entry->walk = walk_id(failure);
		entry->t0 = t0;
		entry->host_id = host_id;
		entry->number = failure->visited;
		entry->other = other;
		entry->verdict = T0_OPEN;
		return T0_PROBES + 1;
	}
	if (!is_known)
		return 1;
	if (entry->verdict == T0_OPEN)
		entry->verdict = judge_t0(failure, entry);
	if (entry->verdict == T0_DEAD && has_arrivals_since(host_id, failure->visited, failure))
		return 1;
	if (entry->verdict == T0_DEAD &&
	    transit(host_id, failure->visited, state, MRC_EV_ASSUMED_BAD, MRC_REASON_OVERDUE))
		drop_usable(peer, host_id, failure->visited);
	return entry->verdict == T0_UNKNOWN;
}

/* Visit the next peer that may share the failed link. In the second walk, have the tick look soon for the answers. */
static long visit_neighbour(__u64 i, void *context)
{
	struct sweep *s = context;
	struct mrc_t1_failure *failure = current_failure();
	struct mrc_clock *clock = tick_clock();
	__u32 host_id, probes, before = s->sent;
	struct mrc_watch *watch;
	struct mrc_t0_verdict *entry;
	struct mrc_peer *peer;
	struct mrc_ev *ev;
	__u64 soon_ns;

	(void)i;
	if (!clock || !failure)
		return 1;
	clock->now_ns = now_ns();
	if (!failure->left || aged(clock->now_ns, clock->began_ns, NEIGHBOURS_MAX_NS))
		return 1;
	host_id = failure->next < settings.peers ? failure->next : 0;
	failure->next = host_id + 1;
	failure->left--;
	peer = peer_at(host_id);
	watch = watch_at(host_id);
	if (!peer || !watch || !peer->configured || peer->status & MRC_STATUS_DETACHED || watch->silent)
		return 0;
	failure->visited = shared_ev(host_id, clock->at);
	ev = ev_at(ev_index(host_id, failure->visited));
	if (failure->visited >= settings.evs_per_peer || !ev)
		return 0;
	__builtin_memset(&s->request, 0, sizeof(s->request));
	s->request.host_id = host_id;
	s->request.kind = MRC_PROBE_SUSPICION;
	probes = probes_needed(failure, peer, host_id, ev);
	if (!probes)
		return 0;
	bpf_loop(probes, probe_neighbour, s, 0);
	entry = failure->is_judging ? 0 : t0_verdict_at(far_t0(ev));
	if (entry)
		note_probes(entry, s->sent - before);
	soon_ns = clock->now_ns + REPLY_TIMEOUT_MIN_NS;
	if (failure->is_judging && (__s64)(watch->due_ns - soon_ns) > 0)
		watch->due_ns = soon_ns;
	return 0;
}

static __always_inline void begin_walk(struct mrc_t1_failure *failure, __u32 is_judging)
{
	failure->is_judging = is_judging;
	failure->next = failure->host_id + 1;
	failure->left = settings.peers - 1;
}

/* Visit the neighbours of failed EVs. The budget does not limit that, but record_t1_failure() does: once per T1 and second. */
static __always_inline void visit_neighbours(struct sweep *sweep, struct mrc_clock *clock)
{
	const struct mrc_reports *reports;
	__u32 i;

	if (sweep->node->status & MRC_STATUS_DETACHED)
		return;
	for (i = 0; i < T1_FAILURES; i++) {
		struct mrc_t1_failure *failure = t1_failure_at(i);

		if (!failure)
			continue;
		if (failure->begun != *(volatile __u32 *)&failure->made) {
			failure->begun = *(volatile __u32 *)&failure->made;
			begin_walk(failure, 0);
		}
		if (!failure->left)
			continue;
		clock->wait_ns = TICK_RESUME_NS;
		reports = reports_at(failure->host_id);
		if (failure->is_judging && reports &&
		    !aged(clock->began_ns, failure->probed_ns, reply_timeout_ns(reports)))
			break;
		clock->at = i;
		sweep->sent = 0;
		bpf_loop(settings.peers, visit_neighbour, sweep, 0);
		__sync_fetch_and_add(&clock->budget, -(__s64)sweep->sent);
		sweep->sent = 0;
		sweep->first = 0;
		if (!failure->left && !failure->is_judging) {
			failure->probed_ns = now_ns();
			begin_walk(failure, 1);
		}
		break; /* one failure at a time: the T0 verdicts belong to one walk */
	}
}

#endif
