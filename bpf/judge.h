/* Judging paths by the peer's reports.
 *
 * RACK across paths, by counts: if a report that was asked for later came back, and of what was sent on
 * an EV before something has not arrived by then, the EV lags, and is left at once (SKIP): it may be
 * dead. Volleys of probes on it decide: when one arrives whole the EV is given back; when nothing
 * arrives, several times and over some time, it is ASSUMED_BAD. What arrives in part, of data or of
 * probes, is for the loss rule. A host, a peer or a machine that stands still sends no reports, so it
 * demotes nobody.
 */
#ifndef MRC_JUDGE_H
#define MRC_JUDGE_H

#include "probe.h"

#define TRIALS 6 /* volleys of which nothing arrived make a lagging EV ASSUMED_BAD, */
#define TRIALS_PER_PERIOD 16 /* sent at most so many times in the least time that it takes */
#define VOLLEY 16 /* probes, divided among the EVs that are tried at once */
#define PACKETS_PER_TRIAL 50 /* so that volleys are 2 % of the packets in the long run, */
#define TRIALS_MOST 128 /* after as many at once */

struct judging {
	struct mrc_rounds *rounds;
	struct mrc_scratch *scratch;
	__u64 now;
	__u64 asked_ns;
	__u64 trial_gap_ns;
	__u32 host_id;
	__u32 first;
	__u32 counts;
	__u32 from; /* where the round begins: each report with others, so that all are tried in their turn */
	__u32 slot; /* of the marks */
	__u32 generation;
	__u32 innocent; /* EVs in use with fewer losses than it takes, */
	__u32 samples; /* and these EVs' samples and losses */
	__u32 losses;
	__u32 accused; /* EVs in use with enough losses to be looked at */
	__u32 judged; /* data packets */
	__u32 trials; /* EVs in scratch->trial */
	__u32 changed; /* other EVs are usable than before */
	__u32 delayed; /* the EV of the request has more delay than the others */
};

