/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Judges paths by the peer's reports.
 *
 * As in RACK (RFC 8985), later arrivals tell that earlier packets are late; here across paths, by counts, and without
 * sending anything again. Suppose that a report was requested after some packets of an EV, and they have not arrived
 * by then: the EV lags. Traffic leaves it at once (SKIP), because it may be dead, and probe bursts test it. When a
 * burst arrives whole, the EV becomes GOOD again. When nothing arrives, several times and over some time, it becomes
 * ASSUMED_BAD. Partial arrival, of data or probes, is left to the loss rule. A host, peer or virtual machine that
 * stands still sends no reports, so no EV is left for it.
 */
#ifndef MRC_JUDGE_H
#define MRC_JUDGE_H

#include "send_probe.h"
#include "loss.h"

#define LOST_BURSTS 6 /* reports with lost probes and no arrival; after so many a lagging EV is ASSUMED_BAD */
#define BURSTS_PER_PERIOD 16 /* probe bursts, at most, per overdue_us */
#define CONGESTED_NS 1000000000ULL /* a congestion mark expires so long after the EV's last packet */
#define BURST_PROBES 16 /* probes per report, divided among the lagging EVs */
/* While EVs lag on several T1s, none fails sooner by its lag, and losses are sure after half of this time: a receiving
 * CPU may stand still, and packets wait for it. Other CPUs answer meanwhile. Traffic has left EVs that lag at once.
 */
#define STALL_MAX_NS 100000000ULL

/* A report that is being judged. */
struct judging {
	struct mrc_reports *reports;
	struct mrc_scratch *scratch;
	__u64 now;
	__u64 requested_ns; /* when the request was sent */
	__u64 burst_gap_ns; /* least time between two bursts on an EV */
	__u64 carrier; /* of the first EV in use that lags: its T1 (shares_links) */
	__u32 host_id;
	__u32 generation; /* of the peer's tables */
	struct part_loss evs; /* EVs in use: of this report, then of all */
	__u32 judged; /* data packets */
	__u16 first; /* EV of the first count */
	__u16 counts; /* EVs in the report */
	__u16 from; /* first EV to look at: rotates with each report, so that all lagging EVs get bursts */
	__u8 slot; /* index of the report's marks */
	__u8 bursts; /* EVs in scratch->lagging */
	__u8 changed; /* the usable EVs must be computed again */
	__u8 delayed; /* the EV of the request has more delay than the others */
	__u8 slow; /* so much more that it is left for a while */
	__u8 lossy; /* some EV has a new loss */
	__u16 lossy_planes; /* a bit per plane */
	__u8 lags; /* some EV in use lags */
	__u8 scattered; /* another one lags on another T1 */
};

/* Begin a generation: the peer's tables are new, or this is its first report. Its counts do not include earlier
 * packets.
 */
static __always_inline void begin_generation(struct mrc_path_stats *stats, const struct mrc_ev *ev,
					     const struct mrc_count *count, __u32 generation, __u64 now)
{
	stats->lost_before += stats->deficit;
	stats->deficit = 0;
	stats->missed = 0;
	stats->rx = bpf_ntohl(count->packets);
	stats->rx_probes = bpf_ntohs(count->probes);
	stats->ce = bpf_ntohs(count->ce);
	stats->offset = (__u32)ev->tx_packets - stats->rx;
	stats->probe_offset = (__u16)ev->probe_seq - stats->rx_probes;
	stats->judged_tx = ev->tx_packets;
	stats->after_good = stats->judged_tx;
	stats->arrived_ns = now;
	stats->lag_ns = 0;
	stats->generation = generation;
	begin_loss_window(stats);
}

/* Return how long an EV must lag before it fails. */
static __always_inline __u64 overdue_ns(const struct judging *j)
{
	__u64 usual_ns = health.overdue_us * NS_PER_US;

	return (j->scattered || j->reports->scattered) && usual_ns < STALL_MAX_NS ? STALL_MAX_NS : usual_ns;
}

