/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Applies replies to probes: notes round trips, has the report judged, and sends probe bursts on EVs that lag. */
#ifndef MRC_APPLY_REPLY_H
#define MRC_APPLY_REPLY_H

#include "maps.h"
#include "judge.h"

/* Probes in unpaid bursts: further EVs get one probe each until judged data packets have paid. */
#define BURST_PROBES_MAX 128
#define DELAY_MEMORY_NS 10000000000ULL /* clocks drift and routes change, so an older minimum says nothing */
#define EXTRA_DELAY_MAX_NS 50000000 /* a longer delay is clipped: the reordering window must not grow without bound */
#define SLOW_DELAYS 4 /* an EV is slow with so many times skip_delay_us */
#define SLOW_DOUBLINGS 8 /* of that time, at most */
#define SLOW_HOLD 128 /* times its delay: then the EV is tried again */
#define PROBES_OUTSTANDING_MAX 65536 /* the sequence number of an older probe is ambiguous */
#define REPLY_AGE_MAX_NS 5000000000ULL /* an older reply says nothing of the path now */

/* Note a round trip in the histogram, and smooth it into the EV's and the peer's. */
static __always_inline void note_rtt(struct mrc_reports *reports, struct mrc_path_stats *stats, __u64 rtt, __u32 plane)
{
	__u64 deviation = rtt > reports->rtt_ns ? rtt - reports->rtt_ns : reports->rtt_ns - rtt;

	observe(MRC_HISTOGRAM_RTT + (plane & (MRC_MAX_PLANES - 1)), rtt);
	if (rtt > 0xffffffff)
		rtt = 0xffffffff;
	stats->rtt_ns = stats->rtt_ns ? stats->rtt_ns - stats->rtt_ns / 8 + rtt / 8 : rtt;
	if (!reports->rtt_ns) {
		reports->rtt_ns = rtt;
		reports->rtt_var_ns = rtt / 2;
		return;
	}
	reports->rtt_var_ns += deviation / 4 - reports->rtt_var_ns / 4;
	reports->rtt_ns += rtt / 8 - reports->rtt_ns / 8;
}

/* Return the one-way delay beyond the least of the peer's EVs. The two hosts' clocks differ, so only differences have a
 * meaning.
 */
static __always_inline __u64 queueing_delay(struct mrc_reports *reports, __u64 delay, __u64 now)
{
	if ((__s64)(delay - reports->min_delay) < 0 || aged(now, reports->min_delay_ns, DELAY_MEMORY_NS)) {
		reports->min_delay = delay;
		reports->min_delay_ns = now;
	}
	return delay - reports->min_delay;
}

/* Smooth a probe's extra delay into its EV's and its plane's, and update the least of the peer. */
static __always_inline void note_extra_delay(struct mrc_reports *reports, const struct mrc_ev *ev,
					     struct mrc_path_stats *stats, __u32 host_id, __u64 delay,
					     __u64 requested_ns)
{
	__u32 late_ns = delay < EXTRA_DELAY_MAX_NS ? delay : EXTRA_DELAY_MAX_NS;

	stats->extra_delay_ns += late_ns / 4 - stats->extra_delay_ns / 4;
	note_plane_delay(host_id, ev->plane, late_ns, requested_ns);
	/* Up slowly, because the replies of one plane's EVs come in a row. */
	reports->least_extra_delay_ns += reports->least_extra_delay_ns > late_ns ?
						 late_ns - reports->least_extra_delay_ns :
						(late_ns - reports->least_extra_delay_ns) / (8 * settings.evs_per_peer);
}

/* Note that the peer has answered: it is not silent, and one expected answer fewer is pending. */
static __always_inline void note_answer(__u32 host_id, int is_expected)
{
	struct mrc_watch *watch = watch_at(host_id);

	if (!watch)
		return;
	if (watch->unanswered)
		watch->unanswered = 0;
	if (watch->silent == 1) {
		watch->silent = MRC_HEARD_AGAIN;
		watch->due_ns = 0;
		end_calm(host_id);
	}
	if (watch->pending && is_expected)
		watch->pending--;
}

