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
	__u64 asked_ns;
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
static __always_inline void begin_generation(struct mrc_path_stats *l, const struct mrc_ev *ev,
					     const struct mrc_count *count, __u32 generation, __u64 now)
{
	l->lost_before += l->deficit;
	l->deficit = 0;
	l->missed = 0;
	l->rx = bpf_ntohl(count->packets);
	l->rx_probes = bpf_ntohs(count->probes);
	l->ce = bpf_ntohs(count->ce);
	l->offset = (__u32)ev->tx_packets - l->rx;
	l->probe_offset = (__u16)ev->probe_seq - l->rx_probes;
	l->judged_tx = ev->tx_packets;
	l->after_good = l->judged_tx;
	l->arrived_ns = now;
	l->lag_ns = 0;
	l->generation = generation;
	begin_loss_window(l);
}

/* A lagging EV: leave it, try it, and condemn it after enough of that. */
static __always_inline void suspect(struct judging *j, struct mrc_ev *ev, struct mrc_path_stats *l, __u32 number)
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
	if (l->lost_bursts >= LOST_BURSTS && aged(j->now, l->lag_ns, settings.overdue_us * NS_PER_US)) {
		j->changed |= transit(j->host_id, number, state, MRC_EV_ASSUMED_BAD, MRC_REASON_OVERDUE);
		return;
	}
	if ((l->lag_ns == j->now || aged(j->now, l->probe_ns, j->burst_gap_ns + l->late_ns + l->late_ns / 4)) &&
	    j->bursts < BURSTS_AT_ONCE) {
		l->burst_end = ev->probe_seq + 1; /* send_burst_probe says how many more */
		j->scratch->lagging[j->bursts++ & (BURSTS_AT_ONCE - 1)] = number;
	}
}

static __always_inline void note_ce(struct judging *j, struct mrc_ev *ev, struct mrc_path_stats *l, __u32 number,
				    __u16 ce)
{
	__u32 marked = grown16(ce, l->ce);

	if (!marked)
		return;
	l->ce = ce;
	l->rx_ce += marked;
	if (ev->state == MRC_EV_GOOD)
		transit(j->host_id, number, MRC_EV_GOOD, MRC_EV_SKIP, MRC_REASON_CONGESTED);
}

static __always_inline void clear_lag(struct judging *j, struct mrc_ev *ev, struct mrc_path_stats *l, __u32 number)
{
	l->lag_ns = 0;
	if (ev->state == MRC_EV_SKIP)
		j->changed |= transit(j->host_id, number, MRC_EV_SKIP, MRC_EV_GOOD, MRC_REASON_LAGGING);
}

/* What a report tells of an EV that was not known before. */
struct news {
	__u32 packets; /* the peer's counts */
	__u16 probes;
	__u16 missed; /* probes lost, as far as known */
	__u32 deficit; /* data packets lost, as far as known */
	__u32 mark; /* data packets that the report can know of */
	int arrived; /* something has come by it since the report before */
	int grew; /* something more is missing */
};

/* More arrived than was sent: packets were on their way when the generation began. */
static __always_inline void move_offsets(const struct mrc_ev *ev, struct mrc_path_stats *l, const struct news *n)
{
	if ((__s32)((__u32)ev->tx_packets - l->offset - n->packets) < 0)
		l->offset = (__u32)ev->tx_packets - n->packets;
	if ((__s16)((__u16)ev->probe_seq - l->probe_offset - n->probes) < 0) {
		l->probe_offset = (__u16)ev->probe_seq - n->probes;
		l->rx_probes = n->probes;
		l->missed = 0;
	}
}

static __always_inline void read_news(struct news *n, const struct mrc_ev *ev, const struct mrc_path_stats *l, __u32 slot)
{
	n->mark = l->mark_tx[slot & (MRC_REPORTS_KEPT - 1)];
	n->deficit = known_lost(l->deficit, n->mark - l->offset - n->packets,
				(__u32)ev->tx_packets - l->offset - n->packets);
	n->missed = known_lost(l->missed,
			       (__s16)((__u16)l->mark_probes[slot & (MRC_REPORTS_KEPT - 1)] - l->probe_offset - n->probes),
			       (__s16)((__u16)ev->probe_seq - l->probe_offset - n->probes));
	n->arrived = n->packets != l->rx || n->probes != l->rx_probes;
	n->grew = n->deficit > l->deficit || n->missed > l->missed;
}

