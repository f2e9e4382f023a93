/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Circulates a timer packet, of which probes can be made when no other packet comes.
 *
 * Timer callbacks cannot send packets. So while any traffic is dense, a packet of this host circulates through a veth
 * pair made for it (tmrc0), paced to MRC_TIMER_NS by a queueing discipline (tbf). Where a flow has stopped
 * (idle_timeout.h), each pass sends probes made of it: on EVs that lag or have packets in flight, and for a report. So a
 * failed path is known before TCP retransmits, even without the daemon.
 */
#ifndef MRC_TIMER_PACKET_H
#define MRC_TIMER_PACKET_H

#include "maps.h"
#include "apply_reply.h"
#include "tick.h"

/* EtherType for local experiments (IEEE 802): no protocol takes the packet if it reaches the stack. */
#define TIMER_TYPE 0x88b5
/* The packet ends after so long without dense traffic, if no peer is left to sweep. */
#define TIMER_IDLE_NS 100000000ULL
#define EARLY_PASSES_MAX 256 /* more than tbf lets through at once after a pause */
#define IDLE_PEERS_PER_PASS 4 /* peers swept per pass: bounds the time of a pass */
#define IDLE_SWEEP_EVS 64 /* EVs per peer and pass: bounds the time of a pass */

/* Make a clone the timer packet: headers, probe, and room for ballast and counts, as in a request piggybacked on a
 * burst. The checksum that a NIC may still write lands in the ballast or behind it. The clone's payload is cut off and
 * comes back as zeros, because it belongs to another peer than the probed ones. Room for an SRH is there once: what the
 * request leaves of it is the reply's.
 */
static __always_inline int make_timer_packet(struct __sk_buff *skb)
{
	__u32 least = ETH_HLEN + sizeof(struct iphdr) + sizeof(struct tcphdr), first;
	struct mrc_timer *timer = timer_packet();
	__be16 type = bpf_htons(TIMER_TYPE);

	if (!timer || (bpf_skb_change_tail(skb, least, 0) && bpf_skb_change_tail(skb, ETH_HLEN + MRC_BALLAST, 0)) ||
	    make_room_in_place(skb, sizeof(struct ipv6hdr) + sizeof(struct outer_l4), report_size(0, &first)) ||
	    bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &type, sizeof(type), 0))
		return -1;
	skb->mark = timer->id;
	return 0;
}

/* Keep the timer packet circulating: make it of a clone of this packet, if it does not circulate or is lost. */
static __always_inline void keep_timer_packet(struct __sk_buff *skb, const struct mrc_node *self, __u64 now)
{
	struct mrc_timer *timer = timer_packet();
	__u64 before;

	if (!timer || !self->timer_ifindex || !self->probe_ifindex)
		return;
	if (aged(now, timer->dense_ns, MRC_TIMER_NS))
		timer->dense_ns = now;
	before = *(volatile __u64 *)&timer->made_ns;
	if (!aged(now, timer->ns, TIMER_LOST_NS) || !aged(now, before, TIMER_LOST_NS) || !can_be_cut_off(skb) ||
	    __sync_val_compare_and_swap(&timer->made_ns, before, now) != before)
		return;
	timer->id = bpf_get_prandom_u32() | 1; /* an older timer packet that reappears ends at its next pass */
	send_clone(skb, self, CLONE_TIMER_PACKET, 0);
}

/* Sweep the next idle peer: probe its EVs that lag or have packets in flight, and request a report. Queue it for
 * another sweep, because a request can be lost. Without such EVs a report has told of all packets.
 */