/* Return by how much a delay exceeds the least recent one of the peer's EVs. */
static __always_inline __u64 excess(__u64 delay, const struct mrc_reports *reports)
{
	return delay > reports->least_extra_delay_ns ? delay - reports->least_extra_delay_ns : 0;
}

/* Leave an EV that is slow, for a time in proportion to how much slower it is, which doubles each time that it is slow again
 * soon: TCP waits for what arrives so late, and takes it for lost. The tick returns it. Returns 1 if the usable EVs must
 * be computed again.
 */
static __always_inline int leave_slow_ev(const struct judging *j, __u32 number)
{
	__u32 index = ev_index(j->host_id, number), hold_ms;
	struct mrc_path_stats *stats = path_stats_at(index);
	struct mrc_ev *ev = ev_at(index);

	if (!ev || !stats || stats->lag_ns)
		return 0;
	if (!is_slow(ev)) {
		if (ev->state == MRC_EV_SKIP) /* by congestion */
			ev->skip_reason = MRC_REASON_SLOW;
		else if (!transit(j->host_id, number, MRC_EV_GOOD, MRC_EV_SKIP, MRC_REASON_SLOW))
			return 0;
		stats->backoff = aged(j->now, ev->state_since_ns, health.hold_down_max_ms * NS_PER_MS) ?
					 0 :
					 lesser(stats->backoff + 1, SLOW_DOUBLINGS);
	}
	hold_ms = SLOW_HOLD * excess(stats->extra_delay_ns, j->reports) / NS_PER_MS;
	stats->probe_after_ns = j->now + hold_down_ns(stats->backoff + 1, hold_ms, health.hold_down_max_ms);
	set_deadline(j->host_id, number);
	end_calm(j->host_id);
	return 1;
}

/* Apply what a reply says of the EV that its request travelled on. Changes nothing if no such request was sent. */
static __always_inline enum mrc_drop apply_to_ev(const struct control *c, struct judging *j, __u32 number)
{
	__u32 index = ev_index(j->host_id, number), seq = bpf_ntohl(c->probe.seq);
	struct mrc_path_stats *stats = path_stats_at(index);
	struct mrc_ev *ev = ev_at(index);
	__u64 rtt = j->now - j->requested_ns, delay, before_ns;

	if (!ev || !stats || !ev->configured)
		return MRC_DROP_BAD_EV;
	if (ev->probe_seq - seq >= PROBES_OUTSTANDING_MAX || j->now - j->requested_ns > REPLY_AGE_MAX_NS)
		return MRC_DROP_UNSOLICITED_REPLY;
	if ((__s32)(seq - stats->reply_seq) <= 0)
		return MRC_DROP_NONE; /* overtaken: replies return on different EVs */
	stats->reply_seq = seq;
	stats->replies++;
	/* Nothing had arrived on the EV: from now on it gets probes as often as any other. */
	if (stats->backoff > 1 && (stats->lag_ns || !is_in_use(ev))) {
		stats->backoff = 0;
		stats->probe_after_ns = 0;
		serve_soon(j->host_id);
	}
	if (ev->state == MRC_EV_UNKNOWN && aged(j->requested_ns, ev->state_since_ns, 0))
		j->changed |= transit(j->host_id, number, MRC_EV_UNKNOWN, MRC_EV_GOOD, MRC_REASON_PROBED);
	delay = queueing_delay(j->reports, bpf_be64_to_cpu(c->mrc.tx_ns) - j->requested_ns, j->now);
	j->delayed = health.skip_delay_us && delay > health.skip_delay_us * NS_PER_US &&
		     rtt > 2 * j->reports->rtt_ns;
	note_rtt(j->reports, stats, rtt, ev->plane);
	before_ns = stats->extra_delay_ns;
	/* A new minimum is no measurement: it may be the first reply after DELAY_MEMORY_NS. */
	if (j->reports->min_delay_ns != j->now)
		note_extra_delay(j->reports, ev, stats, j->host_id, delay, j->requested_ns);
	j->slow = j->delayed && excess(delay, j->reports) > SLOW_DELAYS * health.skip_delay_us * NS_PER_US &&
		  excess(before_ns, j->reports) > SLOW_DELAYS * health.skip_delay_us * NS_PER_US;
	return MRC_DROP_NONE;
}

