/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Pops outer packets: verifies, counts, removes the headers, and passes probes on. */
#ifndef MRC_POP_H
#define MRC_POP_H

#include "maps.h"
#include "icmp.h"
#include "link_probe.h"
#include "piggyback.h"
#include "inner.h"
#include "answer_probe.h"
#include "apply_reply.h"
#include "replicate.h"
#include "sack_hiding.h"
#include "source_check.h"

#define NO_PLANE MRC_MAX_PLANES /* no plane has this number */
/* Bytes up to the end of a quoted probe, without SRHs. */
#define ICMP_QUOTE                                                                                 \
	(ETH_HLEN + 2 * sizeof(struct ipv6hdr) + sizeof(struct icmp6) + sizeof(struct outer_l4) +  \
	 sizeof(struct mrc_probe))

/* The sender and path of a packet with MRC headers. */
struct arrival {
	struct mrc_peer *peer;
	__u32 host_id;
	__u32 ev;
	__u32 plane;
	struct mrc_auth *untagged; /* data that is accepted without a tag: where it is counted; else NULL */
};

/* Return the plane of a NIC and VLAN, or NO_PLANE: `likely` is tried first. A global function, so that the verifier walks
 * through what follows once, and not for each plane.
 */
__noinline __u32 nic_plane(__u32 likely, __u32 ifindex, __u32 vlan)
{
	const struct mrc_plane *plane = likely < settings.planes ? plane_at(likely) : 0;
	__u32 i;

	if (plane && plane->ifindex == ifindex && plane->vlan == vlan)
		return likely;
	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++) {
		plane = plane_at(i);
		if (plane && plane->ifindex == ifindex && plane->vlan == vlan)
			return i;
	}
	return NO_PLANE;
}

/* Return the plane of a packet's EV. Its header is not verified yet. */
static __always_inline __u32 plane_of_ev(const struct outer *o)
{
	return bpf_ntohs(o->mrc->ev) / settings.evs_per_plane;
}

/* Return the plane on which a packet to this host arrived, or NO_PLANE. */
static __always_inline __u32 arrival_plane(const struct ipv6hdr *ip6, __u32 likely, __u32 ifindex, __u16 vlan)
{
	__u32 number = nic_plane(likely, ifindex, vlan);
	const struct mrc_plane *plane;

	OPAQUE(number); /* the compiler knows its bounds, and would leave out checks that the verifier wants */
	plane = plane_at(number);
	if (plane && (same_address(&ip6->daddr, plane->sid) || same_address(&ip6->daddr, plane->address)))
		return number;
	return NO_PLANE;
}

/* Return 1 for a reply to a diagnostic probe: the tool's packet socket has read it already. */
static __always_inline int is_diagnostic_reply(const struct outer *o)
{
	return o->mrc->version == MRC_PROBE_VERSION && o->mrc->flags & MRC_FLAG_DIAGNOSTIC &&
	       o->mrc->type == MRC_PROBE_REPLY;
}

/* A packet's tag is right, but not its time: have a request sent, whose reply tells the peer's clock. It is unknown, or has
 * restarted, or this host stood still. From a peer that was just heard it is a recorded packet.
 */
static __always_inline void request_clock(const struct mrc_peer *peer, __u32 host_id, __u64 now)
{
	if (aged(now, peer->heard_ns, CLOCK_DOUBT_NS))
		request_report(host_id);
}

/* Verify the MRC header, the outer source, and the tag of data, and fill in the arrival. `of_ev` is the plane of the EV.
 * Returns 0 or a drop reason.
 */
