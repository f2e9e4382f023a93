/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Serves the deadlines of all peers: sweeps, deadlines of EVs (ev_deadlines.h), links that went down, and
 * silent peers.
 *
 * Each peer has a time at which it is due (mrc_watch.due_ns), and a bit for each EV that has a deadline. A tick serves
 * the peers that are due, from a cursor on, until its time is over; the next tick continues there. The daemon runs the
 * tick (mrc_tick). While the daemon is silent, the timer packet runs it (timer_packet.h).
 */
#ifndef MRC_TICK_H
#define MRC_TICK_H

#include "maps.h"
#include "ev_deadlines.h"
#include "piggyback.h"

#define TICK_PEERS 1024 /* peers per tick, at most: bounds a tick in which no peer is due */
#define TICK_MAX_NS 200000ULL /* a tick serves no further peer after this time: it delays packets on its CPU */
#define DAEMON_SILENT_NS 50000000ULL /* a daemon that has run no tick for so long is silent: two ticks are missing */
#define CALM_TICK_NS 250000000ULL /* at most, while nothing is active: end_calm() wakes the daemon before */
#define UNCONFIGURED_RECHECK_NS 1000000000ULL /* a row without a peer is looked at again after this time */
/* EVs in a sweep of a peer with overdue answers: a sample is enough to tell whether it is alive. */
#define DOUBT_SWEEP_EVS 64

/* Return 1 if an answer of the peer is overdue. */
static __always_inline int is_in_doubt(const struct tick *t, const struct mrc_reports *reports)
{
	__u64 timeout_ns = reply_timeout_ns(reports);

	if (t->detached || t->watch->silent)
		return 0;
	return t->watch->timed_out ||
	       (t->watch->unanswered && aged(t->clock->now_ns, t->watch->swept_ns, timeout_ns)) ||
	       (reports->report_seq != reports->applied_seq &&
		aged(t->clock->now_ns, reports->requested_ns, timeout_ns));
}

/* Mark the peer silent if enough sweeps in a row had no reply. They must span some time, because this host may have
 * stood still.
 */
static __always_inline void judge_silence(const struct tick *t)
{
	if (t->watch->unanswered >= health.unanswered &&
	    (__u32)(t->clock->now_ns / NS_PER_MS) - t->watch->unanswered_ms >= 2 * health.probe_interval_us / 1000)
		t->watch->silent = 1;
}

/* Return 1 if the answer to a probe is overdue. Only a report can tell whether the probe arrived. */
static __always_inline int is_probe_overdue(const struct mrc_watch *watch, __u64 now, __u64 timeout_ns)
{
	return watch->pending && !watch->silent &&
	       (__u32)(now / NS_PER_US) - watch->probed_us >= timeout_ns / NS_PER_US;
}

/* Probe the peer's next EVs in turn. */
static __always_inline void sweep_in_turn(struct tick *t, __u32 kind, __u32 evs)
{
	struct mrc_watch *watch = t->watch;
	__u64 early_ns = 0;

	t->sweep.request.kind = kind;
	/* Peers begin at different EVs, and their first sweeps count as older by a random time. So every T1 is probed
	 * all the time.
	 */
	if (!watch->swept_ns) {
		watch->next = t->sweep.request.host_id * evs % settings.evs_per_peer;
		early_ns = bpf_get_prandom_u32() % (t->sweep.node->idle_us ?: 1) * NS_PER_US;
	}
	t->sweep.first = watch->next < settings.evs_per_peer ? watch->next : 0;
	t->sweep.by_turns = 1;
	bpf_loop(evs, sweep_ev, &t->sweep, 0);
	t->sweep.first = t->sweep.by_turns = 0;
	watch->next = (watch->next + evs) % settings.evs_per_peer;
	watch->swept_ns = t->clock->now_ns - early_ns;
	if (!t->sweep.sent || t->detached) {
		charge_budget(t);
		return;
	}
	charge_budget(t);
	if (!watch->unanswered)
		watch->unanswered_ms = t->clock->now_ns / NS_PER_MS;
	if (watch->unanswered < 0xff)
		watch->unanswered++;
}

