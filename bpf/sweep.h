/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sweeps a peer: sends requests on its EVs in turn, made of a packet that is not needed otherwise, and then one for a
 * report.
 */
#ifndef MRC_SWEEP_H
#define MRC_SWEEP_H

#include "clock.h"
#include "send_probe.h"

/* A sweep of a peer. */
struct sweep {
	struct __sk_buff *skb; /* the packet of which requests are made */
	struct mrc_node *node;
	struct request request;
	__u32 first; /* EV to begin with */
	__u32 sent; /* requests */
};

/* Probe the i-th EV of a sweep, if a probe on it is due. */
static long sweep_ev(__u64 i, void *context)
{
	struct sweep *s = context;
	__u32 number = (s->first + i) % settings.evs_per_peer;
	const struct mrc_path_stats *stats = path_stats_at(ev_index(s->request.host_id, number));

	s->request.now = now_ns(); /* now, not earlier: a sweep can take longer than packets take to arrive */
	if (!stats || stats->probe_after_ns > s->request.now)
		return 0;
	s->request.number = number;
	s->sent += send_request(s->skb, s->node, &s->request);
	return 0;
}

/* Begin a report after a sweep, if one is due. Returns 1 if the request is to be sent. */
static __always_inline int begin_sweep_report(struct sweep *s, struct mrc_peer *peer, struct mrc_reports *reports)
{
	__u64 requested_ns;

	s->request.now = now_ns();
	s->request.number = report_ev(peer, s->request.host_id, reports, linked_planes(s->node, peer));
	requested_ns = *(volatile __u64 *)&reports->requested_ns;
	return s->request.number != NO_SLOT && aged(s->request.now, requested_ns, reordering_window(reports)) &&
	       aged(s->request.now, requested_ns, reports->rtt_ns / 2) &&
	       begin_report(reports, &s->request, requested_ns);
}

#endif
