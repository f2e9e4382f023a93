/* Asking a peer what has arrived: when, on which EV, and how the request comes into being. */
#ifndef MRC_SEND_PROBE_H
#define MRC_SEND_PROBE_H

#include "idle_timeout.h"
#include "probe.h"
#include "spray.h"

/* What is asked for, and on which EV. */
struct request {
	__u64 now;
	__u32 host_id;
	__u32 number; /* of the EV */
	__u32 report_seq; /* of the report, if one is asked for */
	__u16 kind; /* enum mrc_probe_kind */
	__u16 traffic_class; /* of the packet on which it rides; of others the peer's, see mrc_reports */
	__u16 first;
	__u16 counts; /* 0 = no report, only a reply */
};

#define CLONE_REQUEST 1
#define CLONE_TIMER_PACKET 2 /* see timer_packet.h */
#define CLONE_DUP_ACK 3 /* see dup_ack.h */

/* What the program that pushes leaves for mrc_probe, which it runs on a clone. One per CPU. */
struct mrc_clone_job {
	__u32 job; /* 0, or what to make of it */
	__u32 reserved;
	struct request request;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct mrc_clone_job);
} mrc_clone_jobs SEC(".maps");

/* Have mrc_probe make something of a clone of this packet, now; of a request if it is one, or a twin. */
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

/* Sent at least this long before a report was asked for: not on its way any more. */
static __always_inline __u64 reordering_window(const struct mrc_reports *reports)
{
	__u64 window = reports->rtt_var_ns / 2, least = settings.reorder_us * NS_PER_US;
	__u64 most = settings.probe_gap_us * NS_PER_US;

	if (window > most)
		window = most;
	return window > least ? window : least;
}

struct marking {
	__u64 now;
	__u64 window;
	__u32 least_extra_delay_ns; /* mrc_reports.least_extra_delay_ns */
	__u32 index;
	__u32 slot;
};

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
	/* What was noted is older than the window, unless this EV's is longer than reports are apart: then it is kept
	 * until it is, and what was there at the report before has not become younger.
	 */
	if (aged(m->now, stats->noted_ns, window)) {
		noted_tx = stats->noted_tx;
		noted_probes = stats->noted_probes;
		stats->noted_tx = tx;
		stats->noted_probes = probes;
		stats->noted_ns = m->now;
	} else {
		noted_tx = stats->mark_tx[(slot - 1) & (MRC_REPORTS_KEPT - 1)];
		noted_probes = stats->mark_probes[(slot - 1) & (MRC_REPORTS_KEPT - 1)];
	}
	stats->mark_tx[slot] = aged(m->now, ev->last_tx_ns, window) ? tx : noted_tx;
	stats->mark_probes[slot] = aged(m->now, stats->probe_ns, window) ? probes : noted_probes;
	return 0;
}

/* As many rounds are under way as may be. */
static __always_inline int is_report_window_full(const struct mrc_reports *reports)
{
	return reports->report_seq - reports->applied_seq >= reports_kept();
}

/* Begin a round: note what has been sent on each EV. `requested_ns` is when the last was begun. Returns 1 if
 * this CPU is to ask for the report.
 */
static __noinline int begin_report(struct mrc_reports *reports, struct request *r, __u64 requested_ns)
{
	struct marking m = { .now = r->now };
	__u32 first;

	if (__sync_val_compare_and_swap(&reports->requested_ns, requested_ns, r->now) != requested_ns)
		return 0;
	r->report_seq = __sync_fetch_and_add(&reports->report_seq, 1) + 1;
	/* Not over the marks by which another CPU may be judging; is_newest_report() looks from the other side. */
	if (reports->busy && is_report_window_full(reports))
		return 0;
	r->counts = report_size(r->report_seq, &first);
	r->first = first;
	m.window = reordering_window(reports);
	m.least_extra_delay_ns = reports->least_extra_delay_ns;
	m.index = ev_index(r->host_id, r->first);
	m.slot = r->report_seq / report_chunks();
	bpf_loop(r->counts, mark_ev, &m, 0);
	reports->sent_ns[r->report_seq & (MRC_REPORT_SLOTS - 1)] = r->now;
	return 1;
}

/* The EV on which the next report is asked for: usable ones in turn over the planes. While none comes
 * back, every other one by any path: the usable ones may be dead, and only reports tell that others are not.
 */
static __always_inline __u32 report_ev(struct mrc_peer *peer, __u32 host_id, struct mrc_reports *reports, __u32 plane_mask)
{
	__u32 cursor = reports->cursor++, slot;
	struct choice choice = {};
	const struct mrc_ev *ev;

	if (cursor & 1 && is_report_window_full(reports)) {
		slot = cursor / 2 % settings.planes * settings.evs_per_plane + cursor / 2 / settings.planes % peer->slots;
		ev = ev_at(ev_index(host_id, slot));
		if (ev && ev->configured && plane_mask & (1u << (ev->plane & 31)))
			return slot;
	}
	slot = cursor / settings.planes % peer->slots;
	if (!next_usable(peer, plane_mask, cursor % settings.planes, 0, slot, &choice))
		return NO_SLOT;
	return choice.plane * settings.evs_per_plane + choice.slot;
}