static __always_inline enum mrc_drop verify_arrival(const struct outer *o, __u32 plane, __u32 of_ev, struct arrival *a)
{
	if (!is_right_version(o->mrc))
		return MRC_DROP_BAD_VERSION;
	if (o->mrc->type < MRC_DATA || o->mrc->type > MRC_PROBE_REPLY)
		return MRC_DROP_BAD_TYPE;
	if (o->mrc->receiver != bpf_htons(settings.host_id))
		return MRC_DROP_WRONG_RECEIVER;
	a->host_id = bpf_ntohs(o->mrc->sender);
	a->peer = peer_at(a->host_id);
	if (!a->peer || !a->peer->configured)
		return MRC_DROP_UNKNOWN_SENDER;
	a->ev = bpf_ntohs(o->mrc->ev);
	if (a->ev >= settings.evs_per_plane * settings.planes)
		return MRC_DROP_BAD_EV;
	if (of_ev != plane && o->mrc->type != MRC_PROBE_REPLY) /* a reply may come by another plane than its request */
		return MRC_DROP_WRONG_PLANE;
	a->plane = plane;
	if (!same_address(&o->ip6->saddr, a->peer->address[a->plane & (MRC_MAX_PLANES - 1)]))
		return MRC_DROP_WRONG_SOURCE;
	if (o->mrc->type == MRC_DATA) {
		struct mrc_auth *auth = auth_at(a->host_id);
		struct mrc_hdr mrc = *o->mrc;
		enum mrc_drop reason = auth ? check_data(auth, &mrc) : MRC_DROP_UNKNOWN_SENDER;

		if (reason == MRC_DROP_STALE)
			request_clock(a->peer, a->host_id, now_ns());
		if (!reason && counts_untagged(auth, mrc.key_id))
			a->untagged = auth;
		return reason;
	}
	return MRC_DROP_NONE;
}

/* Count data packets that arrived on an EV. */
static __always_inline void count_arrival(const struct arrival *a, __u32 packets, __u32 bytes, int ce)
{
	__u32 index = ev_index(a->host_id, a->ev);
	struct mrc_rx *rx = bpf_map_lookup_elem(&mrc_rxs, &index);

	if (!rx)
		return;
	__sync_fetch_and_add(&rx->packets, packets);
	__sync_fetch_and_add(&rx->bytes, bytes);
	if (ce)
		__sync_fetch_and_add(&rx->ce, packets);
	if (a->untagged) /* not before: mrc_pop_xdp verifies packets that it then leaves to mrc_pop */
		__sync_fetch_and_add(&a->untagged->untagged, 1);
}

/* Request a report when a small packet has come from the peer, usually an ACK. The packets that it acknowledges were
 * sent a round trip ago, and a small packet is cheap to clone. mrc_push requests one if no such packet comes in time.
 */
static __always_inline void probe_on_arrival(struct __sk_buff *skb, const struct arrival *a)
{
	struct request request = { .host_id = a->host_id };
	struct mrc_rotation *rotation = bpf_map_lookup_elem(&mrc_rotations, &request.host_id);
	struct mrc_node *self = node();
	struct mrc_prefix key = {};
	struct inner inner = {};

	if (!rotation || !self || !is_small(skb) || rotation->unprobed < health.probe_packets ||
	    parse_inner(skb, &key, &inner))
		return;
	request.now = now_ns();
	request.traffic_class = inner.traffic_class;
	piggyback_probe(skb, self, a->peer, rotation, &request, health.probe_gap_us);
}

/* Return 1 if the outer lengths agree with each other. A whole burst is not checked: it can exceed 16 bits, and only
 * segmentation rewrites its lengths.
 */
static __always_inline int lengths_agree(const struct outer *o, int burst)
{
	__u32 payload = bpf_ntohs(o->ip6->payload_len), udp = bpf_ntohs(o->udp->len);

	return burst || (udp + o->length - sizeof(*o->ip6) - sizeof(struct outer_l4) == payload &&
			 udp >= sizeof(struct outer_l4));
}

/* Return 1 if a frame is as long as its outer headers say. */
static __always_inline int is_whole(const struct outer *o, __u32 frame_length)
{
	__u32 l3 = (void *)o->ip6 - (void *)o->eth;

	return l3 + sizeof(*o->ip6) + bpf_ntohs(o->ip6->payload_len) <= frame_length;
}

/* Return 1 if a switch has cut the end of a data packet off, as congested ones do rather than drop it (packet trimming).
 * Its outer lengths may stay as they were, or be rewritten. Then the inner length tells, but a segment of a UDP burst may
 * have its burst's (deliver.h).
 */
static __always_inline int is_trimmed(const struct outer *o, void *end, __u32 frame_length, __u32 length)
{
	const void *inner = o->mrc + 1;

	return !is_whole(o, frame_length) ||
	       (is_cut(inner, end, length) && (o->mrc->segments == bpf_htons(1) || !is_udp(inner, end)));
}

