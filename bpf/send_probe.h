/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sends probe requests: marks what was sent before a report, chooses the EV, and builds the packet. */
#ifndef MRC_SEND_PROBE_H
#define MRC_SEND_PROBE_H

#include "idle_timeout.h"
#include "probe.h"
#include "spray.h"

/* mrc_path_stats.long_sent: a first good report may have been requested before the long probe, the second was not. */
#define LONG_KNOWN 3
#define KEPT_PACKET_MAX 512 /* bytes: a longer packet is cut off, or it would be sent twice for nothing */

/* Have mrc_probe do `job` on a clone of this packet, at once. `r`: the request, or the copy's destination and number. */
static __always_inline void send_clone(struct __sk_buff *skb, const struct mrc_node *self, __u32 job,
				       const struct request *r)
{
	__u32 zero = 0;
	struct mrc_clone_job *slot = bpf_map_lookup_elem(&mrc_clone_jobs, &zero);

	if (!slot || !self->probe_ifindex)
		return;
	if (r)
		slot->request = *r;
	slot->job = job;
	bpf_clone_redirect(skb, self->probe_ifindex, 0);
	slot->job = 0;
}

/* Return the reordering window: packets sent longer ago than this have arrived or are lost. */
static __always_inline __u64 reordering_window(const struct mrc_reports *reports)
{
	__u64 window = reports->rtt_var_ns / 2, least = health.reorder_us * NS_PER_US;
	__u64 most = health.probe_gap_us * NS_PER_US;

	if (window > most)
		window = most;
	return window > least ? window : least;
}

/* The marks of a report. */
struct marking {
	__u64 now;
	__u64 window; /* reordering window, ns */
	__u32 least_extra_delay_ns; /* as mrc_reports.least_extra_delay_ns */
	__u32 index; /* of the report's first EV */
	__u32 slot; /* of the marks */
};

/* Mark what was sent on an EV at least a reordering window ago. */
static long mark_ev(__u64 i, void *context)
{
	struct marking *m = context;
	const struct mrc_ev *ev = ev_at(m->index + i);
	struct mrc_path_stats *stats = path_stats_at(m->index + i);
	__u32 tx, probes, noted_tx, slot = m->slot & (MRC_REPORTS_KEPT - 1);
	__u16 noted_probes;
	__u64 window;

	if (!ev || !stats)
		return 1;
	tx = *(volatile __u64 *)&ev->tx_packets;
	probes = *(volatile __u32 *)&ev->probe_seq;
	window = arrival_window(m->window, stats->extra_delay_ns, m->least_extra_delay_ns);
	/* The note is normally older than the window, and becomes the mark. Where this EV's window exceeds the interval
	 * of reports, the note stays until it is old enough, and the previous report's mark is used again.
	 */
	if (aged(m->now, stats->noted_ns, window)) {
		noted_tx = stats->noted_tx;
		noted_probes = stats->noted_probes;
		stats->noted_tx = tx;
		stats->noted_probes = probes;
		stats->noted_ns = later_than(m->now, ev->last_tx_ns); /* when all have left */
	} else {
		noted_tx = stats->mark_tx[(slot - 1) & (MRC_REPORTS_KEPT - 1)];
		noted_probes = stats->mark_probes[(slot - 1) & (MRC_REPORTS_KEPT - 1)];
	}
	stats->mark_tx[slot] = aged(m->now, ev->last_tx_ns, window) ? tx : noted_tx;
	stats->mark_probes[slot] = aged(m->now, stats->probe_ns, window) ? probes : noted_probes;
	return 0;
}

/* Return 1 if no further report can be in flight. */
static __always_inline int is_report_window_full(const struct mrc_reports *reports)
{
	return reports->report_seq - reports->applied_seq >= reports_kept();
}

/* Begin a report: mark what has been sent on each EV. `requested_ns` is when the previous one was requested. Returns 1
 * if this CPU is to send the request. A global function: the verifier checks it once, not at each call.
 */
__noinline int begin_report(struct mrc_reports *reports, struct request *r, __u64 requested_ns)
{
	struct marking m = {};
	__u32 first;

	if (!reports || !r)
		return 0;
	m.now = r->now;
	if (__sync_val_compare_and_swap(&reports->requested_ns, requested_ns, r->now) != requested_ns)
		return 0;
	r->report_seq = __sync_fetch_and_add(&reports->report_seq, 1) + 1;
	/* Another CPU may read the oldest marks; is_newest_report() guards the other side. */
	if (reports->busy && is_report_window_full(reports))
		return 0;
	r->counts = report_size(r->report_seq, &first);
	r->first = first;
	m.window = reordering_window(reports);
	m.least_extra_delay_ns = reports->least_extra_delay_ns;
	m.index = ev_index(r->host_id, r->first);
	m.slot = r->report_seq / report_parts();
	bpf_loop(r->counts, mark_ev, &m, 0);
	reports->sent_ns[r->report_seq & (MRC_REPORT_SLOTS - 1)] = r->now;
	return 1;
}

