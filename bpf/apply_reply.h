/* What comes of a reply: round trips, a report for the judge, and probe bursts of probes on EVs that lag. */
#ifndef MRC_APPLY_REPLY_H
#define MRC_APPLY_REPLY_H

#include "judge.h"

#define BURST_PROBES_MOST 128 /* probes of probe bursts at once, which data packets have to pay for later */

static __always_inline void note_rtt(struct mrc_reports *reports, struct mrc_path_stats *l, __u64 rtt, __u32 plane)
{
	__u64 off = rtt > reports->rtt_ns ? rtt - reports->rtt_ns : reports->rtt_ns - rtt;

	observe(MRC_HISTOGRAM_RTT + (plane & (MRC_MAX_PLANES - 1)), rtt);
	if (rtt > 0xffffffff)
		rtt = 0xffffffff;
	l->rtt_ns = l->rtt_ns ? l->rtt_ns - l->rtt_ns / 8 + rtt / 8 : rtt;
	if (!reports->rtt_ns) {
		reports->rtt_ns = rtt;
		reports->rtt_var_ns = rtt / 2;
		return;
	}
	reports->rtt_var_ns += off / 4 - reports->rtt_var_ns / 4;
	reports->rtt_ns += rtt / 8 - reports->rtt_ns / 8;
}

#define DELAY_MEMORY_NS 10000000000ULL /* clocks drift, and routes change */

/* One-way delay, more than the least of the peer's EVs. Two clocks: only differences mean something. */
static __always_inline __u64 queueing_delay(struct mrc_reports *reports, __u64 delay, __u64 now)
{
	if ((__s64)(delay - reports->min_delay) < 0 || aged(now, reports->min_delay_ns, DELAY_MEMORY_NS)) {
		reports->min_delay = delay;
		reports->min_delay_ns = now;
	}
	return delay - reports->min_delay;
}

#define LATE_MOST_NS 50000000 /* longer is not waited for */

static __always_inline void note_late(struct mrc_reports *reports, const struct mrc_ev *ev, struct mrc_path_stats *l,
				      __u32 host_id, __u64 delay, __u64 asked_ns)
{
	__u32 late = delay < LATE_MOST_NS ? delay : LATE_MOST_NS;

	l->late_ns += late / 4 - l->late_ns / 4;
	note_plane_late(host_id, ev->plane, late, asked_ns);
	/* Slowly, for the answers of one plane's EVs come in a row. */
	reports->least_ns += reports->least_ns > late ? late - reports->least_ns :
						      (late - reports->least_ns) / (8 * settings.evs_per_peer);
}

/* The peer answers. */
static __always_inline void note_answer(__u32 host_id, int is_expected)
{
	struct mrc_watch *watch = watch_at(host_id);

	if (!watch)
		return;
	if (watch->unanswered || watch->silent) {
		watch->unanswered = 0;
		watch->silent = 0;
	}
	if (watch->pending && is_expected)
		watch->pending--;
}

#define ASKED_LATELY 65536 /* probes on an EV */
#define ANSWERED_WITHIN_NS 5000000000ULL

/* What a reply says of the EV by which its request went. Changes nothing if nobody asked for it. */
static __always_inline enum mrc_drop apply_to_ev(const struct control *c, struct judging *j, __u32 number)
{
	__u32 index = ev_index(j->host_id, number), seq = bpf_ntohl(c->probe.seq);
	struct mrc_path_stats *l = path_stats_at(index);
	struct mrc_ev *ev = ev_at(index);
	__u64 rtt = j->now - j->asked_ns, delay;

	if (!ev || !l || !ev->configured)
		return MRC_DROP_BAD_EV;
	if (ev->probe_seq - seq >= ASKED_LATELY || j->now - j->asked_ns > ANSWERED_WITHIN_NS)
		return MRC_DROP_UNSOLICITED_REPLY;
	if ((__s32)(seq - l->reply_seq) <= 0)
		return MRC_DROP_NONE; /* overtaken: replies come back by different EVs */
	l->reply_seq = seq;
	l->replies++;
	if (l->backoff > 1) { /* it was silent: from now on it is probed as often as any that failed */
		l->backoff = 0;
		l->probe_after_ns = 0;
		serve_soon(j->host_id);
	}
	if (ev->state == MRC_EV_UNKNOWN && aged(j->asked_ns, ev->state_since_ns, 0))
		j->changed |= transit(j->host_id, number, MRC_EV_UNKNOWN, MRC_EV_GOOD, MRC_REASON_PROBED);
	delay = queueing_delay(j->reports, bpf_be64_to_cpu(c->mrc.tx_ns) - j->asked_ns, j->now);
	j->delayed = settings.skip_delay_us && delay > settings.skip_delay_us * NS_PER_US &&
		     rtt > 2 * j->reports->rtt_ns;
	note_rtt(j->reports, l, rtt, ev->plane);
	if (j->reports->min_delay_ns != j->now) /* the least of all, or just the first after the memory's end: no news */
		note_late(j->reports, ev, l, j->host_id, delay, j->asked_ns);
	return MRC_DROP_NONE;
}