/* Count a data packet and remove its outer headers. Returns TC_ACT_UNSPEC, or TC_ACT_SHOT if it was dropped. */
static __always_inline int pop_data(struct __sk_buff *skb, const struct outer *o, const struct arrival *a)
{
	__u32 segments = bpf_ntohs(o->mrc->segments), packets = 1, length, csum = 0;
	__u64 hide_ns;
	struct ethhdr *eth;
	enum mrc_drop reason;
	__u16 inner_proto = 0;
	int ce = 0;

	if (skb->gso_size) {
		if (segments < 2)
			return drop_skb(MRC_DROP_MERGED);
		packets = segments;
	}
	length = skb->len - ETH_HLEN - o->length;
	if (!skb->gso_size && is_trimmed(o, (void *)(long)skb->data_end, skb->len, length)) {
		count_arrival(a, 1, length, 1);
		return drop_skb(MRC_DROP_TRIMMED);
	}
	reason = accept_inner(o->ip6, o->mrc + 1, (void *)(long)skb->data_end, &inner_proto, &ce, &csum);
	if (csum)
		bpf_csum_update(skb, csum); /* of a packet that the NIC has summed (CHECKSUM_COMPLETE) */
	count_arrival(a, packets, length, ce);
	if (!reason)
		reason = check_hosts(o->mrc + 1, (void *)(long)skb->data_end, inner_proto, a->peer, a->host_id,
				     packets);
	if (reason)
		return drop_skb(reason);
	if (o->mrc->flags & MRC_FLAG_CRITICAL && !is_first_copy(a->host_id, a->peer->generation, bpf_ntohl(o->mrc->seq)))
		return TC_ACT_SHOT; /* eliminated, not dropped */
	if (take_headers_off(skb, o->length, inner_proto))
		return drop_skb(MRC_DROP_POP_FAILED);
	eth = (void *)(long)skb->data;
	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return drop_skb(MRC_DROP_POP_FAILED);
	eth->h_proto = inner_proto;
	hide_ns = sack_hiding_ns(a->peer);
	if (hide_ns)
		hide_sack(skb, hide_ns);
	return TC_ACT_UNSPEC;
}

/* Check the tag of a request, and that it is new. Sets `is_believed`, if what it says of the peer may be learnt: a tool
 * does not know its host's status, and while the peer's clock is unknown, a request may be a recorded one.
 */
static __always_inline enum mrc_drop check_request(const struct mrc_scratch *scratch, const struct arrival *a,
						   int *is_believed)
{
	const struct control *c = &scratch->control;
	__u32 generation = bpf_ntohl(c->probe.generation);
	__u64 tx_ns = bpf_be64_to_cpu(c->mrc.tx_ns), now;
	struct mrc_replay *replay = replay_at(a->host_id);
	struct mrc_auth *auth = auth_at(a->host_id);
	enum mrc_drop reason;
	const __u64 *key;

	if (!auth || !replay)
		return MRC_DROP_BAD_PROBE;
	key = receiving_key(auth, c->mrc.key_id, &reason);
	if (!key)
		return accept_untagged(auth, c->mrc.key_id, reason);
	if (probe_tag(key[0], key[1], c) != c->mrc.auth)
		return MRC_DROP_BAD_TAG;
	now = now_ns();
	if (!is_new(auth, tx_ns, now)) {
		request_clock(a->peer, a->host_id, now);
		*is_believed = 0;
		return auth->clock_ns ? MRC_DROP_STALE : MRC_DROP_NONE;
	}
	if (c->mrc.flags & MRC_FLAG_DIAGNOSTIC) /* it is only answered; each run of a tool counts from 1 */
		return MRC_DROP_NONE;
	if (generation != a->peer->generation && is_overtaken(tx_ns, a->peer->plane_mask_ns))
		return MRC_DROP_STALE;
	return is_first(replay->requests, bpf_ntohl(c->mrc.seq),
			table_epoch(&replay->generation, &replay->epoch, generation)) ?
		       MRC_DROP_NONE :
		       MRC_DROP_REPLAYED;
}