/* Return how long a loss must be known until it is sure. Not so long that it has left the loss window by then. */
static __always_inline __u64 late_ns(const struct judging *j)
{
	__u64 usual_ns = health.overdue_us * NS_PER_US / 2, most_ns = health.loss_window_us * NS_PER_US / 4;
	__u64 ns = overdue_ns(j) / 2;

	most_ns = most_ns > usual_ns ? most_ns : usual_ns;
	return ns < most_ns ? ns : most_ns;
}

/* Handle a lagging EV: leave it, have it probed, and mark it ASSUMED_BAD when enough bursts are lost. */
static __always_inline void suspect(struct judging *j, struct mrc_ev *ev, struct mrc_path_stats *stats, __u32 number)
{
	__u32 state = ev->state;

	if (state == MRC_EV_GOOD) {
		j->changed |= transit(j->host_id, number, MRC_EV_GOOD, MRC_EV_SKIP, MRC_REASON_LAGGING);
	} else if (state != MRC_EV_SKIP) {
		return;
	} else if (ev->skip_reason != MRC_REASON_LAGGING && !is_slow(ev)) {
		ev->skip_reason = MRC_REASON_LAGGING; /* it was SKIP by congestion */
		j->changed = 1;
	}
	if (!j->lags)
		j->carrier = *(const __u64 *)ev->dst;
	j->scattered |= j->lags && !shares_links(ev, j->carrier);
	j->lags = 1;
	if (stats->lost_bursts >= LOST_BURSTS && aged(j->now, stats->lag_ns, overdue_ns(j))) {
		j->changed |= transit(j->host_id, number, state, MRC_EV_ASSUMED_BAD, MRC_REASON_OVERDUE);
		return;
	}
	if ((stats->lag_ns == j->now ||
	     aged(j->now, stats->probe_ns, j->burst_gap_ns + stats->extra_delay_ns + stats->extra_delay_ns / 4)) &&
	    j->bursts < BURSTS_AT_ONCE) {
		stats->burst_end = ev->probe_seq + 1; /* send_burst_probe() sets the final value */
		j->scratch->lagging[j->bursts++ & (BURSTS_AT_ONCE - 1)] = number;
	}
}

/* Note new CE marks: the EV skips one turn. */
static __always_inline void note_ce(struct judging *j, struct mrc_ev *ev, struct mrc_path_stats *stats, __u32 number,
				    __u16 ce)
{
	__u32 marked = grown16(ce, stats->ce);

	if (!marked)
		return;
	stats->ce = ce;
	stats->rx_ce += marked;
	j->scratch->marked[ev->plane & (MRC_MAX_PLANES - 1)] += marked;
	if (ev->state == MRC_EV_GOOD)
		transit(j->host_id, number, MRC_EV_GOOD, MRC_EV_SKIP, MRC_REASON_CONGESTED);
}

/* The EV does not lag any more: give it traffic again. */
static __always_inline void clear_lag(struct judging *j, struct mrc_ev *ev, struct mrc_path_stats *stats, __u32 number)
{
	stats->lag_ns = 0;
	if (ev->state == MRC_EV_SKIP && !is_slow(ev)) /* the tick returns a slow one */
		j->changed |= transit(j->host_id, number, MRC_EV_SKIP, MRC_EV_GOOD, MRC_REASON_LAGGING);
}

/* The difference that a report makes for one EV. */
struct ev_delta {
	__u32 packets; /* data packets, by the peer's count */
	__u16 probes;
	__u16 missed; /* probes known to be lost */
	__u32 deficit; /* data packets known to be lost */
	__u32 mark; /* data packets that the report can account for */
	int has_arrivals; /* packets have arrived since the previous report */
	int has_new_loss; /* more packets are missing than before */
};