/* Return 1 if the reply carries the report that was requested under its sequence number. */
static __always_inline int is_requested_report(const struct control *c, const struct judging *j)
{
	__u32 report_seq = bpf_ntohl(c->probe.report_seq), first, counts = report_size(report_seq, &first);

	return (__s32)(j->reports->report_seq - report_seq) >= 0 &&
	       j->reports->report_seq - report_seq < MRC_REPORT_SLOTS &&
	       j->reports->sent_ns[report_seq & (MRC_REPORT_SLOTS - 1)] == j->requested_ns &&
	       bpf_ntohs(c->probe.first) == first && bpf_ntohs(c->probe.counts) == counts;
}

/* Return 1 if the report is newer than all that were applied, and its marks still exist. It must be both requested
 * later and made later, because requests overtake each other, too. The caller holds `busy`.
 */
static __always_inline int is_newest_report(const struct control *c, const struct judging *j)
{
	__u32 report_seq = bpf_ntohl(c->probe.report_seq);

	return (__s32)(report_seq - j->reports->applied_seq) > 0 &&
	       j->reports->report_seq - report_seq < reports_kept() &&
	       !is_overtaken(bpf_be64_to_cpu(c->mrc.tx_ns), j->reports->report_tx_ns);
}

/* Probe bursts to send. */
struct bursts {
	struct __sk_buff *skb;
	struct mrc_node *node;
	struct mrc_scratch *scratch;
	struct request request;
	__u32 each; /* probes per EV */
	__u32 sent;
};

/* Send one probe of a burst. */
static long send_burst_probe(__u64 i, void *context)
{
	struct bursts *v = context;
	struct mrc_path_stats *stats;
	struct mrc_ev *ev;
	__u32 index;

	/* Now, not earlier: sending a burst can take longer than a packet takes to arrive. */
	v->request.now = now_ns();
	v->request.number = v->scratch->lagging[i / (v->each ?: 1) & (BURSTS_AT_ONCE - 1)];
	v->sent += send_request_in_place(v->skb, v->node, &v->request, 1); /* a call more is too much for Linux 6.1's stack */
	index = ev_index(v->request.host_id, v->request.number);
	ev = ev_at(index);
	stats = path_stats_at(index);
	if (ev && stats)
		stats->burst_end = ev->probe_seq;
	return 0;
}

/* Send probes on the EVs that lag, and charge the host's budget. They are made of the reply that showed the lag. */
static __noinline void send_bursts(struct __sk_buff *skb, const struct judging *j)
{
	struct bursts v = { .skb = skb, .node = node(), .scratch = j->scratch };
	struct mrc_clock *clock = tick_clock();

	v.request.host_id = j->host_id;
	v.request.kind = MRC_PROBE_SUSPICION;
	/* Bursts on many lossy paths would cost too much. Once the bound is reached, or the host's budget is spent, an EV
	 * gets one probe.
	 */
	if (!v.node || !clock)
		return;
	v.each = 1;
	if (j->reports->unpaid_packets < BURST_PROBES_MAX * PACKETS_PER_PROBE && clock->budget > 0) {
		v.each = BURST_PROBES / j->bursts;
		j->reports->unpaid_packets += v.each * j->bursts * PACKETS_PER_PROBE;
	}
	/* On virtual links the reply counts as encapsulated, and the kernel does not shorten it. Then the probes keep
	 * its length.
	 */
	bpf_skb_change_tail(skb, OUTER_L3 + sizeof(struct outer_l4) + probe_length(0), 0);
	bpf_loop(v.each * j->bursts, send_burst_probe, &v, 0);
	__sync_fetch_and_add(&clock->budget, -(__s64)v.sent * budget_cost(skb->len));
}

