/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The programs of mrcd. Each one parses, looks up and acts; the headers do the work.
 *
 * The way of a packet, step by step, with the header of each step:
 *
 *   1. Choose. mrc_push reads the inner packet (inner.h), finds the peer of its destination and the policy of
 *      its traffic (classes.h), and takes the next EV of the next plane (spray.h). Queues shift the choice of the plane
 *      (balance.h).
 *   2. Push. It makes room and writes the outer headers (headers.h), also around packets that have a tunnel already
 *      (tunnel.h). A critical packet takes two EVs (replicate.h). A packet can carry a probe request (piggyback.h).
 *   3. Wire. IPv6, perhaps an SRH, UDP, MRC header, inner packet (mrc_wire.h). The switches forward by uSID. Their
 *      ICMPv6 errors count against the EV (icmp.h); drops by this host's own queueing disciplines do not (unsent.h).
 *   4. Pop. mrc_pop_xdp or mrc_pop parses and verifies the outer headers (parse.h, pop.h) and removes them (headers.h).
 *      mrc0 receives the inner packet (deliver.h). SACK blocks may be hidden from TCP first (sack_hiding.h).
 *   5. Count. The receiver counts the arrival per sender and EV (pop.h, struct mrc_rx); a drop is counted by its reason
 *      (maps.h).
 *   6. Report. The sender marks what it has sent and requests the counts (send_probe.h). The request is piggybacked on
 *      traffic (piggyback.h). Without traffic, a sweep sends it, for the tick (tick.h) or the timer packet
 *      (timer_packet.h), which reacts to stopped flows (idle_timeout.h). The receiver answers with its counts
 *      (answer_probe.h).
 *   7. Verdict. The sender applies the reply (apply_reply.h) and judges each EV (judge.h), by its loss window and its
 *      plane's (loss.h). The EV's state changes, and with it the usable EVs (states.h). The neighbours of a failed EV
 *      on the same T1 are probed (neighbours.h). The EV returns after a hold-down (ev_deadlines.h).
 *
 * Programs and where they are attached:
 *
 *   mrc_push        tc egress of mrc0, tc ingress of mrc0's peer: steps 1 to 3. In burst and bundle granularity at mrc0; only
 *                   segments of bursts that mrc0 had to segment first come to its peer (tunnel.h). In packet
 *                   granularity at the peer; at mrc0 it keeps the priority of packets, and which segments
 *                   of TCP are alone
 *   mrc_probe       tc egress of mrc0's peer: turns a clone into a probe request, a copy or the timer packet
 *   mrc_timer       tc ingress of tmrc0: handles each pass of the timer packet
 *   mrc_pop         tc ingress of the plane NICs: steps 4 to 7
 *   mrc_pop_xdp     XDP of the plane NICs: step 4 for data, before the kernel makes an skb; mrc_pop delivers the
 *                   packet, and handles probes
 *   mrc_unsent      raw tracepoint skb:kfree_skb: corrects path statistics
 *   mrc_sweep       run by `mrcctl detach` without the daemon: sends probe requests on the EVs of a peer
 *   mrc_set_states  run by the daemon: changes the state of an EV
 *   mrc_tick        run by the daemon: serves the deadlines of all peers
 *   mrc_probe_links run by the daemon: probes this host's own links (link_probe.h)
 *
 * Shared by all: maps.h (maps), mrc_abi.h, mrc_events.h and mrc_state.h (their entries), arith.h, probe.h, parse.h.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <stddef.h>

#include <bpf/bpf_helpers.h>

#include "maps.h"
#include "timer_packet.h"
#include "classes.h"
#include "deliver.h"
#include "inner.h"
#include "pop.h"
#include "replicate.h"
#include "kernel_sids.h"
#include "source_check.h"
#include "unsent.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Types that no map holds. They are here so that the object's BTF has them for mrcd/kernel/abi.py and
 * tests/unit/test_abi.py. libbpf ignores sections that it does not know.
 */
const struct {
	struct mrc_hdr hdr;
	struct mrc_probe probe;
	struct mrc_count count;
	struct mrc_event event;
	enum mrc_version version;
	enum mrc_type type;
	enum mrc_ev_state ev_state;
	enum mrc_reason reason;
	enum mrc_drop drop;
	enum mrc_histogram histogram;
	enum mrc_policy policy;
	enum mrc_kernel_has kernel_has;
	enum mrc_probe_kind probe_kind;
} mrc_btf SEC("btf");

#define REFRESH_ONLY 0xffffffff /* as EV number: change no state, only compute usable EVs and deadlines again */

