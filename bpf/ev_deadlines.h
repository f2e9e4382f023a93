/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Serves the deadlines of a peer's EVs: returns healed EVs, raises weights on the ramp, retries failed EVs, leaves EVs
 * without link.
 */
#ifndef MRC_EV_DEADLINES_H
#define MRC_EV_DEADLINES_H

#include "neighbours.h"

#define TICK_NS 20000000ULL /* longest time between two ticks, but in calm weather (tick.h) */
/* A packet of a failed EV that a report misses counts as lost if it has not arrived after this time, or after two
 * probes: packets overtake each other, by more where CPUs are busy.
 */
#define LATE_NS (2 * TICK_NS)
/* While the budget is spent, a peer with failed EVs is due again after one to so many TICK_NS. A prime: times are often
 * multiples of others.
 */
#define UNPAID_TICKS 7
#define LONG_RETRIES 8

/* A tick: the work area of one run. */
struct tick {
	struct sweep sweep;
	struct mrc_clock *clock;
	struct mrc_watch *watch;
	struct mrc_peer *peer;
	__u8 changed; /* the peer's usable EVs must be computed again */
	__u8 probed; /* the peer was probed in this tick */
	__u8 detached; /* this host's data plane or the peer's is detached: missing answers say nothing */
	__u8 resizes; /* 1 = the packet's length can be changed */
	__u8 unpaid; /* 1 = a failed EV was probed in this tick although the budget was spent */
};

/* Have the peer served by `ns` at the latest. */
static __always_inline void set_peer_due(struct tick *t, __u64 ns)
{
	if ((__s64)(ns - t->clock->due_ns) < 0)
		t->clock->due_ns = ns;
}

/* The same, and have the next tick come in time for it. */
static __always_inline void set_peer_due_soon(struct tick *t, __u64 ns)
{
	__u64 wait_ns = aged(ns, t->clock->now_ns, TICK_RESUME_NS) ? ns - t->clock->now_ns : TICK_RESUME_NS;

	set_peer_due(t, ns);
	if (t->clock->wait_ns > wait_ns)
		t->clock->wait_ns = wait_ns;
}

/* Charge the probes just sent to the host's budget. */
static __always_inline void charge_budget(struct tick *t)
{
	t->probed |= t->sweep.sent != 0;
	__sync_fetch_and_add(&t->clock->budget, -(__s64)t->sweep.sent);
	t->sweep.sent = 0;
}

/* Set the length of the packet that requests are made of, for a report of `counts` EVs. */
static __always_inline int resize(const struct tick *t, __u32 counts)
{
	return t->resizes &&
	       bpf_skb_change_tail(t->sweep.skb, OUTER_L3 + sizeof(struct outer_l4) + probe_length(counts), 0);
}

/* Probe an EV that is not in use. If it answers small probes, send one as long as the longest data packet: some paths
 * lose only these. While many EVs share the budget, only the first one and some others are so long, and EVs return
 * sooner. The kernel refuses to lengthen the timer packet, which counts as encapsulated, so its probes have a report's
 * length.
 */
static __always_inline void retry_ev(struct tick *t, const struct mrc_ev *ev, struct mrc_path_stats *stats,
				     __u32 number)
{
	int is_long = stats->good && (!stats->long_sent || stats->good % LONG_RETRIES == 0 ||
				      t->clock->budget > 2 * (__s64)budget_reserve());
	int longer = is_long && t->resizes &&
		     !bpf_skb_change_tail(t->sweep.skb, probe_at(ev) + settings.inner_mtu, 0);

	t->sweep.request.kind = MRC_PROBE_RETRY;
	if (is_long && !stats->long_sent)
		stats->long_sent = 1;
	sweep_ev(number, &t->sweep);
	if (longer) {
		t->sweep.sent *= budget_cost(t->sweep.skb->len);
		resize(t, 0);
	}
	charge_budget(t);
}

static __always_inline void clear_deadline(struct mrc_watch *watch, __u32 number)
{
	__sync_fetch_and_and(&watch->deadlines[(number / 64) & (MRC_EV_WORDS - 1)], ~(1ULL << (number % 64)));
}

/* Return 1 if an answer can come back on the EV: neither end is detached, the peer answers, and the plane has links. */
static __always_inline int can_answer(const struct tick *t, const struct mrc_ev *ev)
{
	return !t->detached && !t->watch->silent && t->clock->linked & (1u << (ev->plane & 31));
}

/* Serve an EV in use: return it if it was slow, raise its weight, or probe it while it lags, less and less often. Clears
 * the deadline when the EV neither lags nor ramps up.
 */