/* Sweep a peer if answers are overdue or a sweep is due, and request a report if it was probed. */
static __always_inline void probe_peer(struct tick *t, struct mrc_reports *reports)
{
	__u64 retry_interval_ns = health.probe_interval_us * NS_PER_US / 4;
	__u64 idle_ns = t->sweep.node->idle_us * NS_PER_US;
	__u32 evs = settings.evs_per_peer, missing = reports->report_seq - reports->applied_seq;
	__u64 timeout_ns = reply_timeout_ns(reports), doubt_ns;

	missing -= missing > 0; /* the first one may be late */
	doubt_ns = retry_interval_ns << (missing < 6 ? missing : 6);
	if (is_in_doubt(t, reports)) {
		judge_silence(t);
		/* Less and less often, where the peer answers sweeps but not reports. */
		if (t->watch->timed_out || aged(t->clock->now_ns, t->watch->swept_ns, doubt_ns)) {
			t->watch->timed_out = 0;
			if (t->clock->budget > -(__s64)health.idle_probes)
				sweep_in_turn(t, MRC_PROBE_SUSPICION, evs < DOUBT_SWEEP_EVS ? evs : DOUBT_SWEEP_EVS);
		}
		t->clock->active_ns = t->clock->now_ns;
		set_peer_due_soon(t, t->clock->now_ns + retry_interval_ns);
	} else if (is_probe_overdue(t->watch, t->clock->now_ns, timeout_ns)) {
		t->watch->pending = 0;
		t->watch->announce = report_parts();
	} else if (t->watch->swept_ns && !aged(t->clock->now_ns, t->watch->swept_ns, idle_ns)) {
		set_peer_due(t, t->watch->swept_ns + idle_ns);
	} else if (t->clock->budget > 0) {
		if (t->sweep.node->idle_evs && t->sweep.node->idle_evs < evs)
			evs = t->sweep.node->idle_evs;
		sweep_in_turn(t, MRC_PROBE_IDLE, evs);
		set_peer_due(t, t->clock->now_ns + idle_ns);
	} else {
		set_peer_due(t, t->clock->now_ns + TICK_NS);
	}
	/* Look again when the answers are due. This does not hurry the tick. */
	if (!t->detached && !t->watch->silent &&
	    (t->watch->pending || t->watch->unanswered || reports->report_seq != reports->applied_seq))
		set_peer_due(t, t->clock->now_ns + timeout_ns);
	if (!(t->probed | t->watch->announce))
		return;
	if (!t->probed)
		t->sweep.request.kind = MRC_PROBE_SUSPICION;
	if (!begin_sweep_report(&t->sweep, t->peer, reports)) {
		if (t->watch->announce)
			set_peer_due_soon(t, t->clock->now_ns + retry_interval_ns);
		return;
	}
	if (t->watch->announce && --t->watch->announce)
		set_peer_due_soon(t, t->clock->now_ns + timeout_ns); /* for the next part of the EVs */
	if (!resize(t, t->sweep.request.counts) && send_request(t->sweep.skb, &t->sweep.request))
		t->sweep.sent += report_cost(t->sweep.request.counts);
	charge_budget(t);
	t->sweep.request.counts = 0;
	resize(t, 0);
}

/* Serve a peer that is due: its links, its EVs' deadlines, its probes. */
static __always_inline void serve(struct tick *t, struct mrc_reports *reports)
{
	struct mrc_peer *peer = t->peer;
	struct mrc_watch *watch = t->watch;
	__u32 status = t->sweep.node->status | peer->status, host_id = t->sweep.request.host_id;

	__builtin_memset(&t->sweep.request, 0, sizeof(t->sweep.request));
	t->sweep.request.host_id = host_id;
	t->sweep.sent = 0;
	t->sweep.first = 0;
	t->changed = t->probed = 0;
	t->detached = !!(status & MRC_STATUS_DETACHED);
	t->clock->linked = linked_planes(t->sweep.node, peer) & ((1u << settings.planes) - 1);
	if (watch->linked != t->clock->linked) {
		watch->linked = t->clock->linked;
		bpf_loop(settings.evs_per_peer, leave_unlinked_ev, t, 0);
	}
	if (watch->deadlines[0] | watch->deadlines[1] | watch->deadlines[2] | watch->deadlines[3]) {
		t->clock->active_ns = t->clock->now_ns;
		t->clock->at = 0;
		bpf_loop(settings.evs_per_peer, serve_next_ev, t, 0);
	}
	/* If it was heard again, its EVs can be probed in the next tick. A branch here would double what is verified. */
	t->clock->due_ns -= watch->silent / MRC_HEARD_AGAIN * UNCONFIGURED_RECHECK_NS;
	watch->silent %= MRC_HEARD_AGAIN;
	probe_peer(t, reports);
	if (t->changed)
		refresh_usable(peer, host_id);
}
_Static_assert(MRC_EV_WORDS == 4, "serve");