/* Push a packet of mrc0. */
SEC("tc")
int mrc_push(struct __sk_buff *skb)
{
	struct inner inner = {};
	struct mrc_prefix key = {};
	struct choice choice = {};
	struct request request = {};
	struct push p = {};
	struct mrc_node *self = node();
	struct mrc_rotation *rotation;
	struct mrc_peer *peer;
	int ack, at_mrc0, alone = 0, part;
	__u32 segments, length, gap_us, entry, host_id, policy;
	enum mrc_drop reason;

	if (!self)
		return drop_skb(MRC_DROP_NO_PEER);
	at_mrc0 = skb->ifindex == self->overlay_ifindex;
	reason = parse_inner(skb, &key, &inner);
	if (at_mrc0 && settings.per_packet)
		return leave_to_mrc0(skb, !reason && is_alone(skb, &inner));
	if (!at_mrc0)
		alone = take_from_mrc0(skb);
	if (reason)
		return drop_skb(reason);
	if (!find_destination(&key, self, &entry))
		return drop_skb(MRC_DROP_NO_PEER);
	host_id = entry & MRC_DST_HOST;
	if (host_id == settings.host_id)
		return drop_skb(MRC_DROP_NO_PEER);
	if (!is_own_source(skb))
		return drop_skb(MRC_DROP_FOREIGN_SOURCE);
	peer = peer_at(host_id);
	rotation = bpf_map_lookup_elem(&mrc_rotations, &host_id);
	if (!peer || !rotation)
		return drop_skb(MRC_DROP_NO_PEER);
	length = skb->len - ETH_HLEN;
	if (!skb->gso_size && length > settings.inner_mtu)
		return drop_skb(MRC_DROP_TOO_BIG);
	policy = policy_of(skb, &inner, entry >> MRC_DST_POLICY);
	request.host_id = host_id;
	request.now = now_ns();
	request.traffic_class = inner.traffic_class;
	segments = wire_packets(skb, &inner);
	choice.packets = segments;
	if (rotation->unprobed < MRC_UNPROBED_MAX)
		rotation->unprobed += segments & (MRC_UNPROBED_MAX - 1);
	rotation->unprobed_bytes += length;
	/* Large packets wait for twice the gap: a small packet from the peer may come, on which a request costs less.
	 * So do ACKs, unless ACKs are all there is: a later ACK makes up for a lost one.
	 */
	ack = is_pure_ack(skb, &inner);
	if (!ack)
		rotation->data = 1;
	note_priority(skb, host_id);
	gap_us = health.probe_gap_us << (ack ? !rotation->data : !is_small(skb));
	if (rotation->unprobed >= health.probe_packets || aged(request.now, self->ticked_ns, DAEMON_SILENT_NS))
		keep_timer_packet(skb, self, request.now);
	if (piggyback_probe(skb, self, peer, rotation, &request, gap_us))
		request.now = now_ns(); /* this packet is sent after the request */
	part = critical_part(skb, &inner, policy, ack, at_mrc0, alone, request.now);
	if (part && replicate(skb, self, &request, part, &choice)) {
		p.flags = MRC_FLAG_CRITICAL;
		p.number = request.report_seq;
	}
	if (!classed_ev(skb, &inner, policy, peer, host_id, linked_planes(self, peer), request.now, rotation,
			&choice) ||
	    push_by(&p, host_id, choice.plane * settings.evs_per_plane + choice.slot))
		return drop_skb(MRC_DROP_NO_USABLE_EV);
	p.traffic_class = inner.traffic_class; /* DSCP, and ECN in RFC 6040's normal mode */
	return push_data(skb, &p, host_id, segments, request.now, at_mrc0);
}

/* Do the job that send_clone() has left for this clone. */
SEC("tc")
int mrc_probe(struct __sk_buff *skb)
{
	struct mrc_node *self = node();
	__u32 zero = 0;
	struct mrc_clone_job *slot = bpf_map_lookup_elem(&mrc_clone_jobs, &zero);
	__u32 job = slot ? slot->job : 0;
	int verdict;

	if (!slot || !self || !job)
		return TC_ACT_UNSPEC; /* a packet that the kernel sends on this interface */
	slot->job = 0;
	/* The packet may be paced; its clone leaves at once. A zero alone would keep the stamp's type: where the clone
	 * arrives next, the kernel writes the time of day, and fq would drop it as 50 years early.
	 */
	bpf_skb_set_tstamp(skb, 0, BPF_SKB_TSTAMP_UNSPEC);
	if (job == CLONE_COPY)
		return push_copy(skb, self, slot);
	if (job == CLONE_TIMER_PACKET)
		return make_timer_packet(skb) ? drop_skb(MRC_DROP_PROBE_FAILED) : bpf_redirect(self->timer_ifindex, 0);
	verdict = push_clone(skb, self, &slot->request);
	return verdict < 0 ? drop_skb(MRC_DROP_PROBE_FAILED) : verdict;
}