static __always_inline void serve_used(struct tick *t, struct mrc_ev *ev, struct mrc_path_stats *stats, __u32 number)
{
	if (is_slow(ev) && !stats->lag_ns) {
		if (!aged(t->clock->now_ns, stats->probe_after_ns, 0)) {
			set_peer_due(t, stats->probe_after_ns);
			return;
		}
		ev->weight = ramp_weight(0, health.ramp_us * NS_PER_US);
		ev->state_since_ns = t->clock->now_ns;
		ev->skip_reason = MRC_REASON_CONGESTED; /* the next time it may be that, and not slow */
		t->changed |= transit(t->sweep.request.host_id, number, MRC_EV_SKIP, MRC_EV_GOOD, MRC_REASON_SLOW);
	}
	if (ev->weight < MRC_WEIGHT_FULL) {
		ev->weight = ramp_weight(t->clock->now_ns - ev->state_since_ns, health.ramp_us * NS_PER_US);
		set_peer_due(t, t->clock->now_ns + health.ramp_us * NS_PER_US / 6);
	}
	if (ev->weight < MRC_WEIGHT_FULL)
		return;
	if (!stats->lag_ns) {
		stats->probe_after_ns = 0;
		clear_deadline(t->watch, number);
		/* The EV changed meanwhile, and its bit may have been set before it was cleared here. */
		if (!is_in_use(ev) || stats->lag_ns)
			set_deadline(t->sweep.request.host_id, number);
		return;
	}
	if (!can_answer(t, ev))
		return; /* no report can tell of it */
	if (aged(t->clock->now_ns, stats->probe_after_ns, 0)) {
		t->sweep.request.kind = MRC_PROBE_SUSPICION;
		sweep_ev(number, &t->sweep);
		charge_budget(t);
		stats->probe_after_ns = t->clock->now_ns + backoff_ns(stats->backoff / 4,
								      health.probe_interval_us / 4,
								      health.probe_backoff_us);
		stats->backoff += stats->backoff < 100;
	}
	set_peer_due_soon(t, stats->probe_after_ns);
}

enum hold_down {
	HOLD_DOWN_GOES_ON,
	HOLD_DOWN_BEGAN_ANEW, /* a packet of an EV that answers is lost, so its rank has changed */
	HOLD_DOWN_OVER,
};

/* Return how far the hold-down of a failed EV is; begin it anew while it cannot answer, or if it lost something.
 * A global function: its stack is its own.
 */
__noinline int serve_hold_down(__u32 index, __u64 now, int answers)
{
	struct mrc_path_stats *stats = path_stats_at(index);
	const struct mrc_ev *ev = ev_at(index);
	__u64 well_ns, probes_ns = 2 * health.probe_interval_us * NS_PER_US;

	if (!stats || !ev)
		return HOLD_DOWN_GOES_ON;
	if (stats->lag_ns && aged(now, stats->lag_ns, probes_ns > LATE_NS ? probes_ns : LATE_NS)) {
		stats->lag_ns = 0;
		stats->loss_ns = now;
		return stats->good ? HOLD_DOWN_BEGAN_ANEW : HOLD_DOWN_GOES_ON;
	}
	if (!answers)
		stats->good = stats->long_sent = 0; /* reports from before prove nothing */
	if (!(stats->good | stats->lag_ns) || !answers) {
		stats->loss_ns = now;
		return HOLD_DOWN_GOES_ON;
	}
	well_ns = stats->loss_ns > ev->state_since_ns ? stats->loss_ns : ev->state_since_ns;
	if (stats->lag_ns || stats->good < health.good_probes || stats->long_sent < LONG_KNOWN ||
	    !aged(now, well_ns, hold_down_ns(ev->flaps, health.hold_down_ms, health.hold_down_max_ms)))
		return HOLD_DOWN_GOES_ON;
	return HOLD_DOWN_OVER;
}

/* Return 1 if a failed EV may be probed although the budget is spent: one of the host's per TICK_NS. EVs take turns by
 * their number, and a new round begins when no peer that waits has a higher one. A global function: its stack is its own.
 */
__noinline int takes_unpaid_turn(__u32 number)
{
	struct mrc_clock *clock = tick_clock();
	__u16 ms, age_ms;

	if (!clock)
		return 0;
	ms = clock->now_ns / NS_PER_MS;
	age_ms = ms - clock->unpaid_ms;
	if (age_ms < TICK_NS / NS_PER_MS ||
	    (number < clock->unpaid_from && age_ms < (UNPAID_TICKS + 1) * TICK_NS / NS_PER_MS))
		return 0;
	clock->unpaid_ms = ms;
	clock->unpaid_from = number + 1;
	return 1;
}

