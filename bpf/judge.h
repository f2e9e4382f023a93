/* Judging paths by the peer's reports.
 *
 * RACK across paths, by counts: if a report that was asked for later came back, and of what was sent on
 * an EV before something has not arrived by then, the EV lags, and is left at once (SKIP): it may be
 * dead. probe bursts of probes on it decide: when one arrives whole the EV is given back; when nothing
 * arrives, several times and over some time, it is ASSUMED_BAD. What arrives in part, of data or of
 * probes, is for the loss rule. A host, a peer or a machine that stands still sends no reports, so it
 * demotes nobody.
 */
#ifndef MRC_JUDGE_H
#define MRC_JUDGE_H

#include "send_probe.h"
#include "loss.h"
#include "plane_loss.h"

#define LOST_BURSTS 6 /* reports that know of lost probes and no arrival make a lagging EV ASSUMED_BAD; */
#define BURSTS_PER_PERIOD 16 /* probe bursts, at most, in the least time that it takes */
#define CONGESTED_NS 1000000000ULL /* so long after the last packet nobody knows of congestion */
#define BURST_PROBES 16 /* probes, divided among the EVs that are tried at once */

struct judging {
	struct mrc_reports *reports;
	struct mrc_scratch *scratch;
	__u64 now;
	__u64 requested_ns;
	__u64 burst_gap_ns;
	__u32 host_id;
	__u32 generation;
	struct part_loss evs; /* EVs in use: of this report, then of all */
	__u32 judged; /* data packets */
	__u16 first;
	__u16 counts;
	__u16 from; /* where the round begins: each report with others, so that all are tried in their turn */
	__u8 slot; /* of the marks */
	__u8 bursts; /* EVs in scratch->lagging */
	__u8 changed; /* other EVs are usable than before */
	__u8 delayed; /* the EV of the request has more delay than the others */
	__u8 lossy; /* some EV has lost more */
	__u8 lossy_planes; /* as bits */
};

/* New tables over there, or the first report ever: what they count says nothing of before. */
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

/* A lagging EV: leave it, try it, and condemn it after enough of that. */
static __always_inline void suspect(struct judging *j, struct mrc_ev *ev, struct mrc_path_stats *stats, __u32 number)
{
	__u32 state = ev->state;

	if (state == MRC_EV_GOOD) {
		j->changed |= transit(j->host_id, number, MRC_EV_GOOD, MRC_EV_SKIP, MRC_REASON_LAGGING);
	} else if (state != MRC_EV_SKIP) {
		return;
	} else if (ev->skip_reason != MRC_REASON_LAGGING) {
		ev->skip_reason = MRC_REASON_LAGGING; /* it was congested */
		j->changed = 1;
	}
	if (stats->lost_bursts >= LOST_BURSTS && aged(j->now, stats->lag_ns, settings.overdue_us * NS_PER_US)) {
		j->changed |= transit(j->host_id, number, state, MRC_EV_ASSUMED_BAD, MRC_REASON_OVERDUE);
		return;
	}
	if ((stats->lag_ns == j->now || aged(j->now, stats->probe_ns, j->burst_gap_ns + stats->extra_delay_ns + stats->extra_delay_ns / 4)) &&
	    j->bursts < BURSTS_AT_ONCE) {
		stats->burst_end = ev->probe_seq + 1; /* send_burst_probe says how many more */
		j->scratch->lagging[j->bursts++ & (BURSTS_AT_ONCE - 1)] = number;
	}
}

static __always_inline void note_ce(struct judging *j, struct mrc_ev *ev, struct mrc_path_stats *stats, __u32 number,
				    __u16 ce)
{
	__u32 marked = grown16(ce, stats->ce);

	if (!marked)
		return;
	stats->ce = ce;
	stats->rx_ce += marked;
	if (ev->state == MRC_EV_GOOD)
		transit(j->host_id, number, MRC_EV_GOOD, MRC_EV_SKIP, MRC_REASON_CONGESTED);
}

static __always_inline void clear_lag(struct judging *j, struct mrc_ev *ev, struct mrc_path_stats *stats, __u32 number)
{
	stats->lag_ns = 0;
	if (ev->state == MRC_EV_SKIP)
		j->changed |= transit(j->host_id, number, MRC_EV_SKIP, MRC_EV_GOOD, MRC_REASON_LAGGING);
}

/* What a report tells of an EV that was not known before. */
struct ev_delta {
	__u32 packets; /* the peer's counts */
	__u16 probes;
	__u16 missed; /* probes lost, as far as known */
	__u32 deficit; /* data packets lost, as far as known */
	__u32 mark; /* data packets that the report can know of */
	int has_arrivals; /* something has come by it since the report before */
	int has_new_loss; /* something more is missing */
};