/* All packets but the timer packet belong to the kernel. */
SEC("tc")
int mrc_timer(struct __sk_buff *skb)
{
	if (skb->protocol != bpf_htons(TIMER_TYPE))
		return TC_ACT_UNSPEC;
	return handle_timer_packet(skb);
}

/* Pop a packet of a plane NIC, or handle the probe in it. */
SEC("tc")
int mrc_pop(struct __sk_buff *skb)
{
	__u32 linear = ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(struct outer_l4) +
		       sizeof(struct ipv6hdr) + (settings.srh ? MRC_SRH_MAX : 0);
	__u16 vlan = skb->vlan_present ? skb->vlan_tci & VLAN_VID_MASK : 0;
	struct arrival a = {};
	struct outer o = {};
	struct cursor c;
	enum mrc_drop reason;
	enum parsed parsed;
	__u32 plane, of_ev, mark = popped_by_xdp(skb);

	if (mark)
		return deliver(skb, 1, mark == POPPED_OF_BURST);
	if (skb->protocol != bpf_htons(ETH_P_IPV6))
		return TC_ACT_UNSPEC;
	if (restore_ethernet(skb, vlan))
		return leave_to_kernel(skb, 0);
	/* Some drivers leave the headers in fragments. Pulling them can copy a burst, so packets that are not mrcd's
	 * are left alone.
	 */
	if ((void *)(long)skb->data + linear > (void *)(long)skb->data_end) {
		if (is_other_traffic(skb))
			return leave_to_kernel(skb, ETH_HLEN);
		bpf_skb_pull_data(skb, skb->len < linear ? skb->len : linear);
	}
	c.at = (void *)(long)skb->data;
	c.end = (void *)(long)skb->data_end;
	parsed = parse_outer(&c, &o, settings.udp_port);
	if (parsed == PARSED_NOT_OURS) {
		if (o.ip6 && o.ip6->nexthdr == IPPROTO_ICMPV6)
			pop_icmp(skb, vlan);
		return leave_to_kernel(skb, ETH_HLEN);
	}
	of_ev = parsed == PARSED_OURS ? plane_of_ev(&o) : NO_PLANE;
	plane = arrival_plane(o.ip6, of_ev, skb->ifindex, vlan);
	if (plane == NO_PLANE)
		return leave_to_kernel(skb, ETH_HLEN);
	if (parsed == PARSED_TRUNCATED)
		return drop_skb(MRC_DROP_TRUNCATED);
	if (parsed == PARSED_BAD_SRH)
		return drop_skb(MRC_DROP_BAD_SRH);
	if (is_diagnostic_reply(&o))
		return TC_ACT_SHOT; /* consumed, not dropped */
	if (is_link_probe(o.mrc))
		return pop_link_probe(skb, ETH_HLEN + o.length - sizeof(*o.mrc), plane);
	reason = verify_arrival(&o, plane, of_ev, &a);
	if (reason)
		return drop_skb(reason);
	if (!lengths_agree(&o, skb->gso_size) ||
	    (o.mrc->type != MRC_DATA && !skb->gso_size && !is_whole(&o, skb->len)))
		return drop_skb(MRC_DROP_TRUNCATED);
	/* The VLAN tag is in the skb, not in the packet, so removing it moves only pointers. */
	if (o.mrc->type == MRC_DATA) {
		int of_burst = bpf_ntohs(o.mrc->segments) > 1, verdict = pop_data(skb, &o, &a);

		if (verdict == TC_ACT_UNSPEC && vlan && bpf_skb_vlan_pop(skb))
			return drop_skb(MRC_DROP_POP_FAILED);
		if (verdict != TC_ACT_UNSPEC)
			return verdict;
		probe_on_arrival(skb, &a);
		return deliver(skb, 0, of_burst);
	}
	if (vlan) {
		bpf_skb_vlan_pop(skb);
		c.at = (void *)(long)skb->data;
		c.end = (void *)(long)skb->data_end;
		if (parse_outer(&c, &o, settings.udp_port) != PARSED_OURS)
			return drop_skb(MRC_DROP_POP_FAILED);
	}
	return pop_control(skb, &o, &a);
}