/* Enter it into the loss window. */
static __always_inline void take_samples(struct judging *j, struct mrc_path_stats *l, const struct news *n)
{
	__u32 judged = (__s32)(n->mark - l->judged_tx) > 0 ? n->mark - l->judged_tx : 0;

	if (n->grew && !l->window_lost)
		begin_loss_window(l); /* the ratio is of what was sent since the first loss */
	if (judged) {
		l->judged += judged;
		l->judged_tx = n->mark;
		sample(l, judged, 1);
		j->judged += judged;
	}
	judged = grown16(n->probes + n->missed, l->rx_probes + l->missed);
	sample(l, judged, judged);
	if (n->deficit > l->deficit)
		lose(l, n->deficit - l->deficit, 1);
	else if (n->deficit < l->deficit)
		unlose(l, l->deficit - n->deficit);
	if (n->missed > l->missed)
		lose(l, n->missed - l->missed, n->missed - l->missed);
	else if (n->missed < l->missed)
		unlose(l, l->missed - n->missed);
}

/* Enter it into the rest of the path statistics: what arrived, and whether the EV lags. */
static __always_inline void enter(struct judging *j, struct mrc_ev *ev, struct mrc_path_stats *l, __u32 number,
				  const struct news *n)
{
	if (n->grew) {
		l->loss_ns = j->now;
		l->good = 0;
		l->lost_bursts += !n->arrived && n->missed > l->missed;
	}
	l->deficit = n->deficit;
	l->missed = n->missed;
	l->rx = n->packets;
	l->rx_probes = n->probes;
	if (n->arrived) {
		l->arrived_ns = j->asked_ns;
		l->after_good = n->mark;
		l->lost_bursts = l->lost_bursts > 1; /* the rest of what was held up may follow */
		if (!n->grew && l->good < 0xffff)
			l->good++;
		/* Given back when the whole probe burst is accounted for, and nothing of it is new among the lost. */
		if (!n->grew && l->lag_ns && (__s16)(n->probes + l->probe_offset + n->missed - l->burst_end) >= 0)
			clear_lag(j, ev, l, number);
	}
	if (!n->grew || (ev->state != MRC_EV_GOOD && ev->state != MRC_EV_SKIP))
		return;
	if (!l->lag_ns) {
		l->lag_ns = j->now;
		l->lost_bursts = 0;
		l->backoff = 0;
		l->probe_after_ns = 0;
		set_deadline(j->host_id, number);
	}
	l->burst_end = ev->probe_seq + BURST_PROBES; /* no probe burst yet, or one that has lost some: the rest says nothing */
}

/* Add an EV in use to its plane's. Where nothing arrives all may be late. */
static __always_inline void add_to_plane(struct judging *j, const struct mrc_ev *ev, const struct mrc_path_stats *l)
{
	struct plane_loss *p = &j->scratch->loss[ev->plane & (MRC_MAX_PLANES - 1)];

	if (!l->window_samples || l->lost_bursts)
		return;
	p->sent += l->window_tx;
	p->lost += l->window_lost;
	p->samples += l->window_samples;
	p->losses += l->sure;
	p->known += l->window_losses;
	p->used++;
	p->hit += l->sure > 0;
}