/* Serve the peer at the cursor, if it is due. */
static long serve_next(__u64 i, void *context)
{
	struct tick *t = context;
	__u32 host_id = t->clock->cursor;
	__u64 provisional_ns;
	struct mrc_reports *reports;

	(void)i;
	t->clock->now_ns = now_ns();
	if (aged(t->clock->now_ns, t->clock->began_ns, TICK_MAX_NS)) {
		t->clock->wait_ns = TICK_RESUME_NS;
		return 1;
	}
	if (host_id >= settings.peers)
		host_id = 0;
	t->clock->cursor = host_id + 1;
	t->watch = watch_at(host_id);
	t->peer = peer_at(host_id);
	reports = reports_at(host_id);
	if (!t->watch || !t->peer || !reports)
		return 1;
	if (aged(t->clock->now_ns, t->watch->due_ns, 0)) {
		provisional_ns = t->clock->now_ns + UNCONFIGURED_RECHECK_NS;
		t->clock->due_ns = provisional_ns;
		t->watch->due_ns = provisional_ns;
		t->sweep.request.host_id = host_id;
		if (t->peer->configured)
			serve(t, reports);
		/* If due_ns has changed, another CPU wants the peer served at once. */
		__sync_val_compare_and_swap(&t->watch->due_ns, provisional_ns, t->clock->due_ns);
	}
	return 0;
}

/* Refill the host's budget. Where traffic pays for more probes than an idle host may send, the budget grows by a third
 * of what traffic paid, or by half of an idle host's share, whichever is less.
 */
static __always_inline void refill(struct mrc_clock *clock, __u64 now)
{
	__u64 past = now - clock->refilled_ns, most = health.idle_probes / 2 + 1, more;
	__u64 spent, extra;
	__u32 *sum = paid_probes();

	more = (past < NS_PER_S ? past : NS_PER_S) * health.idle_probes / NS_PER_S;
	if (!more || !sum)
		return; /* keep the fraction */
	spent = __sync_lock_test_and_set(sum, 0);
	if (spent)
		clock->active_ns = now;
	clock->refilled_ns = now;
	extra = spent / 3 < more / 2 ? spent / 3 : more / 2;
	/* The lower bound forgives what suspicion has spent beyond a second's worth. */
	refill_budget(&clock->budget, more > spent + extra ? more - spent : extra, -(__s64)health.idle_probes, most);
}

/* Return the time between ticks in calm weather: a whole number of them makes the time between two sweeps of a peer. */
static __always_inline __u64 calm_wait_ns(__u64 idle_ns)
{
	return idle_ns < TICK_NS ? TICK_NS : idle_ns / ((idle_ns + CALM_TICK_NS - 1) / CALM_TICK_NS);
}

/* Run one tick and return the time to the next in ns. `node`, `clock` and the packet are set; the packet has outer
 * headers and room for a probe.
 */
static __always_inline __u64 tick(struct tick *t)
{
	struct mrc_clock *clock = t->clock;
	__u32 peers = settings.peers < TICK_PEERS ? settings.peers : TICK_PEERS;
	__u64 wait_ns;

	if (__sync_lock_test_and_set(&clock->busy, 1))
		return TICK_NS; /* another CPU runs it */
	clock->wait_ns = TICK_NS;
	clock->began_ns = now_ns();
	refill(clock, clock->began_ns);
	visit_neighbours(&t->sweep, clock);
	if (settings.peers <= TICK_PEERS) /* random, so that a short budget does not always miss the same peers */
		clock->cursor = bpf_get_prandom_u32() % (settings.peers ?: 1);
	bpf_loop(peers, serve_next, t, 0);
	if (settings.peers > TICK_PEERS) /* a small random step forward: a tick may have had time for few peers only */
		clock->cursor += bpf_get_prandom_u32() % 64;
	if (clock->wait_ns == TICK_NS && aged(clock->began_ns, clock->active_ns, ACTIVE_NS))
		clock->wait_ns = calm_wait_ns(t->sweep.node->idle_us * NS_PER_US);
	wait_ns = clock->wait_ns;
	__sync_lock_test_and_set(&clock->busy, 0);
	return wait_ns;
}

#endif
