/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Piggybacks probe requests on traffic: decides when a packet carries one, and what pays for it. */
#ifndef MRC_PIGGYBACK_H
#define MRC_PIGGYBACK_H

#include "inner.h"
#include "send_probe.h"

#define PAID_PERCENT 150 /* traffic can pay for at most this share of idle_probes per second */
#define PAID_BURST 4 /* and for so many requests at once */

/* Note the priority of a large packet: requests have the same. A queueing discipline of this host may let small packets
 * of a higher priority overtake large ones, and a request that does so would report these missing.
 */
static __always_inline void note_priority(const struct __sk_buff *skb, __u32 host_id)
{
	struct mrc_reports *reports = is_small(skb) ? 0 : reports_at(host_id);

	if (reports && reports->priority != skb->priority + 1)
		reports->priority = skb->priority + 1;
}

/* Return 1 if traffic to this peer should carry a request now: after probe_packets packets, no sooner than gap_us after
 * the previous one, and not while too many reports are in flight; and after probe_late_us in any case.
 */
static __always_inline int is_report_due(const struct mrc_reports *reports, const struct mrc_rotation *rotation,
					 __u64 now, __u64 requested_ns, __u32 gap_us)
{
	__u64 late = health.probe_late_us * NS_PER_US;

	/* Never so many that the newest is forgotten before its reply can return. */
	if (late < reports->rtt_ns / 2)
		late = reports->rtt_ns / 2;
	if (aged(now, requested_ns, late) && aged(now, requested_ns, reordering_window(reports)))
		return 1;
	return rotation->unprobed >= health.probe_packets &&
	       aged(now, requested_ns, gap_us * NS_PER_US) &&
	       aged(now, requested_ns, reordering_window(reports)) &&
	       !is_report_window_full(reports);
}

static __always_inline __u32 *paid_probes(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&mrc_paid, &zero);
}

/* Return how many requests traffic may pay for up to now since the last refill. The limit exists because requests and
 * reports take CPU time, too.
 */
static __always_inline __u64 paid_max(const struct mrc_clock *clock, __u64 now)
{
	__s64 past = now - *(volatile __u64 *)&clock->refilled_ns;

	return PAID_BURST + (past > 0 ? past * PAID_PERCENT / 100 * health.idle_probes / NS_PER_S : 0);
}

/* Return 1 if a request may be piggybacked on this packet, and pay for it. The packets and bytes since the last request
 * pay, or else the host's budget does, of which an eighth is reserved for the tick.
 */
static __always_inline int can_pay_for_probe(struct __sk_buff *skb, const struct mrc_rotation *rotation, __u64 now)
{
	__u32 first, counts = report_size(0, &first), *sum = paid_probes();
	__u32 length = OUTER_L3 + sizeof(struct outer_l4) + probe_length(counts) +
		       (keeps_packet(skb, counts) ? skb->len : 0);
	struct mrc_clock *clock = tick_clock();

	if (!clock || !sum)
		return 0;
	if (rotation->unprobed >= PACKETS_PER_PROBE && rotation->unprobed_bytes >= BYTES_PER_PROBE_BYTE * length &&
	    *(volatile __u32 *)sum < paid_max(clock, now)) {
		__sync_fetch_and_add(sum, budget_cost(length));
		return 1;
	}
	if (aged(now, clock->active_ns, ACTIVE_NS / 2))
		clock->active_ns = now; /* the tick sees what is paid, not what is charged to the budget */
	if (*(volatile __s64 *)&clock->budget <= (__s64)budget_reserve())
		return 0;
	__sync_fetch_and_add(&clock->budget, -(__s64)budget_cost(length));
	return 1;
}

/* Return 1 if make_room() can make a request of a clone of this packet. */
static __noinline int can_piggyback(struct __sk_buff *skb)
{
	__u32 first;

	return keeps_packet(skb, report_size(0, &first)) || can_be_cut_off(skb);
}

/* Return 1 if traffic to this peer is so dense that its end is to be noticed: probe_packets packets since the last
 * request. Where the budget delayed that request, the packet rate decides, as if the request had been sent in time.
 */
static __always_inline int is_dense(const struct mrc_rotation *rotation, __u64 now, __u64 requested_ns)
{
	__u64 each_ns = health.probe_late_us * NS_PER_US / (health.probe_packets ?: 1);

	return rotation->unprobed >= health.probe_packets &&
	       (!rotation->denied || !aged(now, requested_ns, rotation->unprobed * each_ns));
}

/* Piggyback a request on this packet, if one is due. The packet is not pushed yet, or already popped; mrc_probe makes
 * the request of a clone. Returns 1 if it did.
 */
static __always_inline int piggyback_probe(struct __sk_buff *skb, const struct mrc_node *self, struct mrc_peer *peer,
					   struct mrc_rotation *rotation, struct request *r, __u32 gap_us)
{
	struct mrc_reports *reports = reports_at(r->host_id);
	__u64 requested_ns;

	if (!reports || !self->probe_ifindex)
		return 0;
	requested_ns = *(volatile __u64 *)&reports->requested_ns;
	if (!is_report_due(reports, rotation, r->now, requested_ns, gap_us) || !can_piggyback(skb))
		return 0;
	r->number = report_ev(r->host_id, linked_planes(self, peer));
	if (r->number == NO_SLOT)
		return 0;
	if (!can_pay_for_probe(skb, rotation, r->now)) {
		rotation->denied = 1;
		return 0;
	}
	if (!begin_report(reports, r, requested_ns))
		return 0;
	reports->traffic_class = r->traffic_class;
	if (is_dense(rotation, r->now, requested_ns))
		set_idle_timer(r->host_id, r->now);
	rotation->unprobed = 0;
	rotation->unprobed_bytes = 0;
	rotation->denied = 0;
	rotation->data = 0;
	send_clone(skb, self, CLONE_REQUEST, r);
	return 1;
}

#endif