/* Pop a data packet of a plane NIC, and leave all others to mrc_pop. */
SEC("xdp.frags")
int mrc_pop_xdp(struct xdp_md *ctx)
{
	struct cursor c;
	__u32 packets = 1, plane, of_ev, headers, length = bpf_xdp_get_buff_len(ctx), of_burst, csum;
	struct arrival a = {};
	struct outer o = {};
	struct ethhdr eth, *inner_eth;
	enum mrc_drop reason;
	enum parsed parsed;
	int ce = 0;
	__u16 vlan = 0, inner_proto = 0;

	if (bpf_xdp_adjust_meta(ctx, 0)) /* the driver supports no metadata: mrc_pop does the work */
		return XDP_PASS;
	c.at = (void *)(long)ctx->data;
	c.end = (void *)(long)ctx->data_end;
	parsed = parse_outer(&c, &o, settings.udp_port);
	if (parsed != PARSED_OURS) /* or malformed: mrc_pop counts it */
		return XDP_PASS;
	if (o.vlan)
		vlan = bpf_ntohs(o.vlan->tci) & VLAN_VID_MASK;
	/* If the NIC has stripped the tag, no plane is found, and mrc_pop does the work. */
	of_ev = plane_of_ev(&o);
	plane = arrival_plane(o.ip6, of_ev, ctx->ingress_ifindex, vlan);
	/* A tool's packet socket comes behind this hook. */
	if (plane == NO_PLANE || is_diagnostic_reply(&o) || is_link_probe(o.mrc))
		return XDP_PASS;
	reason = verify_arrival(&o, plane, of_ev, &a);
	if (reason)
		return drop_xdp(reason);
	if (o.mrc->type != MRC_DATA)
		return XDP_PASS;
	headers = o.length + (o.vlan ? sizeof(*o.vlan) : 0);
	length -= ETH_HLEN + headers;
	if (length <= SMALL_PACKET_MAX && sack_hiding_ns(a.peer))
		return XDP_PASS; /* mrc_pop reads ACKs */
	/* Generic XDP sees a burst that a virtual link left whole as one packet. A long one shows by its length. A
	 * short one can only be UDP, and only mrc_pop can tell it from a segment that the kernel cut.
	 */
	if (o.mrc->segments != bpf_htons(1) && length <= settings.inner_mtu && is_udp(o.mrc + 1, c.end))
		return XDP_PASS;
	if (length > settings.inner_mtu)
		packets = bpf_ntohs(o.mrc->segments);
	if (!lengths_agree(&o, packets > 1))
		return drop_xdp(MRC_DROP_TRUNCATED);
	if (packets <= 1 && is_trimmed(&o, c.end, bpf_xdp_get_buff_len(ctx), length)) {
		count_arrival(&a, packets, length, 1);
		return drop_xdp(MRC_DROP_TRIMMED);
	}
	eth = *o.eth;
	of_burst = bpf_ntohs(o.mrc->segments) > 1;
	reason = accept_inner(o.ip6, o.mrc + 1, c.end, &inner_proto, &ce, &csum);
	count_arrival(&a, packets, length, ce);
	if (!reason)
		reason = check_hosts(o.mrc + 1, c.end, inner_proto, a.peer, a.host_id, packets);
	if (reason)
		return drop_xdp(reason);
	if (o.mrc->flags & MRC_FLAG_CRITICAL && !is_first_copy(a.host_id, a.peer->generation, bpf_ntohl(o.mrc->seq)))
		return XDP_DROP; /* eliminated */
	if (bpf_xdp_adjust_head(ctx, headers))
		return drop_xdp(MRC_DROP_POP_FAILED);
	inner_eth = (void *)(long)ctx->data;
	if ((void *)(inner_eth + 1) > (void *)(long)ctx->data_end)
		return drop_xdp(MRC_DROP_POP_FAILED);
	eth.h_proto = inner_proto;
	*inner_eth = eth;
	of_burst = of_burst && is_udp(inner_eth + 1, (void *)(long)ctx->data_end);
	mark_popped(ctx, of_burst ? POPPED_OF_BURST : POPPED);
	return XDP_PASS;
}

/* Raw tracepoint skb:kfree_skb. Arguments: skb, the caller's address, and enum skb_drop_reason. */
SEC("tp_btf/kfree_skb")
int mrc_unsent(__u64 *ctx)
{
	note_unsent((const void *)ctx[0], ctx[1], ctx[2]);
	return 0;
}