/* More arrived than was sent: packets were on their way when the generation began. */
static __always_inline void move_offsets(const struct mrc_ev *ev, struct mrc_path_stats *stats, const struct ev_delta *n)
{
	if ((__s32)((__u32)ev->tx_packets - stats->offset - n->packets) < 0)
		stats->offset = (__u32)ev->tx_packets - n->packets;
	if ((__s16)((__u16)ev->probe_seq - stats->probe_offset - n->probes) < 0) {
		stats->probe_offset = (__u16)ev->probe_seq - n->probes;
		stats->rx_probes = n->probes;
		stats->missed = 0;
	}
}

static __always_inline void read_delta(struct ev_delta *n, const struct mrc_ev *ev, const struct mrc_path_stats *stats, __u32 slot)
{
	n->mark = stats->mark_tx[slot & (MRC_REPORTS_KEPT - 1)];
	n->deficit = known_lost(stats->deficit, n->mark - stats->offset - n->packets,
				(__u32)ev->tx_packets - stats->offset - n->packets);
	n->missed = known_lost(stats->missed,
			       (__s16)((__u16)stats->mark_probes[slot & (MRC_REPORTS_KEPT - 1)] - stats->probe_offset - n->probes),
			       (__s16)((__u16)ev->probe_seq - stats->probe_offset - n->probes));
	n->has_arrivals = n->packets != stats->rx || n->probes != stats->rx_probes;
	n->has_new_loss = n->deficit > stats->deficit || n->missed > stats->missed;
}

/* Enter it into the loss window. */
static __always_inline void add_samples(struct judging *j, struct mrc_path_stats *stats, const struct ev_delta *n)
{
	__u32 judged = (__s32)(n->mark - stats->judged_tx) > 0 ? n->mark - stats->judged_tx : 0;

	if (n->has_new_loss && !stats->window_lost)
		begin_loss_window(stats); /* the ratio is of what was sent since the first loss */
	if (judged) {
		stats->judged += judged;
		stats->judged_tx = n->mark;
		add_window_sample(stats, judged, 1);
		j->judged += judged;
	}
	judged = grown16(n->probes + n->missed, stats->rx_probes + stats->missed);
	add_window_sample(stats, judged, judged);
	if (n->deficit > stats->deficit)
		add_window_losses(stats, n->deficit - stats->deficit, 1);
	else if (n->deficit < stats->deficit)
		remove_window_losses(stats, stats->deficit - n->deficit);
	if (n->missed > stats->missed)
		add_window_losses(stats, n->missed - stats->missed, n->missed - stats->missed);
	else if (n->missed < stats->missed)
		remove_window_losses(stats, stats->missed - n->missed);
}

/* Enter it into the rest of the path statistics: what arrived, and whether the EV lags. */
static __always_inline void update_path_stats(struct judging *j, struct mrc_ev *ev, struct mrc_path_stats *stats, __u32 number,
				  const struct ev_delta *n)
{
	if (n->has_new_loss) {
		stats->loss_ns = j->now;
		stats->good = 0;
		stats->lost_bursts += !n->has_arrivals && n->missed > stats->missed;
	}
	stats->deficit = n->deficit;
	stats->missed = n->missed;
	stats->rx = n->packets;
	stats->rx_probes = n->probes;
	if (n->has_arrivals) {
		stats->arrived_ns = j->requested_ns;
		stats->after_good = n->mark;
		stats->lost_bursts = stats->lost_bursts > 1; /* the rest of what was held up may follow */
		if (!n->has_new_loss && stats->good < 0xffff)
			stats->good++;
		/* Given back when the whole probe burst is accounted for, and nothing of it is new among the lost. */
		if (!n->has_new_loss && stats->lag_ns && (__s16)(n->probes + stats->probe_offset + n->missed - stats->burst_end) >= 0)
			clear_lag(j, ev, stats, number);
	}
	if (!n->has_new_loss || (ev->state != MRC_EV_GOOD && ev->state != MRC_EV_SKIP))
		return;
	if (!stats->lag_ns) {
		stats->lag_ns = j->now;
		stats->lost_bursts = 0;
		stats->backoff = 0;
		stats->probe_after_ns = 0;
		set_deadline(j->host_id, number);
	}
	stats->burst_end = ev->probe_seq + BURST_PROBES; /* no probe burst yet, or one that has lost some: the rest says nothing */
}

/* Add an EV in use to its plane's. Where nothing arrives all may be late. */
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