/* Check that the reply in `scratch`, whose counts are loaded, answers a request of a moment ago for the first time, and
 * its tag. The tag comes last: it is of up to 1 KB, and anyone can send a reply.
 */
static __always_inline enum mrc_drop check_reply(struct mrc_scratch *scratch, __u32 host_id, __u64 now)
{
	const struct control *c = &scratch->control;
	__u64 requested_ns = bpf_be64_to_cpu(c->probe.tx_ns);
	struct mrc_auth *auth = auth_at(host_id);
	struct mrc_replay *replay = replay_at(host_id);
	__u32 number = bpf_ntohl(c->mrc.seq);
	enum mrc_drop reason;
	const __u64 *key;

	if (!auth || !replay)
		return MRC_DROP_BAD_PROBE;
	key = receiving_key(auth, c->mrc.key_id, &reason);
	if (!key)
		return accept_untagged(auth, c->mrc.key_id, reason);
	if (now - requested_ns > AGE_MAX_NS)
		return MRC_DROP_STALE;
	/* Of tables before these: its number must not become the newest. */
	if (auth->sent - number >= PROBES_OUTSTANDING_MAX)
		return MRC_DROP_UNSOLICITED_REPLY;
	if (has_arrived(replay->replies, number, 0))
		return MRC_DROP_REPLAYED;
	if (reply_tag(key[0], key[1], scratch) != c->mrc.auth)
		return MRC_DROP_BAD_TAG;
	if (!is_first(replay->replies, number, 0))
		return MRC_DROP_REPLAYED;
	learn_clock(auth, bpf_be64_to_cpu(c->mrc.tx_ns), requested_ns, now);
	return MRC_DROP_NONE;
}

/* Apply the reply in `scratch`; its probe begins at offset `at`. */
static __always_inline enum mrc_drop apply_reply(struct __sk_buff *skb, struct mrc_scratch *scratch,
						 struct mrc_peer *peer, __u32 host_id, __u32 number, __u32 at)
{
	const struct control *c = &scratch->control;
	__u32 bytes = counts_bytes(c);
	struct judging j = { .host_id = host_id, .scratch = scratch };
	const struct mrc_ev *ev;
	enum mrc_drop reason;

	j.reports = reports_at(host_id);
	if (!j.reports)
		return MRC_DROP_BAD_PROBE;
	j.now = now_ns();
	j.requested_ns = bpf_be64_to_cpu(c->probe.tx_ns);
	if (c->probe.counts) {
		OPAQUE(bytes);
		if (bytes < sizeof(struct mrc_count) || bytes > sizeof(j.scratch->count))
			return MRC_DROP_BAD_PROBE;
		OPAQUE(bytes);
		if (bpf_skb_load_bytes(skb, at + sizeof(c->probe) + MRC_BALLAST, j.scratch->count, bytes))
			return MRC_DROP_BAD_PROBE;
	}
	reason = check_reply(scratch, host_id, j.now);
	if (reason)
		return reason;
	reason = apply_to_ev(c, &j, number);
	if (reason)
		return reason;
	ev = ev_at(ev_index(host_id, number));
	note_answer(host_id, !c->probe.counts && ev && is_answer_expected(host_id, number, ev));
	/* Otherwise another CPU applies a report, or a newer report has overtaken this one. Skipping it loses nothing:
	 * counts are cumulative.
	 */
	if (bytes && is_requested_report(c, &j) && !__sync_lock_test_and_set(&j.reports->busy, 1)) {
		if (is_newest_report(c, &j))
			judge_report(&j, c);
		__sync_lock_test_and_set(&j.reports->busy, 0);
	}
	if (j.slow)
		j.changed |= leave_slow_ev(&j, number);
	else if (j.delayed)
		transit(host_id, number, MRC_EV_GOOD, MRC_EV_SKIP, MRC_REASON_CONGESTED);
	if (j.changed)
		refresh_usable(peer, host_id);
	if (j.bursts)
		send_bursts(skb, &j);
	return MRC_DROP_NONE;
}

#endif