/* New tables over there, or the first report ever: what they count says nothing of before. */
static __always_inline void begin_generation(struct mrc_ledger *l, const struct mrc_ev *ev,
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

/* Packets that were counted as lost have come after all. */
static __always_inline void unlose(struct mrc_ledger *l, __u32 found)
{
	__u32 left = l->window_lost > found ? l->window_lost - found : 0, losses;

	if (!l->window_lost)
		return;
	losses = (__u64)l->window_losses * left / l->window_lost;
	l->window_losses = losses;
	l->window_lost = left;
	if (l->unsure > losses)
		l->unsure = losses;
	if (l->sure > losses)
		l->sure = losses;
}

static __always_inline void lose(struct mrc_ledger *l, __u32 lost, __u32 losses)
{
	l->window_lost += lost;
	l->window_losses += losses;
}

/* Losses that have been known for some time are sure: late packets would have come. */
static __always_inline void make_sure(struct mrc_ledger *l, __u64 now)
{
	if (!aged(now, l->unsure_ns, settings.overdue_us * NS_PER_US / 2))
		return;
	l->sure = l->unsure;
	l->unsure = l->window_losses;
	l->unsure_ns = now;
}

static __always_inline void sample(struct mrc_ledger *l, __u32 packets, __u32 samples)
{
	l->window_tx += packets;
	l->window_samples += samples;
}

static __always_inline void fade(struct mrc_ledger *l, __u64 now)
{
	__u16 epoch = now / (settings.loss_window_us * NS_PER_US / 2 ?: 1), past = epoch - l->epoch;
	__u32 shift = past < 16 ? past : 16;

	l->epoch = epoch;
	if (!shift || settings.loss_any) /* any loss is remembered until it is judged */
		return;
	l->window_tx >>= shift;
	l->window_lost >>= shift;
	l->window_samples >>= shift;
	l->window_losses >>= shift;
	l->unsure >>= shift;
	l->sure >>= shift;
}

/* A lagging EV: leave it, try it, and condemn it after enough of that. */
static __always_inline void pursue(struct judging *j, struct mrc_ev *ev, struct mrc_ledger *l, __u32 number)
{
	__u32 state = ev->state;

	if (state == MRC_EV_GOOD) {
		j->changed |= transit(j->host_id, number, MRC_EV_GOOD, MRC_EV_SKIP, MRC_REASON_LAGGING);
	} else if (state != MRC_EV_SKIP) {
		return;
	} else if (l->lag_ns == j->now) {
		ev->skip_reason = MRC_REASON_LAGGING; /* it was congested */
		j->changed = 1;
	}
	if (l->trials >= TRIALS && aged(j->now, l->lag_ns, settings.overdue_us * NS_PER_US)) {
		j->changed |= transit(j->host_id, number, state, MRC_EV_ASSUMED_BAD, MRC_REASON_OVERDUE);
		return;
	}
	if ((l->lag_ns == j->now || aged(j->now, ev->probe_ns, j->trial_gap_ns)) &&
	    j->trials < TRIALS_AT_ONCE) {
		l->tried = ev->probe_seq + 1; /* send_trial says how many more */
		j->scratch->trial[j->trials++ & (TRIALS_AT_ONCE - 1)] = number;
	}
}

static __always_inline void note_ce(struct judging *j, struct mrc_ev *ev, struct mrc_ledger *l, __u32 number,
				    __u16 ce)
{
	__u16 marked = ce - l->ce;

	l->ce = ce;
	if (!marked)
		return;
	l->rx_ce += marked;
	if (ev->state == MRC_EV_GOOD)
		transit(j->host_id, number, MRC_EV_GOOD, MRC_EV_SKIP, MRC_REASON_CONGESTED);
}

static __always_inline void release(struct judging *j, struct mrc_ev *ev, struct mrc_ledger *l, __u32 number)
{
	l->lag_ns = 0;
	if (ev->state == MRC_EV_SKIP)
		j->changed |= transit(j->host_id, number, MRC_EV_SKIP, MRC_EV_GOOD, MRC_REASON_LAGGING);
}

static long judge_ev(__u64 i, void *context)
{
	struct judging *j = context;
	__u32 at = (j->from + i) % j->counts, number = j->first + at;
	__u32 index = ev_index(j->host_id, number), deficit, packets;
	struct mrc_count *count = &j->scratch->count[at & (MRC_REPORT_EVS - 1)];
	struct mrc_ledger *l = ledger_at(index);
	struct mrc_ev *ev = ev_at(index);
	__u32 mark, slot = j->slot & (MRC_ROUNDS - 1), judged;
	__u16 probes, missed;
	int arrived, grew, was;
	__u64 now = j->now;

	if (!ev || !l || !ev->configured)
		return 0;
	packets = bpf_ntohl(count->packets);
	probes = bpf_ntohs(count->probes);
	was = rank_at(index, ~0u);
	if (l->generation != j->generation) {
		release(j, ev, l, number);
		begin_generation(l, ev, count, j->generation, now);
		return 0;
	}
	fade(l, now);
	if (ev->state == MRC_EV_SKIP && !l->lag_ns) /* congested, and its round is over, though nobody passed */
		transit(j->host_id, number, MRC_EV_SKIP, MRC_EV_GOOD, MRC_REASON_CONGESTED);
	/* More arrived than was sent: packets were on their way when the generation began. */
	if ((__s32)((__u32)ev->tx_packets - l->offset - packets) < 0)
		l->offset = (__u32)ev->tx_packets - packets;
	if ((__s16)((__u16)ev->probe_seq - l->probe_offset - probes) < 0) {
		l->probe_offset = (__u16)ev->probe_seq - probes;
		l->rx_probes = probes;
		l->missed = 0;
	}
	mark = ev->mark_tx[slot];
	deficit = known_lost(l->deficit, mark - l->offset - packets, (__u32)ev->tx_packets - l->offset - packets);
	missed = known_lost(l->missed, (__s16)((__u16)ev->mark_probes[slot] - l->probe_offset - probes),
			    (__s16)((__u16)ev->probe_seq - l->probe_offset - probes));
	arrived = packets != l->rx || probes != l->rx_probes;
	grew = deficit > l->deficit || missed > l->missed;

	if (grew && !l->window_lost)
		begin_loss_window(l); /* the ratio is of what was sent since the first loss */
	judged = (__s32)(mark - l->judged_tx) > 0 ? mark - l->judged_tx : 0;
	if (judged) {
		l->judged += judged;
		l->judged_tx = mark;
		sample(l, judged, 1);
		j->judged += judged;
	}
	judged = (__u16)(probes - l->rx_probes + missed - l->missed);
	sample(l, judged, judged);
	if (deficit > l->deficit)
		lose(l, deficit - l->deficit, 1);
	else if (deficit < l->deficit)
		unlose(l, l->deficit - deficit);
	if (missed > l->missed)
		lose(l, missed - l->missed, missed - l->missed);
	else if (missed < l->missed)
		unlose(l, l->missed - missed);
	if (grew) {
		l->loss_ns = now;
		l->good = 0;
		l->trials += !arrived && missed > l->missed;
	}
	l->deficit = deficit;
	l->missed = missed;
	l->rx = packets;
	l->rx_probes = probes;
	if (arrived) {
		l->arrived_ns = j->asked_ns;
		l->after_good = mark;
		l->trials = l->trials > 1; /* the rest of what was held up may follow */
		if (!grew && l->good < 0xffff)
			l->good++;
		/* Given back when the whole volley is accounted for, and nothing of it is new among the lost. */
		if (!grew && l->lag_ns && (__s16)(probes + l->probe_offset + missed - l->tried) >= 0)
			release(j, ev, l, number);
	}
	if (grew && !l->lag_ns) {
		l->lag_ns = now;
		l->trials = 0;
	}
	if (grew)
		l->tried = ev->probe_seq + VOLLEY; /* no volley yet, or one that has lost some: the rest says nothing */
	if (l->lag_ns)
		pursue(j, ev, l, number);
	note_ce(j, ev, l, number, bpf_ntohs(count->ce));
	if (ev->state != MRC_EV_GOOD && ev->state != MRC_EV_SKIP) {
		j->changed |= rank_at(index, ~0u) != was; /* it may be the least bad now, or not any more */
		return 0;
	}
	make_sure(l, now);
	if (l->sure >= (settings.loss_any ? 1 : settings.loss_samples)) {
		j->accused++;
	} else {
		j->innocent++;
		j->samples += l->window_samples;
		j->losses += l->window_losses;
	}
	return 0;
}

/* Whether the loss rule condemns an EV: any loss that is sure, or a ratio of its packets, if it is not as
 * with most of the others. Where nothing arrives all may be late.
 */
static __always_inline int loses_too_much(const struct judging *j, const struct mrc_ledger *l)
{
	if (l->trials)
		return 0;
	if (settings.loss_any)
		return l->sure;
	return (__u64)l->window_lost * 1000000 >= (__u64)settings.loss_ppm * l->window_tx &&
	       j->innocent >= j->accused &&
	       loses_more(l->sure, l->window_samples, j->losses, j->samples,
			  j->innocent + j->accused, settings.loss_samples);
}

/* The loss rule, where all EVs are known. */
static long judge_loss(__u64 i, void *context)
{
	struct judging *j = context;
	__u32 number = j->first + i, index = ev_index(j->host_id, number), state;
	struct mrc_ledger *l = ledger_at(index);
	struct mrc_ev *ev = ev_at(index);

	if (!ev || !l || !ev->configured)
		return 0;
	state = ev->state;
	if ((state != MRC_EV_GOOD && state != MRC_EV_SKIP) || !loses_too_much(j, l))
		return 0;
	j->changed |= transit(j->host_id, number, state, MRC_EV_ASSUMED_BAD, MRC_REASON_LOSS);
	return 0;
}

/* ---- replies ---------------------------------------------------------------------------- */

static __always_inline void note_rtt(struct mrc_rounds *rounds, struct mrc_ledger *l, __u64 rtt, __u32 plane)
{
	__u64 off = rtt > rounds->rtt_ns ? rtt - rounds->rtt_ns : rounds->rtt_ns - rtt;

	observe(MRC_HISTOGRAM_RTT + (plane & (MRC_MAX_PLANES - 1)), rtt);
	if (rtt > 0xffffffff)
		rtt = 0xffffffff;
	l->rtt_ns = l->rtt_ns ? l->rtt_ns - l->rtt_ns / 8 + rtt / 8 : rtt;
	if (!rounds->rtt_ns) {
		rounds->rtt_ns = rtt;
		rounds->rtt_var_ns = rtt / 2;
		return;
	}
	rounds->rtt_var_ns += off / 4 - rounds->rtt_var_ns / 4;
	rounds->rtt_ns += rtt / 8 - rounds->rtt_ns / 8;
}

#define DELAY_MEMORY_NS 10000000000ULL /* clocks drift, and routes change */

/* One-way delay, more than the least of the peer's EVs. Two clocks: only differences mean something. */
static __always_inline __u64 queueing_delay(struct mrc_rounds *rounds, __u64 delay, __u64 now)
{
	if ((__s64)(delay - rounds->min_delay) < 0 || aged(now, rounds->min_delay_ns, DELAY_MEMORY_NS)) {
		rounds->min_delay = delay;
		rounds->min_delay_ns = now;
	}
	return delay - rounds->min_delay;
}

#define ASKED_LATELY 65536 /* probes on an EV */
#define ANSWERED_WITHIN_NS 5000000000ULL

/* What a reply says of the EV by which its request went. Changes nothing if nobody asked for it. */
static __always_inline enum mrc_drop settle_ev(const struct control *c, struct judging *j, __u32 number)
{
	__u32 index = ev_index(j->host_id, number), seq = bpf_ntohl(c->probe.seq);
	struct mrc_ledger *l = ledger_at(index);
	struct mrc_ev *ev = ev_at(index);
	__u64 rtt = j->now - j->asked_ns, delay;

	if (!ev || !l || !ev->configured)
		return MRC_DROP_BAD_EV;
	if (ev->probe_seq - seq >= ASKED_LATELY || j->now - j->asked_ns > ANSWERED_WITHIN_NS)
		return MRC_DROP_UNASKED_REPLY;
	if ((__s32)(seq - l->reply_seq) <= 0)
		return MRC_DROP_NONE; /* overtaken: replies come back by different EVs */
	l->reply_seq = seq;
	l->replies++;
	delay = queueing_delay(j->rounds, bpf_be64_to_cpu(c->mrc.tx_ns) - j->asked_ns, j->now);
	j->delayed = settings.skip_delay_us && delay > settings.skip_delay_us * NS_PER_US &&
		     rtt > 2 * j->rounds->rtt_ns;
	note_rtt(j->rounds, l, rtt, ev->plane);
	return MRC_DROP_NONE;
}

/* Whether this is the report that was asked for in its round, and newer than those that came back. */
static __always_inline int report_is_new(const struct control *c, const struct judging *j)
{
	__u32 round = bpf_ntohl(c->probe.round), chunks = report_chunks() ?: 1;
	__u32 first = (round % chunks) * MRC_REPORT_EVS, left = settings.evs_per_peer - first;

	return (__s32)(round - j->rounds->settled) > 0 && (__s32)(j->rounds->round - round) >= 0 &&
	       j->rounds->round - round < MRC_REPORT_SLOTS &&
	       j->rounds->round - round < MRC_ROUNDS * chunks &&
	       j->rounds->sent_ns[round & (MRC_REPORT_SLOTS - 1)] == j->asked_ns &&
	       bpf_ntohs(c->probe.first) == first &&
	       bpf_ntohs(c->probe.counts) == (left < MRC_REPORT_EVS ? left : MRC_REPORT_EVS);
}

static __always_inline void judge_report(struct judging *j, const struct control *c)
{
	__u32 n = bpf_ntohs(c->probe.counts), round = bpf_ntohl(c->probe.round);

	j->first = bpf_ntohs(c->probe.first);
	j->counts = n;
	j->from = round * TRIALS_AT_ONCE;
	j->slot = round / (report_chunks() ?: 1);
	j->generation = bpf_ntohl(c->probe.generation);
	j->trial_gap_ns = settings.overdue_us * NS_PER_US / TRIALS_PER_PERIOD;
	j->rounds->settled = round;
	bpf_loop(n, judge_ev, j, 0);
	j->rounds->debt -= j->judged < j->rounds->debt ? j->judged : j->rounds->debt;
	if (j->accused)
		bpf_loop(n, judge_loss, j, 0);
}

struct volleys {
	struct __sk_buff *skb;
	struct mrc_node *node;
	struct mrc_scratch *scratch;
	struct request request;
	__u32 each; /* probes per EV */
};

static long send_trial(__u64 i, void *context)
{
	struct volleys *v = context;
	struct mrc_ledger *l;
	struct mrc_ev *ev;
	__u32 index;

	v->request.number = v->scratch->trial[i / (v->each ?: 1) & (TRIALS_AT_ONCE - 1)];
	send_request(v->skb, v->node, &v->request);
	index = ev_index(v->request.host_id, v->request.number);
	ev = ev_at(index);
	l = ledger_at(index);
	if (ev && l)
		l->tried = ev->probe_seq;
	return 0;
}

/* Probes on EVs that lag, made of the reply that made it known. */
static __always_inline void send_trials(struct __sk_buff *skb, const struct judging *j)
{
	struct volleys v = { .skb = skb, .node = node(), .scratch = j->scratch };

	v.request.now = j->now;
	v.request.host_id = j->host_id;
	if (!v.node || !j->trials)
		return;
	/* Where many paths lose, many are tried: with one probe each after a while. */
	v.each = 1;
	if (j->rounds->debt < TRIALS_MOST * PACKETS_PER_TRIAL) {
		v.each = VOLLEY / j->trials;
		j->rounds->debt += v.each * j->trials * PACKETS_PER_TRIAL;
	}
	/* Virtual links hand over replies that count as encapsulated: those stay as long as they are. */
	bpf_skb_change_tail(skb, OUTER_L3 + sizeof(struct outer_l4) + probe_length(0), 0);
	bpf_loop(v.each * j->trials, send_trial, &v, 0);
}

/* A reply came back; `at` is where its probe begins. */
static __always_inline enum mrc_drop settle(struct __sk_buff *skb, const struct control *c,
					    struct mrc_peer *peer, __u32 host_id, __u32 number, __u32 at)
{
	__u32 zero = 0, bytes = counts_bytes(c);
	struct judging j = { .host_id = host_id };
	enum mrc_drop reason;

	j.rounds = rounds_at(host_id);
	j.scratch = bpf_map_lookup_elem(&mrc_scratch, &zero);
	if (!j.rounds || !j.scratch)
		return MRC_DROP_BAD_PROBE;
	j.now = bpf_ktime_get_ns();
	j.asked_ns = bpf_be64_to_cpu(c->probe.tx_ns);
	if (c->probe.counts && (!bytes || bpf_skb_load_bytes(skb, at + sizeof(c->probe) + MRC_BALLAST,
							     j.scratch->count, bytes)))
		return MRC_DROP_BAD_PROBE;
	reason = settle_ev(c, &j, number);
	if (reason)
		return reason;
	/* Else a newer one has overtaken it, or another CPU is at one: this one can be spared. */
	if (bytes && report_is_new(c, &j) && !__sync_lock_test_and_set(&j.rounds->busy, 1)) {
		judge_report(&j, c);
		__sync_lock_test_and_set(&j.rounds->busy, 0);
	}
	if (j.delayed)
		transit(host_id, number, MRC_EV_GOOD, MRC_EV_SKIP, MRC_REASON_CONGESTED);
	if (j.changed)
		refresh_usable(peer, host_id);
	if (j.trials)
		send_trials(skb, &j);
	return MRC_DROP_NONE;
}

#endif