/* Serve an EV that failed, is new or is denied: return it after its hold-down, else probe it when a probe is due. */
static __always_inline void serve_unused(struct tick *t, struct mrc_ev *ev, struct mrc_path_stats *stats, __u32 number)
{
	__u32 host_id = t->sweep.request.host_id, state = ev->state;
	int hold_down = HOLD_DOWN_GOES_ON;

	if (state == MRC_EV_ASSUMED_BAD)
		hold_down = serve_hold_down(ev_index(host_id, number), t->clock->now_ns, can_answer(t, ev));
	t->changed |= hold_down == HOLD_DOWN_BEGAN_ANEW;
	if (hold_down == HOLD_DOWN_OVER) {
		ev->weight = ramp_weight(0, health.ramp_us * NS_PER_US);
		stats->probe_after_ns = 0;
		t->changed |= transit(host_id, number, state, MRC_EV_GOOD, MRC_REASON_HEALED);
		return;
	}
	if (!can_answer(t, ev))
		return; /* the sweeps probe it */
	if (!aged(t->clock->now_ns, stats->probe_after_ns, 0)) {
		set_peer_due(t, stats->probe_after_ns);
		return;
	}
	/* The rest is reserved for the sweeps. Some failed EVs are probed all the same: where CPUs are busy, suspicion
	 * spends all of the budget for as long as they are.
	 */
	if (t->clock->budget <= budget_reserve()) {
		if (state != MRC_EV_ASSUMED_BAD || !takes_unpaid_turn(number)) {
			/* Not in each tick, because thousands of EVs can wait, and not all in the same tick. */
			set_peer_due(t, t->clock->now_ns +
						TICK_NS * (1 + (t->clock->now_ns / NS_PER_US + host_id) % UNPAID_TICKS));
			return;
		}
		t->unpaid = 1;
	}
	if (stats->good || stats->reply_seq == ev->probe_seq)
		stats->backoff = 0;
	retry_ev(t, ev, stats, number);
	stats->probe_after_ns = t->clock->now_ns +
				(state == MRC_EV_DENIED || t->unpaid ? health.probe_backoff_us * NS_PER_US :
							  backoff_ns(stats->backoff, health.probe_interval_us,
								     health.probe_backoff_us));
	stats->backoff += stats->backoff < 31;
	set_peer_due(t, stats->probe_after_ns);
}

/* Serve the next EV that has a deadline. */
static long serve_next_ev(__u64 i, void *context)
{
	struct tick *t = context;
	__u32 number = next_bit(t->watch->deadlines, t->clock->at, settings.evs_per_peer);
	__u32 index = ev_index(t->sweep.request.host_id, number);
	struct mrc_path_stats *stats = path_stats_at(index);
	struct mrc_ev *ev = ev_at(index);

	(void)i;
	if (number == NO_SLOT || number >= settings.evs_per_peer || !stats || !ev)
		return 1;
	t->clock->at = number + 1;
	if (!ev->configured)
		clear_deadline(t->watch, number);
	else if (is_in_use(ev))
		serve_used(t, ev, stats, number);
	else
		serve_unused(t, ev, stats, number);
	return 0;
}

/* Give an EV a deadline if it is not in full use. */
static long find_deadline(__u64 number, void *context)
{
	__u32 host_id = *(__u32 *)context, index = ev_index(host_id, number);
	const struct mrc_path_stats *stats = path_stats_at(index);
	const struct mrc_ev *ev = ev_at(index);

	if (!ev || !stats)
		return 1;
	if (ev->configured && (!is_in_use(ev) || ev->weight < MRC_WEIGHT_FULL || stats->lag_ns || is_slow(ev)))
		set_deadline(host_id, number);
	return 0;
}

/* Leave an EV in use if its plane has lost its link. */
static long leave_unlinked_ev(__u64 number, void *context)
{
	struct tick *t = context;
	struct mrc_ev *ev = ev_at(ev_index(t->sweep.request.host_id, number));
	__u32 state, reason;

	if (!ev)
		return 1;
	state = ev->state;
	if (!ev->configured || !is_in_use(ev) || t->clock->linked & (1u << (ev->plane & 31)))
		return 0;
	reason = t->sweep.node->plane_mask & (1u << (ev->plane & 31)) ? MRC_REASON_PEER_LINK_DOWN :
									 MRC_REASON_LINK_DOWN;
	t->changed |= transit(t->sweep.request.host_id, number, state, MRC_EV_ASSUMED_BAD, reason);
	return 0;
}

#endif