static long judge_ev(__u64 i, void *context)
{
	struct judging *j = context;
	__u32 at = (j->from + i) % j->counts, number = j->first + at, index = ev_index(j->host_id, number);
	struct mrc_count *count = &j->scratch->count[at & (MRC_REPORT_EVS - 1)];
	struct news n = { .packets = bpf_ntohl(count->packets), .probes = bpf_ntohs(count->probes) };
	struct mrc_path_stats *l = path_stats_at(index);
	struct mrc_ev *ev = ev_at(index);
	int was;

	if (!ev || !l || !ev->configured)
		return 0;
	was = rank_at(index, ~0u);
	if (l->generation != j->generation) {
		clear_lag(j, ev, l, number);
		begin_generation(l, ev, count, j->generation, j->now);
		return 0;
	}
	fade(l, j->now);
	/* Congested, and no turn came in which it could have been passed over: that is no news any more. */
	if (ev->state == MRC_EV_SKIP && !l->lag_ns && aged(j->now, ev->last_tx_ns, CONGESTED_NS))
		transit(j->host_id, number, MRC_EV_SKIP, MRC_EV_GOOD, MRC_REASON_CONGESTED);
	move_offsets(ev, l, &n);
	read_news(&n, ev, l, j->slot);
	j->scratch->under_way[ev->plane & (MRC_MAX_PLANES - 1)] +=
		(__u32)ev->tx_packets - l->offset - n.packets - n.deficit;
	j->scratch->arrived[ev->plane & (MRC_MAX_PLANES - 1)] += n.packets;
	take_samples(j, l, &n);
	j->lossy |= n.grew;
	enter(j, ev, l, number, &n);
	if (l->lag_ns)
		suspect(j, ev, l, number);
	note_ce(j, ev, l, number, bpf_ntohs(count->ce));
	if (ev->state != MRC_EV_GOOD && ev->state != MRC_EV_SKIP) {
		j->changed |= rank_at(index, ~0u) != was; /* it may be the least bad now, or not any more */
		return 0;
	}
	make_sure(l, j->now);
	add_to_plane(j, ev, l);
	if (l->sure >= (settings.loss_any ? 1 : settings.loss_samples)) {
		j->evs.accused++;
	} else {
		j->evs.innocent++;
		j->evs.samples += l->window_samples;
		j->evs.losses += l->window_losses;
	}
	return 0;
}

/* Whether the loss rule condemns an EV: any loss that is sure, or a ratio of its packets, if it is not as
 * with most of the others; or that of its plane. Where nothing arrives all may be late.
 */
static __always_inline int loses_too_much(const struct judging *j, const struct mrc_ev *ev, const struct mrc_path_stats *l)
{
	if (l->lost_bursts)
		return 0;
	if (settings.loss_any)
		return l->sure;
	if (j->lossy_planes >> (ev->plane & (MRC_MAX_PLANES - 1)) & 1)
		return 1;
	return (__u64)l->window_lost * 1000000 >= (__u64)settings.loss_ppm * l->window_tx &&
	       j->evs.innocent >= j->evs.accused &&
	       loses_more(l->sure, l->window_samples, j->evs.losses, j->evs.samples,
			  j->evs.innocent + j->evs.accused, settings.loss_samples);
}

/* The loss rule, where all EVs are known. */
static long judge_loss(__u64 i, void *context)
{
	struct judging *j = context;
	__u32 number = j->first + i, index = ev_index(j->host_id, number), state;
	struct mrc_path_stats *l = path_stats_at(index);
	struct mrc_ev *ev = ev_at(index);

	if (!ev || !l || !ev->configured)
		return 0;
	state = ev->state;
	if ((state != MRC_EV_GOOD && state != MRC_EV_SKIP) || !loses_too_much(j, ev, l))
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
	j->reports->settled = report_seq;
	j->reports->told_ns = bpf_be64_to_cpu(c->mrc.tx_ns);
	__builtin_memset(j->scratch->under_way, 0, sizeof(j->scratch->under_way));
	__builtin_memset(j->scratch->arrived, 0, sizeof(j->scratch->arrived));
	__builtin_memset(j->scratch->loss, 0, sizeof(j->scratch->loss));
	bpf_loop(n, judge_ev, j, 0);
	note_planes(j->host_id, j->first, n, j->reports->told_ns);
	j->reports->judged += j->judged;
	j->reports->lossy += j->lossy;
	j->reports->debt -= j->judged < j->reports->debt ? j->judged : j->reports->debt;
	add_other_part(&j->evs, j->host_id, j->first != 0, j->now);
	j->lossy_planes = lossy_planes(j->host_id, j->first != 0);
	if (j->evs.accused || j->lossy_planes)
		bpf_loop(n, judge_loss, j, 0);
}

#endif