static long handle_idle_peer(__u64 i, void *context)
{
	struct sweep *s = context;
	struct mrc_idle_peer idle;
	struct mrc_reports *reports;
	struct mrc_peer *peer;
	struct mrc_clock *clock = tick_clock();
	__u64 now = now_ns();
	int is_paid, is_trusted;

	(void)i;
	if (!clock || bpf_map_pop_elem(&mrc_idle_peers, &idle))
		return 1;
	if (!aged(now, idle.due_ns, 0)) {
		bpf_map_push_elem(&mrc_idle_peers, &idle, 0);
		return 0; /* other peers may be due */
	}
	reports = reports_at(idle.host_id);
	peer = peer_at(idle.host_id);
	if (!reports || !peer || !peer->configured || !aged(now, reports->requested_ns, MRC_TIMER_NS / 2))
		return 0; /* the flow continues, and its traffic requests reports */
	__builtin_memset(&s->request, 0, sizeof(s->request));
	s->request.host_id = idle.host_id;
	s->request.kind = MRC_PROBE_SUSPICION;
	s->first = reports->report_seq * IDLE_SWEEP_EVS;
	s->sent = s->found = 0;
	/* Hundreds of flows can stop at once, as in a collective operation, or pause every few milliseconds. Then the
	 * host's budget is soon spent. Those peers get requests for reports only, and data packets must pay for them
	 * later.
	 */
	is_paid = clock->budget > (__s64)budget_reserve();
	is_trusted = reports->unpaid_packets < BURST_PROBES_MAX * PACKETS_PER_PROBE;
	if (is_trusted && is_paid) {
		s->uncertain = IDLE_SWEEP_EVS;
		bpf_loop(settings.evs_per_peer, sweep_ev, s, 0);
		s->uncertain = 0;
		if (!s->found)
			return 0;
	}
	reports->unpaid_packets += s->sent * PACKETS_PER_PROBE;
	s->request.now = now;
	if ((is_paid || is_trusted) && begin_sweep_report(s, peer, reports) &&
	    send_request(s->skb, &s->request)) {
		s->sent += report_cost(s->request.counts);
		reports->unpaid_packets += is_paid ? 0 : BURST_PROBES * PACKETS_PER_PROBE;
	}
	if (is_paid)
		__sync_fetch_and_add(&clock->budget, -(__s64)s->sent);
	idle.due_ns = s->request.now + MRC_TIMER_NS / 2; /* a sweep may take longer than that */
	if (--idle.left)
		bpf_map_push_elem(&mrc_idle_peers, &idle, 0);
	return 0;
}

/* Return 1 if the timer packet has work without dense traffic. */
static __always_inline int timer_has_work(const struct mrc_node *self, const struct mrc_clock *clock, __u64 now)
{
	struct mrc_idle_peer waiting;

	return !bpf_map_peek_elem(&mrc_idle_peers, &waiting) ||
	       (aged(now, self->ticked_ns, DAEMON_SILENT_NS) && !aged(now, clock->active_ns, ACTIVE_NS));
}

/* Run the tick in place of a silent daemon. */
static __always_inline void tick_for_daemon(struct tick *t, __u64 now)
{
	if (!aged(now, t->sweep.node->ticked_ns, DAEMON_SILENT_NS) || !aged(now, t->clock->packet_due_ns, 0))
		return;
	t->clock->by_packet++;
	t->clock->packet_due_ns = now + tick(t);
}

/* Handle a pass of the timer packet. */
static __always_inline int handle_timer_packet(struct __sk_buff *skb)
{
	struct tick t = { .sweep = { .skb = skb, .node = node() }, .clock = tick_clock() };
	struct mrc_node *self = t.sweep.node;
	struct mrc_timer *timer = timer_packet();
	__be16 type = bpf_htons(TIMER_TYPE);
	__u64 now = now_ns();
	/* Read first: another CPU may make the next timer packet meanwhile, and two must not have the same id. */
	__u32 id = skb->mark;

	if (!self || !timer || !t.clock || id != timer->id)
		return TC_ACT_SHOT; /* consumed, not dropped */
	if (!self->timer_ifindex ||
	    (aged(now, timer->dense_ns, TIMER_IDLE_NS) && !timer_has_work(self, t.clock, now))) {
		/* No idle timeout waits for it now, and the next dense traffic makes another one at once. */
		timer->ns = 0;
		return TC_ACT_SHOT;
	}
	timer->early_passes = aged(now, timer->ns, MRC_TIMER_NS / 4) ? 0 : timer->early_passes + 1;
	timer->ns = now;
	/* Nothing paces it: make another one when this one counts as lost. */
	if (timer->early_passes > EARLY_PASSES_MAX) {
		timer->early_passes = 0;
		return TC_ACT_SHOT;
	}
	skb->mark = 0; /* other programs may have rules for marks on the planes' NICs */
	bpf_loop(IDLE_PEERS_PER_PASS, handle_idle_peer, &t.sweep, 0);
	tick_for_daemon(&t, now);
	skb->mark = id;
	if (bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &type, sizeof(type), 0))
		return TC_ACT_SHOT;
	return bpf_redirect(self->timer_ifindex, 0);
}

#endif