/* ---- run by the daemon ------------------------------------------------------------------ */

/* Sweep a peer. `mrcctl detach` runs it by BPF_PROG_TEST_RUN, with the peer's host id as mark and any packet of
 * sufficient size. cb[0]: first EV; cb[1]: number of EVs, wrapping around; 0 = all. Sends requests on the EVs that are
 * due, and one for a report. Returns the number of requests sent.
 */
SEC("tc")
int mrc_sweep(struct __sk_buff *skb)
{
	struct sweep s = { .skb = skb, .node = node(), .request = { .host_id = skb->mark } };
	struct mrc_reports *reports = reports_at(skb->mark);
	struct mrc_peer *peer = peer_at(skb->mark);
	__u32 evs = settings.evs_per_peer;

	if (!s.node || !peer || !peer->configured || !reports)
		return 0;
	s.request.kind = MRC_PROBE_IDLE;
	if (bpf_skb_change_tail(skb, OUTER_L3 + sizeof(struct outer_l4) + probe_length(0), 0))
		return 0;
	s.first = skb->cb[0];
	s.by_turns = 1;
	if (skb->cb[1] && skb->cb[1] < evs)
		evs = skb->cb[1];
	bpf_loop(evs, sweep_ev, &s, 0);
	if (!begin_sweep_report(&s, peer, reports) ||
	    bpf_skb_change_tail(skb, OUTER_L3 + sizeof(struct outer_l4) + probe_length(s.request.counts), 0))
		return s.sent;
	return s.sent + send_request(skb, &s.request);
}

/* Run a tick, by BPF_PROG_TEST_RUN with any packet of sufficient size. Returns the time to the next in µs. */
SEC("tc")
int mrc_tick(struct __sk_buff *skb)
{
	struct tick t = { .sweep = { .skb = skb, .node = node() }, .clock = tick_clock(), .resizes = 1 };
	__u64 wait_ns;

	if (!t.sweep.node || !t.clock ||
	    bpf_skb_change_tail(skb, OUTER_L3 + sizeof(struct outer_l4) + probe_length(0), 0))
		return TICK_NS / NS_PER_US;
	t.sweep.node->ticked_ns = now_ns();
	t.clock->by_daemon++;
	wait_ns = tick(&t);
	if (wait_ns > TICK_NS)
		t.sweep.node->ticked_ns += wait_ns - TICK_NS; /* it is not silent until the next tick is missing */
	return wait_ns / NS_PER_US;
}

/* Probe links of this host, by BPF_PROG_TEST_RUN with any packet of sufficient size. It is no part of mrc_tick: no
 * deadline depends on it. cb[0]: first link; cb[1]: number of links. Returns the number of probes sent.
 */
SEC("tc")
int mrc_probe_links(struct __sk_buff *skb)
{
	struct link_sweep s = { .skb = skb, .node = node(), .clock = tick_clock(), .first = skb->cb[0] };

	if (!s.node || !s.clock ||
	    bpf_skb_change_tail(skb, OUTER_L3 + sizeof(struct outer_l4) + probe_length(0), 0))
		return 0;
	bpf_loop(skb->cb[1], probe_link, &s, 0);
	return s.sent;
}

/* Change the state of an EV. The daemon runs it by BPF_PROG_TEST_RUN, with the peer's host id as mark. cb[0]: EV or
 * REFRESH_ONLY; cb[1]: new state; cb[2]: enum mrc_reason; cb[3]: states that it may be in, as bits. Returns 1 if the
 * state changed.
 */
SEC("tc")
int mrc_set_states(struct __sk_buff *skb)
{
	__u32 host_id = skb->mark, number = skb->cb[0], after = skb->cb[1], allowed = skb->cb[3], before;
	struct mrc_peer *peer = peer_at(host_id);
	struct mrc_ev *ev;

	if (!peer)
		return 0;
	if (number == REFRESH_ONLY) {
		bpf_loop(settings.evs_per_peer, find_deadline, &host_id, 0);
		refresh_usable(peer, host_id);
		return 0;
	}
	if (number >= settings.evs_per_peer || after > MRC_EV_DENIED)
		return 0;
	ev = ev_at(ev_index(host_id, number));
	if (!ev || !ev->configured)
		return 0;
	before = ev->state;
	if (!(allowed & (1u << (before & 31))) || !transit(host_id, number, before, after, skb->cb[2]))
		return 0;
	refresh_usable(peer, host_id);
	return 1;
}