/* Correct the offsets if more packets arrived than were sent: those were in flight when the generation began. */
static __always_inline void move_offsets(const struct mrc_ev *ev, struct mrc_path_stats *stats,
					 const struct ev_delta *delta)
{
	if ((__s32)((__u32)ev->tx_packets - stats->offset - delta->packets) < 0)
		stats->offset = (__u32)ev->tx_packets - delta->packets;
	if ((__s16)((__u16)ev->probe_seq - stats->probe_offset - delta->probes) < 0) {
		stats->probe_offset = (__u16)ev->probe_seq - delta->probes;
		stats->rx_probes = delta->probes;
		stats->missed = 0;
	}
}

/* Compare the peer's counts with what was sent before the report's marks. */
static __always_inline void read_delta(struct ev_delta *delta, const struct mrc_ev *ev,
				       const struct mrc_path_stats *stats, __u32 slot)
{
	delta->mark = stats->mark_tx[slot & (MRC_REPORTS_KEPT - 1)];
	delta->deficit = known_lost(stats->deficit, delta->mark - stats->offset - delta->packets,
				    (__u32)ev->tx_packets - stats->offset - delta->packets);
	delta->missed = known_lost(stats->missed,
				   (__s16)((__u16)stats->mark_probes[slot & (MRC_REPORTS_KEPT - 1)] -
					   stats->probe_offset - delta->probes),
				   (__s16)((__u16)ev->probe_seq - stats->probe_offset - delta->probes));
	delta->has_arrivals = delta->packets != stats->rx || delta->probes != stats->rx_probes;
	delta->has_new_loss = delta->deficit > stats->deficit || delta->missed > stats->missed;
}

/* Add the difference to the loss window. */
static __always_inline void add_samples(struct judging *j, struct mrc_path_stats *stats, const struct ev_delta *delta)
{
	__u32 judged = (__s32)(delta->mark - stats->judged_tx) > 0 ? delta->mark - stats->judged_tx : 0;

	if (delta->has_new_loss && !stats->window_lost)
		begin_loss_window(stats); /* the ratio is of the packets since the first loss */
	if (judged) {
		stats->judged += judged;
		stats->judged_tx = delta->mark;
		add_window_sample(stats, judged, 1);
		j->judged += judged;
	}
	judged = grown16(delta->probes + delta->missed, stats->rx_probes + stats->missed);
	add_window_sample(stats, judged, judged);
	if (delta->deficit > stats->deficit)
		add_window_losses(stats, delta->deficit - stats->deficit, 1);
	else if (delta->deficit < stats->deficit)
		remove_window_losses(stats, stats->deficit - delta->deficit);
	if (delta->missed > stats->missed)
		add_window_losses(stats, delta->missed - stats->missed, delta->missed - stats->missed);
	else if (delta->missed < stats->missed)
		remove_window_losses(stats, stats->missed - delta->missed);
}

/* Update the other path statistics: arrivals, losses, and whether the EV lags. */
static __always_inline void update_path_stats(struct judging *j, struct mrc_ev *ev, struct mrc_path_stats *stats,
					      __u32 number, const struct ev_delta *delta)
{
	int is_failed = ev->state == MRC_EV_ASSUMED_BAD;

	if (is_failed && stats->lag_ns && (__s16)(delta->missed + delta->deficit - stats->burst_end) <= 0)
		stats->lag_ns = 0; /* all that was missing has arrived late */
	if (delta->has_new_loss) {
		if (!is_failed)
			stats->loss_ns = j->now;
		else if (!stats->lag_ns) {
			stats->lag_ns = j->now; /* the hold-down begins anew if it stays missing */
			stats->burst_end = stats->missed + stats->deficit;
		}
		stats->good = stats->long_sent = 0;
		stats->lost_bursts += !delta->has_arrivals && delta->missed > stats->missed;
	}
	stats->deficit = delta->deficit;
	stats->missed = delta->missed;
	stats->rx = delta->packets;
	stats->rx_probes = delta->probes;
	if (delta->has_arrivals) {
		stats->arrived_ns = j->requested_ns;
		stats->after_good = delta->mark;
		stats->lost_bursts = stats->lost_bursts > 1; /* the rest of a delayed burst may follow */
		if (!delta->has_new_loss && stats->good < 0xffff)
			stats->good++;
		if (!delta->has_new_loss && stats->long_sent)
			stats->long_sent += stats->long_sent < LONG_KNOWN;
		/* The EV stops lagging when the whole burst is accounted for and none of it is newly lost. */
		if (!delta->has_new_loss && stats->lag_ns && !is_failed &&
		    (__s16)(delta->probes + stats->probe_offset + delta->missed - stats->burst_end) >= 0)
			clear_lag(j, ev, stats, number);
	}
	if (!delta->has_new_loss || (ev->state != MRC_EV_GOOD && ev->state != MRC_EV_SKIP))
		return;
	if (!stats->lag_ns) {
		stats->lag_ns = j->now;
		stats->lost_bursts = 0;
		stats->backoff = 0;
		stats->probe_after_ns = 0;
		set_deadline(j->host_id, number);
		end_calm(j->host_id); /* other changes of a state have events, which wake the daemon, too */
	}
	/* No burst was sent yet, or a part of one is lost: the rest of it proves nothing. */
	stats->burst_end = ev->probe_seq + BURST_PROBES;
}