/* Whether traffic to this peer should carry a request now: after so many packets, but leaving time
 * between two; not while too many are under way; and now and then in any case.
 */
static __always_inline int report_due(const struct mrc_reports *reports, const struct mrc_rotation *rotation,
				      __u64 now, __u64 requested_ns, __u32 gap_us)
{
	__u64 late = settings.probe_late_us * NS_PER_US;

	/* Never so many at once that the newest must be forgotten before it can have come back. */
	if (late < reports->rtt_ns / 2)
		late = reports->rtt_ns / 2;
	if (aged(now, requested_ns, late) && aged(now, requested_ns, reordering_window(reports)))
		return 1;
	return rotation->unprobed >= settings.probe_packets &&
	       aged(now, requested_ns, gap_us * NS_PER_US) &&
	       aged(now, requested_ns, reordering_window(reports)) &&
	       !is_report_window_full(reports);
}

#define KEPT_PACKET_MAX 512 /* bytes of a packet that stays behind the counts: a longer one would be sent twice for nothing */

/* Whether make_room() leaves this packet as it is, behind so many counts. What is a tunnel's cannot be shortened. */
static __always_inline int keeps_packet(struct __sk_buff *skb, __u32 counts)
{
	return !skb->gso_size && skb->len + probe_length(counts) <= settings.inner_mtu &&
	       (skb->len <= KEPT_PACKET_MAX || encapsulated(skb));
}

#define PAID_PERCENT 150 /* traffic may pay for so much of idle_probes per second, */
#define PAID_BURST 4 /* and for so many at once */

/* What traffic has paid for since the tick last refilled the host's budget. */
MRC_ARRAY(mrc_paid, BPF_MAP_TYPE_ARRAY, 0, __u32);

static __always_inline __u32 *paid_probes(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&mrc_paid, &zero);
}

/* What traffic may pay for until now since then: to make requests and to read reports takes a CPU's time, too. */
static __always_inline __u64 paid_most(const struct mrc_clock *clock, __u64 now)
{
	__s64 past = now - *(volatile __u64 *)&clock->refilled_ns;

	return PAID_BURST + (past > 0 ? past * PAID_PERCENT / 100 * settings.idle_probes / 1000000000ULL : 0);
}

/* Whether a request may ride on this peer's traffic: the packets and bytes since the last pay for it, or the host's
 * budget does, of which an eighth is for the tick.
 */
static __always_inline int can_pay_for_probe(struct __sk_buff *skb, const struct mrc_rotation *rotation, __u64 now)
{
	__u32 first, counts = report_size(0, &first), *sum = paid_probes();
	__u32 length = OUTER_L3 + sizeof(struct outer_l4) + probe_length(counts) + (keeps_packet(skb, counts) ? skb->len : 0);
	struct mrc_clock *clock = tick_clock();

	if (!clock || !sum)
		return 0;
	if (rotation->unprobed >= PACKETS_PER_PROBE && rotation->unprobed_bytes >= BYTES_PER_PROBE_BYTE * length &&
	    *(volatile __u32 *)sum < paid_most(clock, now)) {
		__sync_fetch_and_add(sum, budget_cost(length));
		return 1;
	}
	if (*(volatile __s64 *)&clock->budget <= (__s64)(settings.idle_probes / 8))
		return 0;
	__sync_fetch_and_add(&clock->budget, -(__s64)budget_cost(length));
	return 1;
}

/* Whether make_room() will do with a clone of this packet: the kernel shortens none that is a tunnel's. */
static __noinline int can_piggyback(struct __sk_buff *skb)
{
	__u32 first;

	return keeps_packet(skb, report_size(0, &first)) || !encapsulated(skb);
}

/* Whether traffic to this peer is so dense that its end is to be noticed: many packets since the last report was asked for.
 * Where the budget has delayed that, they count by their rate: as if a report had been asked for in time.
 */
static __always_inline int is_dense(const struct mrc_rotation *rotation, __u64 now, __u64 requested_ns)
{
	__u64 each_ns = settings.probe_late_us * NS_PER_US / (settings.probe_packets ?: 1);

	return rotation->unprobed >= settings.probe_packets && (!rotation->denied || !aged(now, requested_ns, rotation->unprobed * each_ns));
}

/* Let a request ride on this packet, if one is due; it is not pushed yet, or popped already: mrc_probe makes
 * the request of a clone. Returns 1 if it did.
 */
static __always_inline int piggyback_probe(struct __sk_buff *skb, const struct mrc_node *self,
				      struct mrc_peer *peer, struct mrc_rotation *rotation,
				      struct request *r, __u32 gap_us)
{
	struct mrc_reports *reports = reports_at(r->host_id);
	__u64 requested_ns;