/* Handle a probe. Its MRC header is verified; the rest is not yet. */
static __always_inline int pop_control(struct __sk_buff *skb, const struct outer *o, const struct arrival *a)
{
	__u32 zero = 0;
	struct mrc_scratch *scratch = bpf_map_lookup_elem(&mrc_scratch, &zero);
	__u8 class = traffic_class(o->ip6);
	enum mrc_drop reason;
	struct control *c;
	int is_believed;

	if (!scratch)
		return drop_skb(MRC_DROP_BAD_PROBE);
	c = &scratch->control;
	c->mrc = *o->mrc;
	if (bpf_ntohs(o->udp->len) < sizeof(struct outer_l4) + sizeof(c->probe) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + o->length, &c->probe, sizeof(c->probe)))
		return drop_skb(MRC_DROP_TRUNCATED);
	if (c->mrc.type == MRC_PROBE_REPLY) {
		reason = apply_reply(skb, scratch, a->peer, a->host_id, a->ev, ETH_HLEN + o->length);

		if (reason)
			return drop_skb(reason);
		learn_status(a->peer, a->host_id, c);
		return TC_ACT_SHOT; /* consumed, not dropped */
	}
	is_believed = !(c->mrc.flags & MRC_FLAG_DIAGNOSTIC);
	reason = check_request(scratch, a, &is_believed);
	if (reason)
		return drop_skb(reason);
	if (is_believed)
		learn_status(a->peer, a->host_id, c);
	return answer_probe(skb, scratch, a->peer, a->host_id, a->ev, a->plane, class);
}

/* Pass an ICMPv6 packet to handle_icmp(). The stack receives it in any case. */
static __noinline int pop_icmp(struct __sk_buff *skb, __u16 vlan)
{
	__u32 quote_length = ICMP_QUOTE + (settings.srh ? MRC_SRH_MAX : 0), number;
	struct mrc_plane *plane;
	struct ipv6hdr *ip6;
	struct ethhdr *eth;
	struct cursor c;

	bpf_skb_pull_data(skb, skb->len < quote_length ? skb->len : quote_length);
	c.at = (void *)(long)skb->data;
	c.end = (void *)(long)skb->data_end;
	if (!TAKE(&c, eth) || !TAKE(&c, ip6))
		return 0;
	number = arrival_plane(ip6, NO_PLANE, skb->ifindex, vlan);
	plane = plane_at(number);
	if (plane)
		handle_icmp(&c, ip6, plane, number);
	return 0;
}

/* Return 1 if an IPv6 packet is neither mrcd's nor an error that could quote an mrcd packet, as far as its linear part
 * tells.
 */
static __always_inline int is_other_traffic(struct __sk_buff *skb)
{
	struct ipv6hdr *ip6 = (void *)(long)skb->data + ETH_HLEN;

	return (void *)(ip6 + 1) <= (void *)(long)skb->data_end && ip6->nexthdr != IPPROTO_UDP &&
	       ip6->nexthdr != NEXTHDR_ROUTING && ip6->nexthdr != IPPROTO_ICMPV6;
}

/* Restore the Ethernet header. Behind generic XDP, kernels up to at least 6.18 give tc a copy of the packet without the
 * length of its Ethernet header, so it begins at the IP header. A packet for this host gets a header without addresses;
 * all others stay as they are, because the stack knows their true header.
 */
static __always_inline int restore_ethernet(struct __sk_buff *skb, __u16 vlan)
{
	__be16 eth_type = bpf_htons(ETH_P_IPV6);
	struct ethhdr *eth = (void *)(long)skb->data;
	struct ipv6hdr *ip6 = (void *)(long)skb->data;

	if ((void *)(eth + 1) > (void *)(long)skb->data_end || eth->h_proto == eth_type)
		return 0;
	if ((void *)(ip6 + 1) > (void *)(long)skb->data_end ||
	    arrival_plane(ip6, NO_PLANE, skb->ifindex, vlan) == NO_PLANE)
		return -1;
	return bpf_skb_change_head(skb, ETH_HLEN, 0) ||
	       bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &eth_type, sizeof(eth_type), 0);
}

#endif