static long judge_ev(__u64 i, void *context)
{
	struct judging *j = context;
	__u32 at = (j->from + i) % j->counts, number = j->first + at, index = ev_index(j->host_id, number);
	struct mrc_count *count = &j->scratch->count[at & (MRC_REPORT_EVS - 1)];
	struct ev_delta n = { .packets = bpf_ntohl(count->packets), .probes = bpf_ntohs(count->probes) };
	struct mrc_path_stats *stats = path_stats_at(index);
	struct mrc_ev *ev = ev_at(index);
	int was;

	if (!ev || !stats || !ev->configured)
		return 0;
	was = rank_at(index, ~0u);
	if (stats->generation != j->generation) {
		clear_lag(j, ev, stats, number);
		begin_generation(stats, ev, count, j->generation, j->now);
		return 0;
	}
	fade_window(stats, j->now);
	/* Congested, and no turn came in which it could have been passed over: that is no news any more. */
	if (ev->state == MRC_EV_SKIP && !stats->lag_ns && aged(j->now, ev->last_tx_ns, CONGESTED_NS))
		transit(j->host_id, number, MRC_EV_SKIP, MRC_EV_GOOD, MRC_REASON_CONGESTED);
	move_offsets(ev, stats, &n);
	read_delta(&n, ev, stats, j->slot);
	j->scratch->under_way[ev->plane & (MRC_MAX_PLANES - 1)] +=
		(__u32)ev->tx_packets - stats->offset - n.packets - n.deficit;
	j->scratch->arrived[ev->plane & (MRC_MAX_PLANES - 1)] += n.packets;
	add_samples(j, stats, &n);
	j->lossy |= n.has_new_loss;
	update_path_stats(j, ev, stats, number, &n);
	if (stats->lag_ns)
		suspect(j, ev, stats, number);
	note_ce(j, ev, stats, number, bpf_ntohs(count->ce));
	if (ev->state != MRC_EV_GOOD && ev->state != MRC_EV_SKIP) {
		j->changed |= rank_at(index, ~0u) != was; /* it may be the least bad now, or not any more */
		return 0;
	}
	confirm_losses(stats, j->now);
	add_to_plane(j, ev, stats);
	if (stats->confirmed_losses >= (settings.loss_any ? 1 : settings.loss_samples)) {
		j->evs.above_limit++;
	} else {
		j->evs.below_limit++;
		j->evs.samples += stats->window_samples;
		j->evs.losses += stats->window_losses;
	}
	return 0;
}

/* Whether the loss rule condemns an EV: any loss that is sure, or a ratio of its packets, if it is not as
 * with most of the others; or that of its plane. Where nothing arrives all may be late.
 */
static __always_inline int loses_too_much(const struct judging *j, const struct mrc_ev *ev, const struct mrc_path_stats *stats)
{
	if (stats->lost_bursts)
		return 0;
	if (settings.loss_any)
		return stats->confirmed_losses;
	if (j->lossy_planes >> (ev->plane & (MRC_MAX_PLANES - 1)) & 1)
		return 1;
	return (__u64)stats->window_lost * 1000000 >= (__u64)settings.loss_ppm * stats->window_tx &&
	       j->evs.below_limit >= j->evs.above_limit &&
	       loses_more(stats->confirmed_losses, stats->window_samples, j->evs.losses, j->evs.samples,
			  j->evs.below_limit + j->evs.above_limit, settings.loss_samples);
}

/* The loss rule, where all EVs are known. */
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

/* Judge all EVs of a report, of which the counts are in the scratch. */
static __always_inline void judge_report(struct judging *j, const struct control *c)
{
	__u32 n = bpf_ntohs(c->probe.counts), report_seq = bpf_ntohl(c->probe.report_seq);

	j->first = bpf_ntohs(c->probe.first);
	j->counts = n;
	j->from = report_seq / report_chunks() * BURSTS_AT_ONCE;
	j->slot = report_seq / report_chunks();
	j->generation = bpf_ntohl(c->probe.generation);
	j->burst_gap_ns = settings.overdue_us * NS_PER_US / BURSTS_PER_PERIOD;
	j->reports->applied_seq = report_seq;
	j->reports->report_tx_ns = bpf_be64_to_cpu(c->mrc.tx_ns);
	__builtin_memset(j->scratch->under_way, 0, sizeof(j->scratch->under_way));
	__builtin_memset(j->scratch->arrived, 0, sizeof(j->scratch->arrived));
	__builtin_memset(j->scratch->loss, 0, sizeof(j->scratch->loss));
	bpf_loop(n, judge_ev, j, 0);
	note_planes(j->host_id, j->first, n, j->reports->report_tx_ns);
	j->reports->judged += j->judged;
	j->reports->lossy += j->lossy;
	j->reports->unpaid_packets -= j->judged < j->reports->unpaid_packets ? j->judged : j->reports->unpaid_packets;
	add_other_part(&j->evs, j->host_id, j->first != 0, j->now);
	j->lossy_planes = lossy_planes(j->host_id, j->first != 0);
	if (j->evs.above_limit || j->lossy_planes)
		bpf_loop(n, judge_loss, j, 0);
}

#endif