/* Add the loss window of an EV in use to its plane's sums. An EV without arrivals does not count: its packets may all
 * be late.
 */
static __always_inline void add_to_plane(struct judging *j, const struct mrc_ev *ev, const struct mrc_path_stats *stats)
{
	struct plane_loss *p = &j->scratch->loss[ev->plane & (MRC_MAX_PLANES - 1)];

	if (!stats->window_samples || stats->lost_bursts)
		return;
	p->sent += stats->window_tx;
	p->lost += stats->window_lost;
	p->samples += stats->window_samples;
	p->losses += stats->confirmed_losses;
	p->known_losses += stats->window_losses;
	p->evs++;
	p->lossy_evs += stats->confirmed_losses > 0;
}

/* Judge an EV by its counts in the report. */
static long judge_ev(__u64 i, void *context)
{
	struct judging *j = context;
	__u32 at = (j->from + i) % j->counts, number = j->first + at, index = ev_index(j->host_id, number);
	struct mrc_count *count = &j->scratch->count[at & (MRC_REPORT_EVS - 1)];
	struct ev_delta delta = { .packets = bpf_ntohl(count->packets), .probes = bpf_ntohs(count->probes) };
	struct mrc_path_stats *stats = path_stats_at(index);
	struct mrc_ev *ev = ev_at(index);
	int was;

	if (!ev || !stats || !ev->configured)
		return 0;
	was = rank_at(index, ~0u);
	if (stats->generation != j->generation) {
		clear_lag(j, ev, stats, number);
		begin_generation(stats, ev, count, j->generation, j->now);
		j->changed = 1; /* its rank may have */
		return 0;
	}
	fade_window(stats, j->now);
	/* The EV was congested, and carried no packet since that could have been skipped. The mark is too old. */
	if (ev->state == MRC_EV_SKIP && !stats->lag_ns && !is_slow(ev) && aged(j->now, ev->last_tx_ns, CONGESTED_NS))
		transit(j->host_id, number, MRC_EV_SKIP, MRC_EV_GOOD, MRC_REASON_CONGESTED);
	move_offsets(ev, stats, &delta);
	read_delta(&delta, ev, stats, j->slot);
	j->scratch->in_flight[ev->plane & (MRC_MAX_PLANES - 1)] +=
		(__u32)ev->tx_packets - stats->offset - delta.packets - delta.deficit;
	j->scratch->arrived[ev->plane & (MRC_MAX_PLANES - 1)] += delta.packets;
	add_samples(j, stats, &delta);
	j->lossy |= delta.has_new_loss;
	update_path_stats(j, ev, stats, number, &delta);
	if (stats->lag_ns)
		suspect(j, ev, stats, number);
	note_ce(j, ev, stats, number, bpf_ntohs(count->ce));
	if (ev->state != MRC_EV_GOOD && ev->state != MRC_EV_SKIP) {
		/* Its rank changed: it may be the least bad EV now, or no longer. */
		j->changed |= rank_at(index, ~0u) != was;
		return 0;
	}
	confirm_losses(stats, j->now, late_ns(j));
	add_to_plane(j, ev, stats);
	if (stats->confirmed_losses >= (health.loss_any ? 1 : health.loss_samples)) {
		j->evs.above_limit++;
	} else {
		j->evs.below_limit++;
		j->evs.samples += stats->window_samples;
		j->evs.losses += stats->window_losses;
	}
	return 0;
}

