/* Judges the EVs that cross the same switches as one that was found dead (share.h), by a few probes.
 *
 * A T1 that died takes an EV of every peer with it, or one link of it an EV of all peers under one T0. So the tick walks
 * over the peers twice. First it probes, of the peers under each T0, one: on its EV by that T1, and on another EV of that
 * plane. When the replies should be there, it leaves the EVs of all peers under a T0 where the first was not
 * answered and the second was. Where neither was, nobody knows, and each peer is probed by itself.
 */
#ifndef MRC_NEIGHBOURS_H
#define MRC_NEIGHBOURS_H

#include "sweep.h"

#define T0_PROBES 3 /* on the EV of the first peer under a T0: one may be lost */
#define NEIGHBOURS_MAX_NS 4000000ULL /* of a tick: once per T1 and second, and then all peers at once */

#define TICK_RESUME_NS 1000000ULL /* between two ticks, if one had no time for all that was due */
#define REPLY_TIMEOUT_MIN_NS 2000000ULL /* a reply is missing after this, or after four round trips */

enum t0_state {
	T0_OPEN = 0, /* not judged yet */
	T0_UNKNOWN,
	T0_ALIVE,
	T0_DEAD,
};

/* The T0 at the far end of an EV, as the carrier has it behind the block and the T0 and T1 that are shared. */
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

/* An EV of the same plane by another T1. */
static __always_inline __u32 next_t1_ev(__u32 number)
{
	__u32 slot = number % settings.evs_per_plane;

	return number - slot + (slot + 1) % settings.evs_per_plane;
}

static __always_inline __u32 probe_seq_of(__u32 host_id, __u32 number)
{
	const struct mrc_ev *ev = ev_at(ev_index(host_id, number));

	return ev ? ev->probe_seq : 0;
}

/* Probes on an EV, up to the one with this sequence, since the newest that was answered. */
static __always_inline __s32 unanswered_on(__u32 host_id, __u32 number, __u32 seq)
{
	const struct mrc_path_stats *stats = path_stats_at(ev_index(host_id, number));

	return stats ? (__s32)(seq - stats->reply_seq) : 0;
}

/* The probes on the first peer under a T0 are sent. */
static __always_inline void note_probes(struct mrc_t0_verdict *f, __u32 sent)
{
	f->seq = probe_seq_of(f->host_id, f->number);
	f->other_seq = probe_seq_of(f->host_id, next_t1_ev(f->number));
	f->verdict = sent == T0_PROBES + 1 && next_t1_ev(f->number) != f->number ? T0_OPEN : T0_UNKNOWN;
}

/* What the answers of the peer that was probed tell. */
static __always_inline __u32 judge_t0(const struct mrc_t0_verdict *f)
{
	__s32 missing = unanswered_on(f->host_id, f->number, f->seq);

	if (unanswered_on(f->host_id, next_t1_ev(f->number), f->other_seq) > 0)
		return T0_UNKNOWN;
	return missing >= T0_PROBES ? T0_DEAD : missing > 0 ? T0_UNKNOWN : T0_ALIVE;
}

/* The EV of a peer that crosses the same T1 as the one that failed, or NO_SLOT. Most peers have it at the same number. */
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

/* How long a reply may take. */
static __always_inline __u64 reply_timeout_ns(const struct mrc_reports *reports)
{
	return 4 * reports->rtt_ns > REPLY_TIMEOUT_MIN_NS ? 4 * reports->rtt_ns : REPLY_TIMEOUT_MIN_NS;
}

/* The failure whose neighbours are being visited. */
static __always_inline struct mrc_t1_failure *current_failure(void)
{
	const struct mrc_clock *clock = tick_clock();

	return clock ? t1_failure_at(clock->at) : 0;
}

/* Probe an EV of a neighbour, and at last another one of that plane. */
static long probe_neighbour(__u64 i, void *context)
{
	const struct mrc_t1_failure *failure = current_failure();
	struct sweep *s = context;

	if (!failure)
		return 1;
	s->first = i < T0_PROBES ? failure->visited : next_t1_ev(failure->visited);
	sweep_ev(0, s);
	return 0;
}

/* First, probe the peers that are to tell; then leave the EV of a peer, or probe it where nothing is known of its T0. */
static __always_inline __u32 probes_needed(const struct mrc_t1_failure *failure, struct mrc_peer *peer, __u32 host_id,
					   const struct mrc_ev *ev)
{
	__u32 state = ev->state;
	__u16 t0 = far_t0(ev);
	struct mrc_t0_verdict *f = t0_verdict_at(t0);
	int is_known = f && f->walk == walk_id(failure) && f->t0 == t0;

	if (!f)
		return 0;
	if (!failure->is_judging) {
		if (is_known)
			return 0;
		f->walk = walk_id(failure);
		f->t0 = t0;
		f->host_id = host_id;
		f->number = failure->visited;
		f->verdict = T0_OPEN;
		return T0_PROBES + 1;
	}
	if (!is_known)
		return 1;
	if (f->verdict == T0_OPEN)
		f->verdict = judge_t0(f);
	if (f->verdict == T0_DEAD && transit(host_id, failure->visited, state, MRC_EV_ASSUMED_BAD, MRC_REASON_OVERDUE))
		drop_usable(peer, host_id, failure->visited);
	return f->verdict == T0_UNKNOWN;
}

/* Visit the next peer that may share the fate of an EV that failed; look soon whether its probes were answered. */
static long visit_neighbour(__u64 i, void *context)
{
	struct sweep *s = context;
	struct mrc_t1_failure *failure = current_failure();
	struct mrc_clock *clock = tick_clock();
	__u32 host_id, probes, before = s->sent;
	struct mrc_watch *watch;
	struct mrc_t0_verdict *f;
	struct mrc_peer *peer;
	struct mrc_ev *ev;
	__u64 soon_ns;

	(void)i;
	if (!clock || !failure)
		return 1;
	clock->now_ns = bpf_ktime_get_ns();
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
	f = failure->is_judging ? 0 : t0_verdict_at(far_t0(ev));
	if (f)
		note_probes(f, s->sent - before);
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

/* Judge the neighbours of EVs that were found dead, whatever the budget says: once per T1 and second (share.h). */
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
		if (failure->is_judging && reports && !aged(clock->began_ns, failure->probed_ns, reply_timeout_ns(reports)))
			break;
		clock->at = i;
		sweep->sent = 0;
		bpf_loop(settings.peers, visit_neighbour, sweep, 0);
		__sync_fetch_and_add(&clock->budget, -(__s64)sweep->sent);
		sweep->sent = 0;
		sweep->first = 0;
		if (!failure->left && !failure->is_judging) {
			failure->probed_ns = bpf_ktime_get_ns();
			begin_walk(failure, 1);
		}
		break; /* the others in the ticks to come: T0s are judged for one failure at a time */
	}
}

#endif