/* Whether this is the report that was asked for in its round. */
static __always_inline int was_asked_for(const struct control *c, const struct judging *j)
{
	__u32 report_seq = bpf_ntohl(c->probe.report_seq), first, counts = report_size(report_seq, &first);

	return (__s32)(j->reports->report_seq - report_seq) >= 0 && j->reports->report_seq - report_seq < MRC_REPORT_SLOTS &&
	       j->reports->sent_ns[report_seq & (MRC_REPORT_SLOTS - 1)] == j->asked_ns &&
	       bpf_ntohs(c->probe.first) == first && bpf_ntohs(c->probe.counts) == counts;
}

/* Whether it is newer than those that came back: asked for later, and made later, for requests overtake each
 * other too; and its marks are kept. Asked while this CPU holds `busy`.
 */
static __always_inline int report_is_new(const struct control *c, const struct judging *j)
{
	__u32 report_seq = bpf_ntohl(c->probe.report_seq);

	return (__s32)(report_seq - j->reports->settled) > 0 &&
	       j->reports->report_seq - report_seq < reports_kept() &&
	       !overtaken(bpf_be64_to_cpu(c->mrc.tx_ns), j->reports->told_ns);
}

struct bursts {
	struct __sk_buff *skb;
	struct mrc_node *node;
	struct mrc_scratch *scratch;
	struct request request;
	__u32 each; /* probes per EV */
};

static long send_burst_probe(__u64 i, void *context)
{
	struct bursts *v = context;
	struct mrc_path_stats *l;
	struct mrc_ev *ev;
	__u32 index;

	v->request.now = bpf_ktime_get_ns(); /* a probe burst takes longer than a packet may take to arrive */
	v->request.number = v->scratch->lagging[i / (v->each ?: 1) & (BURSTS_AT_ONCE - 1)];
	send_request(v->skb, v->node, &v->request);
	index = ev_index(v->request.host_id, v->request.number);
	ev = ev_at(index);
	l = path_stats_at(index);
	if (ev && l)
		l->burst_end = ev->probe_seq;
	return 0;
}

/* Probes on EVs that lag, made of the reply that made it known. */
static __noinline void send_bursts(struct __sk_buff *skb, const struct judging *j)
{
	struct bursts v = { .skb = skb, .node = node(), .scratch = j->scratch };
	const struct mrc_clock *clock;

	v.request.host_id = j->host_id;
	v.request.kind = MRC_PROBE_SUSPICION;
	if (!v.node)
		return;
	/* Where many paths lose, many are tried: with one probe each after a while, or while the host's budget is spent. */
	v.each = 1;
	clock = tick_clock();
	if (j->reports->debt < BURST_PROBES_MOST * PACKETS_PER_PROBE && clock && clock->budget > 0) {
		v.each = BURST_PROBES / j->bursts;
		j->reports->debt += v.each * j->bursts * PACKETS_PER_PROBE;
	}
	/* Virtual links hand over replies that count as encapsulated: those stay as long as they are. */
	bpf_skb_change_tail(skb, OUTER_L3 + sizeof(struct outer_l4) + probe_length(0), 0);
	bpf_loop(v.each * j->bursts, send_burst_probe, &v, 0);
}

/* A reply came back; `at` is where its probe begins. */
static __always_inline enum mrc_drop apply_reply(struct __sk_buff *skb, const struct control *c,
					    struct mrc_peer *peer, __u32 host_id, __u32 number, __u32 at)
{
	__u32 zero = 0, bytes = counts_bytes(c);
	struct judging j = { .host_id = host_id };
	const struct mrc_ev *ev;
	enum mrc_drop reason;

	j.reports = reports_at(host_id);
	j.scratch = bpf_map_lookup_elem(&mrc_scratch, &zero);
	if (!j.reports || !j.scratch)
		return MRC_DROP_BAD_PROBE;
	j.now = bpf_ktime_get_ns();
	j.asked_ns = bpf_be64_to_cpu(c->probe.tx_ns);
	if (c->probe.counts) {
		OPAQUE(bytes);
		if (bytes < sizeof(struct mrc_count) || bytes > sizeof(j.scratch->count))
			return MRC_DROP_BAD_PROBE;
		OPAQUE(bytes);
		if (bpf_skb_load_bytes(skb, at + sizeof(c->probe) + MRC_BALLAST, j.scratch->count, bytes))
			return MRC_DROP_BAD_PROBE;
	}
	reason = apply_to_ev(c, &j, number);
	if (reason)
		return reason;
	ev = ev_at(ev_index(host_id, number));
	note_answer(host_id, !c->probe.counts && ev && is_answer_expected(host_id, number, ev));
	/* Else another CPU is at one, or a newer one has overtaken it: this one can be spared. */
	if (bytes && was_asked_for(c, &j) && !__sync_lock_test_and_set(&j.reports->busy, 1)) {
		if (report_is_new(c, &j))
			judge_report(&j, c);
		__sync_lock_test_and_set(&j.reports->busy, 0);
	}
	if (j.delayed)
		transit(host_id, number, MRC_EV_GOOD, MRC_EV_SKIP, MRC_REASON_CONGESTED);
	if (j.changed)
		refresh_usable(peer, host_id);
	if (j.bursts)
		send_bursts(skb, &j);
	return MRC_DROP_NONE;
}

#endif