/* Return the EV for the next request, or NO_SLOT: usable EVs in turn over the planes. While no report returns, every
 * other request takes any EV: the usable ones may be dead, and only reports tell that others are not. A global
 * function, as begin_report().
 */
__noinline __u32 report_ev(__u32 host_id, __u32 plane_mask)
{
	struct mrc_reports *reports = reports_at(host_id);
	struct mrc_peer *peer = peer_at(host_id);
	struct choice choice = {};
	const struct mrc_ev *ev;
	__u32 cursor, slot;

	if (!reports || !peer)
		return NO_SLOT;
	cursor = reports->cursor++;
	if (cursor & 1 && is_report_window_full(reports)) {
		slot = cursor / 2 % settings.planes * settings.evs_per_plane +
		       cursor / 2 / settings.planes % peer->slots;
		ev = ev_at(ev_index(host_id, slot));
		if (ev && ev->configured && plane_mask & (1u << (ev->plane & 31)))
			return slot;
	}
	slot = cursor / settings.planes % peer->slots;
	if (!next_usable(peer, plane_mask, cursor % settings.planes, 0, slot, &choice))
		return NO_SLOT;
	return choice.plane * settings.evs_per_plane + choice.slot;
}

/* Fill in a request, and count it on its EV. `in_place`: as in tag_request(). Returns 0 or an error. */
static __always_inline int fill_request(struct control *c, const struct mrc_node *self, struct mrc_ev *ev,
					const struct request *r, int in_place)
{
	struct mrc_path_stats *stats = path_stats_at(ev_index(r->host_id, r->number));
	struct mrc_auth *auth = auth_at(r->host_id);

	if (!stats || !auth)
		return -1;
	stats->probe_ns = r->now; /* before the count: a reader must not take the new count for old */
	c->probe.seq = bpf_htonl(__sync_fetch_and_add(&ev->probe_seq, 1) + 1);
	c->mrc.version = MRC_PROBE_VERSION;
	c->mrc.type = MRC_PROBE_REQUEST;
	c->mrc.sender = bpf_htons(settings.host_id);
	c->mrc.receiver = bpf_htons(r->host_id);
	c->mrc.ev = bpf_htons(r->number);
	c->mrc.seq = bpf_htonl(__sync_fetch_and_add(&auth->sent, 1) + 1);
	c->mrc.segments = bpf_htons(1);
	c->mrc.tx_ns = bpf_cpu_to_be64(r->now);
	c->probe.report_seq = bpf_htonl(r->report_seq);
	c->probe.first = bpf_htons(r->first);
	c->probe.counts = bpf_htons(r->counts);
	c->probe.tx_ns = bpf_cpu_to_be64(r->now);
	announce(&c->probe, auth, self);
	tag_request(c, auth, in_place);
	return 0;
}

/* Return 1 if probes on an EV should be answered: it neither lags nor has failed. */
static __always_inline int is_answer_expected(__u32 host_id, __u32 number, const struct mrc_ev *ev)
{
	const struct mrc_path_stats *stats = path_stats_at(ev_index(host_id, number));

	return stats && !stats->lag_ns && (ev->state == MRC_EV_GOOD || ev->state == MRC_EV_SKIP);
}

/* Note a probe without report as pending, if an answer is expected. */
static __always_inline void note_pending(__u32 host_id, __u32 number, const struct mrc_ev *ev, __u64 now)
{
	struct mrc_watch *watch = watch_at(host_id);

	if (!watch || !is_answer_expected(host_id, number, ev))
		return;
	watch->pending += watch->pending < 0xff;
	watch->probed_us = now / NS_PER_US;
}

/* Return the traffic class of a probe: the DSCP of `traffic_class`, and ECT(0), so that AQM marks the probe rather than
 * drops it.
 */
static __always_inline __u8 probe_class(__u32 traffic_class)
{
	return (traffic_class & ~ECN_MASK) | ECN_ECT0;
}

/* Write a request into the skb and send a clone of it. Returns 1 if it was sent. `in_place`: as in tag_request(). */
static __always_inline int send_request_in_place(struct __sk_buff *skb, const struct mrc_node *self,
						 const struct request *r, int in_place)
{
	const struct mrc_reports *reports;
	struct control control = {};
	struct push p = {};
	int sent;

	if (push_by(&p, r->host_id, r->number) || !(self->plane_mask & (1u << (p.ev->plane & 31))))
		return 0;
	reports = reports_at(r->host_id);
	if (reports) {
		p.traffic_class = probe_class(reports->traffic_class);
		skb->priority = reports->priority ? reports->priority - 1 : 0;
	}
	if (fill_request(&control, self, p.ev, r, in_place) || write_control(skb, &p, &control))
		return 0;
	if (p.plane->vlan && bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), p.plane->vlan))
		return 0;
	count_probe(r->kind);
	if (!r->counts)
		note_pending(r->host_id, r->number, p.ev, r->now);
	sent = !bpf_clone_redirect(skb, p.plane->ifindex, 0);
	if (p.plane->vlan && bpf_skb_vlan_pop(skb))
		return 0;
	return sent;
}