	if (!reports || !self->probe_ifindex)
		return 0;
	requested_ns = *(volatile __u64 *)&reports->requested_ns;
	if (!report_due(reports, rotation, r->now, requested_ns, gap_us) || !can_piggyback(skb))
		return 0;
	r->number = report_ev(peer, r->host_id, reports, linked_planes(self, peer));
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

static __always_inline void fill_request(struct control *c, const struct mrc_node *self,
					 struct mrc_ev *ev, const struct request *r)
{
	struct mrc_path_stats *stats = path_stats_at(ev_index(r->host_id, r->number));
	__u32 seq;

	if (stats)
		stats->probe_ns = r->now; /* before the count: who reads that must not think it old */
	seq = __sync_fetch_and_add(&ev->probe_seq, 1) + 1;
	c->mrc.version = MRC_WIRE_VERSION;
	c->mrc.type = MRC_PROBE_REQUEST;
	c->mrc.sender = bpf_htons(settings.host_id);
	c->mrc.receiver = bpf_htons(r->host_id);
	c->mrc.ev = bpf_htons(r->number);
	c->mrc.seq = bpf_htonl(seq);
	c->mrc.segments = bpf_htons(1);
	c->mrc.tx_ns = bpf_cpu_to_be64(r->now);
	c->probe.seq = bpf_htonl(seq);
	c->probe.plane_mask = bpf_htons(self->plane_mask);
	c->probe.status = bpf_htons(self->status);
	c->probe.generation = bpf_htonl(self->generation);
	c->probe.report_seq = bpf_htonl(r->report_seq);
	c->probe.first = bpf_htons(r->first);
	c->probe.counts = bpf_htons(r->counts);
	c->probe.tx_ns = bpf_cpu_to_be64(r->now);
}

/* Whether the answers to probes of an EV count: of those that lag or have failed none is expected. */
static __always_inline int is_answer_expected(__u32 host_id, __u32 number, const struct mrc_ev *ev)
{
	const struct mrc_path_stats *stats = path_stats_at(ev_index(host_id, number));

	return stats && !stats->lag_ns && (ev->state == MRC_EV_GOOD || ev->state == MRC_EV_SKIP);
}

/* A probe that asks for no report is sent. */
static __always_inline void note_pending(__u32 host_id, __u32 number, const struct mrc_ev *ev, __u64 now)
{
	struct mrc_watch *watch = watch_at(host_id);

	if (!watch || !is_answer_expected(host_id, number, ev))
		return;
	watch->pending += watch->pending < 0xff;
	watch->probed_us = now / NS_PER_US;
}

/* The traffic class of a probe in the DSCP class of some packet: queues that mark are not to drop it. */
static __always_inline __u8 probe_class(__u32 traffic_class)
{
	return (traffic_class & ~ECN_MASK) | ECN_ECT0;
}

/* Make the skb a request and send a clone of it. Returns 1 if it went out. */
static __always_inline int send_request(struct __sk_buff *skb, const struct mrc_node *self,
					const struct request *r)
{
	const struct mrc_reports *reports;
	struct control control = {};
	struct push p = {};
	int sent;

	if (push_by(&p, r->host_id, r->number) || !(self->plane_mask & (1u << (p.ev->plane & 31))))
		return 0;
	reports = reports_at(r->host_id);
	if (reports)
		p.traffic_class = probe_class(reports->traffic_class);
	fill_request(&control, self, p.ev, r);
	if (write_control(skb, &p, &control))
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

/* Make room for headers and probe in front of a clone's packet, in whose place ballast and counts come. */
static __always_inline int make_room_in_place(struct __sk_buff *skb, __u32 headers, __u32 counts)
{
	return bpf_skb_change_tail(skb, ETH_HLEN + probe_length(counts) - sizeof(struct mrc_probe), 0) ||
	       bpf_skb_adjust_room(skb, headers + sizeof(struct mrc_probe), BPF_ADJ_ROOM_MAC,
				   BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP);
}

/* The same, but a small packet stays as it is, behind the counts: that is cheaper. A longer one may be a whole burst. */
static __always_inline int make_room(struct __sk_buff *skb, __u32 headers, __u32 counts)
{
	__u64 encap = BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	__u32 content = probe_length(counts);

	if (keeps_packet(skb, counts))
		/* What was popped counts as encapsulated still: the kernel makes it no outer packet again. */
		return bpf_skb_adjust_room(skb, headers + content, BPF_ADJ_ROOM_MAC, encap) &&
		       bpf_skb_adjust_room(skb, headers + content, BPF_ADJ_ROOM_MAC, 0);
	return make_room_in_place(skb, headers, counts);
}

/* Make a clone of a packet, not pushed yet or popped already, the request that rides on it. */
static __always_inline int push_clone(struct __sk_buff *skb, const struct mrc_node *self, const struct request *r)
{
	struct control control = {};
	struct push p = {};

	if (push_by(&p, r->host_id, r->number) || make_room(skb, outer_length(p.ev), r->counts))
		return -1;
	p.traffic_class = probe_class(r->traffic_class);
	fill_request(&control, self, p.ev, r);
	if (write_control(skb, &p, &control))
		return -1;
	count_probe(r->kind);
	return send_skb(skb, p.plane);
}

#endif