/* Return 1 if the loss rule fails an EV: by any confirmed loss (loss_any), by its plane's losses, or by its loss ratio
 * if most other EVs do not lose alike. An EV without arrivals does not count: its packets may all be late.
 */
static __always_inline int loses_too_much(const struct judging *j, const struct mrc_ev *ev,
					  const struct mrc_path_stats *stats)
{
	if (stats->lost_bursts)
		return 0;
	if (health.loss_any)
		return stats->confirmed_losses;
	if (j->lossy_planes >> (ev->plane & (MRC_MAX_PLANES - 1)) & 1)
		return 1;
	return (__u64)stats->window_lost * PPM >= (__u64)health.loss_ppm * stats->window_tx &&
	       j->evs.below_limit >= j->evs.above_limit &&
	       loses_more(stats->confirmed_losses, stats->window_samples, j->evs.losses, j->evs.samples,
			  j->evs.below_limit + j->evs.above_limit, health.loss_samples);
}

/* Apply the loss rule to an EV, after all EVs of the report are judged. */
static long judge_loss(__u64 i, void *context)
{
	struct judging *j = context;
	__u32 number = j->first + i, index = ev_index(j->host_id, number), state;
	struct mrc_path_stats *stats = path_stats_at(index);
	struct mrc_ev *ev = ev_at(index);

	if (!ev || !stats || !ev->configured)
		return 0;
	state = ev->state;
	if ((state != MRC_EV_GOOD && state != MRC_EV_SKIP) || !loses_too_much(j, ev, stats))
		return 0;
	j->changed |= transit(j->host_id, number, state, MRC_EV_ASSUMED_BAD, MRC_REASON_LOSS);
	return 0;
}

/* Judge all EVs of a report; its counts are in the scratch. */
static __always_inline void judge_report(struct judging *j, const struct control *c)
{
	__u32 counts = bpf_ntohs(c->probe.counts), report_seq = bpf_ntohl(c->probe.report_seq);

	j->first = bpf_ntohs(c->probe.first);
	j->counts = counts;
	j->from = report_seq / report_parts() * BURSTS_AT_ONCE;
	j->slot = report_seq / report_parts();
	j->generation = bpf_ntohl(c->probe.generation);
	j->burst_gap_ns = health.overdue_us * NS_PER_US / BURSTS_PER_PERIOD;
	j->reports->applied_seq = report_seq;
	j->reports->report_tx_ns = bpf_be64_to_cpu(c->mrc.tx_ns);
	__builtin_memset(j->scratch->in_flight, 0, sizeof(j->scratch->in_flight));
	__builtin_memset(j->scratch->arrived, 0, sizeof(j->scratch->arrived));
	__builtin_memset(j->scratch->marked, 0, sizeof(j->scratch->marked));
	__builtin_memset(j->scratch->loss, 0, sizeof(j->scratch->loss));
	bpf_loop(counts, judge_ev, j, 0);
	j->reports->scattered = (j->reports->scattered & ~(1u << !!j->first)) | j->scattered << !!j->first;
	note_planes(j->host_id, j->first, counts, j->reports->report_tx_ns);
	j->reports->judged += j->judged;
	j->reports->lossy += j->lossy;
	j->reports->unpaid_packets -= j->judged < j->reports->unpaid_packets ? j->judged : j->reports->unpaid_packets;
	add_other_part(&j->evs, j->host_id, j->first != 0, j->now);
	j->lossy_planes = lossy_planes(j->host_id, j->first != 0);
	if (j->evs.above_limit || j->lossy_planes)
		bpf_loop(counts, judge_loss, j, 0);
}

#endif