/* The same. A global function, as begin_report(). */
__noinline int send_request(struct __sk_buff *skb, const struct request *r)
{
	const struct mrc_node *self = node();

	return r && self ? send_request_in_place(skb, self, r, 0) : 0;
}

/* Make room for headers and probe in front of a clone; ballast and counts replace the packet. */
static __always_inline int make_room_in_place(struct __sk_buff *skb, __u32 headers, __u32 counts)
{
	return bpf_skb_change_tail(skb, ETH_HLEN + probe_length(counts) - sizeof(struct mrc_probe), 0) ||
	       bpf_skb_adjust_room(skb, headers + sizeof(struct mrc_probe), BPF_ADJ_ROOM_MAC,
				   BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP);
}

/* Return 1 if make_room() keeps this packet behind the counts. Encapsulated packets cannot be shortened. */
static __always_inline int keeps_packet(struct __sk_buff *skb, __u32 counts)
{
	return !skb->gso_size && skb->len + probe_length(counts) <= settings.inner_mtu &&
	       (skb->len <= KEPT_PACKET_MAX || encapsulated(skb));
}

/* The same, but keep a small packet behind the counts, which is cheaper. A longer one may be a whole burst. */
static __always_inline int make_room(struct __sk_buff *skb, __u32 headers, __u32 counts)
{
	__u64 encap = BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	__u32 content = probe_length(counts);

	if (keeps_packet(skb, counts))
		/* A popped packet still counts as encapsulated: the kernel does not make it an outer packet again. */
		return bpf_skb_adjust_room(skb, headers + content, BPF_ADJ_ROOM_MAC, encap) &&
		       bpf_skb_adjust_room(skb, headers + content, BPF_ADJ_ROOM_MAC, 0);
	return make_room_in_place(skb, headers, counts);
}

/* Make a clone the request piggybacked on its packet, and send it. The packet is not pushed yet, or already popped. */
static __always_inline int push_clone(struct __sk_buff *skb, const struct mrc_node *self, const struct request *r)
{
	const struct mrc_reports *reports = reports_at(r->host_id);
	struct control control = {};
	struct push p = {};

	if (reports && reports->priority)
		skb->priority = reports->priority - 1;
	if (push_by(&p, r->host_id, r->number) || make_room(skb, outer_length(p.ev), r->counts))
		return -1;
	p.traffic_class = probe_class(r->traffic_class);
	if (fill_request(&control, self, p.ev, r, 0) || write_control(skb, &p, &control))
		return -1;
	count_probe(r->kind);
	return send_skb(skb, p.plane);
}

/* ---- sweeps -------------------------------------------------------------------------------- */

/* A sweep of a peer. */
struct sweep {
	struct __sk_buff *skb; /* the packet of which requests are made */
	struct mrc_node *node;
	struct request request;
	__u32 first; /* EV to begin with */
	__u32 sent; /* requests */
	__u8 uncertain; /* sweep at most so many EVs, and only those that lag or have packets in flight; 0 = any EVs */
	__u8 found; /* 1 = there is such an EV */
	__u8 by_turns; /* 1 = EVs are counted by turns of the planes, so that a few are on all of them */
};

/* Probe the i-th EV of a sweep, if a probe on it is due. */
static long sweep_ev(__u64 i, void *context)
{
	struct sweep *s = context;
	__u32 number = (s->first + i) % settings.evs_per_peer, planes = settings.planes ?: 1, index;
	const struct mrc_path_stats *stats;
	const struct mrc_ev *ev;

	if (s->by_turns)
		number = number % planes * settings.evs_per_plane + number / planes;
	index = ev_index(s->request.host_id, number);
	stats = path_stats_at(index);
	ev = ev_at(index);
	if (!stats || !ev)
		return 0;
	if (s->uncertain) {
		if (s->sent >= s->uncertain)
			return 1;
		if (!stats->lag_ns && (__u32)ev->tx_packets - stats->offset == stats->rx + stats->deficit)
			return 0; /* every packet has arrived or is known to be lost */
		s->found = 1;
	}
	s->request.now = now_ns(); /* now, not earlier: a sweep can take longer than packets take to arrive */
	if (stats->probe_after_ns > s->request.now && !is_slow(ev))
		return 0;
	s->request.number = number;
	s->sent += send_request(s->skb, &s->request);
	return 0;
}

/* Begin a report after a sweep, if one is due. Returns 1 if the request is to be sent. */
static __always_inline int begin_sweep_report(struct sweep *s, struct mrc_peer *peer, struct mrc_reports *reports)
{
	__u64 requested_ns;

	s->request.now = now_ns();
	s->request.number = report_ev(s->request.host_id, linked_planes(s->node, peer));
	requested_ns = *(volatile __u64 *)&reports->requested_ns;
	return s->request.number != NO_SLOT && aged(s->request.now, requested_ns, reordering_window(reports)) &&
	       aged(s->request.now, requested_ns, reports->rtt_ns / 2) &&
	       begin_report(reports, &s->request, requested_ns);
}

#endif
