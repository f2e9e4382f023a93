/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Writes the outer headers in front of a packet, and removes them. */
#ifndef MRC_HEADERS_H
#define MRC_HEADERS_H

#include "arith.h"
#include "auth.h"
#include "maps.h"
#include "parse.h"
#include "tunnel.h"

/* Ethernet and IPv6 headers. An SRH follows, if there is one, then UDP and MRC. */
#define OUTER_L3 (ETH_HLEN + sizeof(struct ipv6hdr))

struct outer_l4 {
	struct udphdr udp;
	struct mrc_hdr mrc;
};
_Static_assert(sizeof(struct outer_l4) == 40, "no padding between UDP and MRC");

/* A packet to be pushed. */
struct push {
	const struct mrc_plane *plane;
	struct mrc_ev *ev; /* the path */
	__u32 index; /* the EV's index in the tables */
	__u32 path_ev; /* number of the EV, for the flow label */
	__u32 payload; /* bytes after the MRC header */
	__u32 number; /* of a critical packet */
	__u16 source_port; /* the EV's; of data the flow's, unless switches choose the path by it */
	__u8 traffic_class;
	__u8 flags; /* MRC_FLAG_* */
};

/* Return the bytes of a path's SRH, bounded for the verifier. */
static __always_inline __u32 srh_length(const struct mrc_ev *path)
{
	return settings.srh ? path->srh_len & 0x7f : 0;
}

/* Return the bytes of a path's outer headers, from IPv6 to MRC. */
static __always_inline __u32 outer_length(const struct mrc_ev *path)
{
	return sizeof(struct ipv6hdr) + srh_length(path) + sizeof(struct outer_l4);
}

/* Select the path of an EV for a push. Returns -1 if there is none. */
static __always_inline int push_by(struct push *p, __u32 host_id, __u32 number)
{
	p->index = ev_index(host_id, number);
	p->path_ev = number;
	p->source_port = MRC_SPORT_BASE + number;
	p->ev = ev_at(p->index);
	if (!p->ev || !p->ev->configured)
		return -1;
	p->plane = plane_at(p->ev->plane);
	return p->plane ? 0 : -1;
}

static __always_inline void write_eth(struct ethhdr *eth, const struct mrc_plane *plane)
{
	__builtin_memcpy(eth->h_dest, plane->dmac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, plane->smac, ETH_ALEN);
	eth->h_proto = bpf_htons(ETH_P_IPV6);
}

static __always_inline void write_ip6(struct ipv6hdr *ip6, const struct push *p)
{
	/* Version, traffic class and flow label share the first word. */
	*(__be32 *)ip6 = bpf_htonl(6u << 28 | (__u32)p->traffic_class << 20 | p->path_ev);
	ip6->payload_len = bpf_htons(p->ev->srh_len + sizeof(struct outer_l4) + p->payload);
	ip6->nexthdr = p->ev->srh_len ? NEXTHDR_ROUTING : IPPROTO_UDP;
	ip6->hop_limit = MRC_HOP_LIMIT;
	__builtin_memcpy(&ip6->saddr, p->plane->address, 16);
	__builtin_memcpy(&ip6->daddr, p->ev->dst, 16);
}

static __always_inline void write_udp(struct udphdr *udp, const struct push *p)
{
	udp->source = bpf_htons(p->source_port);
	udp->dest = bpf_htons(settings.udp_port);
	udp->len = bpf_htons(sizeof(struct outer_l4) + p->payload);
	udp->check = 0; /* RFC 6935, RFC 6936 */
}

/* Write all outer headers, including Ethernet, into existing room; `mrc` is complete. Returns 0, or -1 if the packet is
 * too short or not writable.
 */
static __always_inline int write_outer(struct __sk_buff *skb, const struct push *p, const struct mrc_hdr *mrc)
{
	struct outer_l4 *l4;
	struct ethhdr *eth;
	struct ipv6hdr *ip6;

	if (settings.srh && p->ev->srh_len) {
		const struct mrc_srh *srh = bpf_map_lookup_elem(&mrc_srhs, &p->index);
		__u32 length = srh_length(p->ev);

		OPAQUE(length);
		if (!srh || length > MRC_SRH_MAX)
			return -1;
		OPAQUE(length);
		if (length < sizeof(struct srh) || bpf_skb_store_bytes(skb, OUTER_L3, srh->bytes, length, 0))
			return -1;
	}
	eth = (void *)(long)skb->data;
	ip6 = (void *)(eth + 1);
	if ((void *)(ip6 + 1) > (void *)(long)skb->data_end)
		return -1;
	write_eth(eth, p->plane);
	write_ip6(ip6, p);
	l4 = (void *)(long)skb->data + OUTER_L3 + srh_length(p->ev);
	if ((void *)(l4 + 1) > (void *)(long)skb->data_end)
		return -1;
	write_udp(&l4->udp, p);
	l4->mrc = *mrc;
	return 0;
}

/* Add the plane's VLAN tag, if it has one, and redirect the packet to its NIC. */
static __always_inline int send_skb(struct __sk_buff *skb, const struct mrc_plane *plane)
{
	if (plane->vlan && bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), plane->vlan))
		return drop_skb(MRC_DROP_PUSH_FAILED);
	return bpf_redirect(plane->ifindex, 0);
}

/* Make room for a path's outer headers. Returns 0, ERROR_EALREADY if the packet is a burst that must be segmented
 * first, or another error.
 */
static __always_inline int make_headroom(struct __sk_buff *skb, const struct push *p)
{
	__u32 length = outer_length(p->ev);
	int error = bpf_skb_adjust_room(skb, length, BPF_ADJ_ROOM_MAC,
					BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 |
						BPF_F_ADJ_ROOM_ENCAP_L4_UDP);

	return error == ERROR_EALREADY ? make_nested_headroom(skb, length, p->plane->nested_gso) : error;
}

/* Return the time until which a qdisc that paces (fq) holds a packet, or 0. Behind mrc0 (tc ingress) the kernel tells it
 * only to programs that read the type. It forgets times of other types as it redirects the packet.
 */
static __always_inline __u64 delivery_ns(struct __sk_buff *skb)
{
	return skb->tstamp_type == BPF_SKB_TSTAMP_DELIVERY_MONO ? skb->tstamp : 0;
}

#define ALONE 0x8000 /* in tc_index, beside the priority */

/* Leave a packet to mrc0, which segments it. Its packets return through mrc0's peer, without their priority: a veth
 * clears it, but not tc_index. Higher priorities are lost; they name classes of a qdisc. `alone`: as
 * is_alone() says.
 */
static __always_inline int leave_to_mrc0(struct __sk_buff *skb, int alone)
{
	skb->tc_index = (skb->priority < ALONE ? skb->priority : 0) | (alone ? ALONE : 0);
	return TC_ACT_UNSPEC;
}

/* Restore the priority of a packet that leave_to_mrc0() has left to mrc0. Returns 1 if it is alone. */
static __always_inline int take_from_mrc0(struct __sk_buff *skb)
{
	int alone = !!(skb->tc_index & ALONE);

	skb->priority = skb->tc_index & (ALONE - 1);
	skb->tc_index = 0;
	return alone;
}

/* Return a hash of an inner flow. TCP's packets have one, others not yet, and the kernel's takes more than 0.1 µs. */
static __always_inline __u32 port_hash(struct __sk_buff *skb)
{
	struct iphdr *ip = (void *)(long)skb->data + ETH_HLEN;
	__be32 *ports = (void *)(ip + 1);

	if (skb->hash)
		return skb->hash;
	if ((void *)(ports + 1) > (void *)(long)skb->data_end || skb->protocol != bpf_htons(ETH_P_IP) ||
	    ip->ihl != 5 || ip->frag_off & bpf_htons(IP_FRAGMENT) ||
	    (ip->protocol != IPPROTO_UDP && ip->protocol != IPPROTO_TCP))
		return bpf_get_hash_recalc(skb);
	return rehash(rehash(ip->saddr ^ ip->daddr) ^ *ports);
}

/* Push a data packet: make room, count it on its EV, write the headers and send it. `segments`: its packets on the
 * wire. `at_mrc0`: a burst that must be segmented first passes to mrc0, which segments it; its packets return through
 * mrc0's peer.
 */
static __always_inline int push_data(struct __sk_buff *skb, struct push *p, __u32 host_id, __u32 segments, __u64 now,
				     int at_mrc0)
{
	struct mrc_hdr mrc = {};
	int error;

	p->payload = skb->len - ETH_HLEN;
	if (settings.flow_ports)
		p->source_port = MRC_SPORT_BASE | (port_hash(skb) & ~MRC_SPORT_BASE);
	error = make_headroom(skb, p);
	if (error == ERROR_EALREADY && at_mrc0)
		return leave_to_mrc0(skb, 0);
	if (error)
		return drop_skb(MRC_DROP_PUSH_FAILED);
	mrc.version = MRC_WIRE_VERSION;
	mrc.type = MRC_DATA;
	mrc.sender = bpf_htons(settings.host_id);
	mrc.receiver = bpf_htons(host_id);
	mrc.ev = bpf_htons(p->path_ev);
	/* Just before the count: a reader must not take the new count for old. And by the clock again: the hypervisor may
	 * have stopped this CPU since `now`.
	 */
	p->ev->last_tx_ns = later_than(later_than(now_ns(), delivery_ns(skb)), p->ev->last_tx_ns);
	mrc.seq = __sync_fetch_and_add(&p->ev->tx_packets, segments);
	mrc.flags = p->flags;
	mrc.seq = bpf_htonl(p->flags & MRC_FLAG_CRITICAL ? p->number : mrc.seq);
	__sync_fetch_and_add(&p->ev->tx_bytes, p->payload);
	mrc.segments = bpf_htons(segments);
	mrc.tx_ns = bpf_cpu_to_be64(now);
	tag_data(&mrc, host_id);
	if (write_outer(skb, p, &mrc))
		return drop_skb(MRC_DROP_PUSH_FAILED);
	return send_skb(skb, p->plane);
}

/* Remove `length` bytes of outer headers, from IPv6 on; the caller writes the Ethernet type. Returns 0 or an error. */
static __always_inline int take_headers_off(struct __sk_buff *skb, __u32 length, __u16 inner_proto)
{
	int ip4 = inner_proto == bpf_htons(ETH_P_IP);

	if (settings.kernel_has & MRC_KERNEL_HAS_DECAP_L3)
		return bpf_skb_adjust_room(skb, -(__s32)length, BPF_ADJ_ROOM_MAC,
					   BPF_F_ADJ_ROOM_FIXED_GSO | (ip4 ? BPF_F_ADJ_ROOM_DECAP_L3_IPV4 :
									     BPF_F_ADJ_ROOM_DECAP_L3_IPV6));
	/* Without these flags the kernel requires 40 bytes behind the headers of an IPv6 packet, more than a small IPv4
	 * packet has. bpf_skb_change_proto avoids that: it makes the packet IPv4 by removing the first 20 bytes. A
	 * burst is long enough, and mrc0 takes its protocol from the Ethernet header.
	 */
	if (ip4 && !skb->gso_size) {
		if (bpf_skb_change_proto(skb, bpf_htons(ETH_P_IP), 0))
			return -1;
		length -= sizeof(struct ipv6hdr) - sizeof(struct iphdr);
	}
	return bpf_skb_adjust_room(skb, -(__s32)length, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
}

/* Check the inner header, and merge the outer ECN field into it (RFC 6040). Returns 0 or a drop reason. Sets `ce` if the
 * fabric has marked the packet; a mark that was there before does not count. Sets `csum` to the change of the packet's
 * sum, if it changed: an IPv6 header has no checksum that makes up for it.
 */
static __always_inline enum mrc_drop accept_inner(const struct ipv6hdr *ip6, void *inner, void *end,
						  __u16 *inner_proto, int *ce, __u32 *csum)
{
	__u8 outer_ecn = traffic_class(ip6) & ECN_MASK;
	__u8 *version = inner;
	int ecn;

	if ((void *)(version + 1) > end)
		return MRC_DROP_TRUNCATED;
	if (*version >> 4 == 4) {
		struct iphdr *ip = inner;
		__u8 tos;

		if ((void *)(ip + 1) > end)
			return MRC_DROP_TRUNCATED;
		ecn = ecn_decapsulated(ip->tos & ECN_MASK, outer_ecn);
		*ce = outer_ecn == ECN_CE && (ip->tos & ECN_MASK) != ECN_CE;
		if (ecn == ECN_INVALID)
			return MRC_DROP_CE_NOT_ECT;
		tos = (ip->tos & ~ECN_MASK) | ecn;
		if (tos != ip->tos) {
			/* The first 16-bit word of the header is version, length and TOS. */
			ip->check = csum_replace16(ip->check, *(__u16 *)ip,
						   bpf_htons(*version << 8 | tos));
			ip->tos = tos;
		}
		*inner_proto = bpf_htons(ETH_P_IP);
		return MRC_DROP_NONE;
	}
	if (*version >> 4 == 6) {
		struct ipv6hdr *in6 = inner;
		__u32 before;

		if ((void *)(in6 + 1) > end)
			return MRC_DROP_TRUNCATED;
		ecn = ecn_decapsulated(traffic_class(in6) & ECN_MASK, outer_ecn);
		*ce = outer_ecn == ECN_CE && (traffic_class(in6) & ECN_MASK) != ECN_CE;
		if (ecn == ECN_INVALID)
			return MRC_DROP_CE_NOT_ECT;
		if (ecn != (traffic_class(in6) & ECN_MASK)) {
			before = *(__u32 *)in6;
			in6->flow_lbl[0] = (in6->flow_lbl[0] & ~(ECN_MASK << 4)) | ecn << 4;
			*csum = csum_change(before, *(__u32 *)in6);
		}
		*inner_proto = bpf_htons(ETH_P_IPV6);
		return MRC_DROP_NONE;
	}
	return MRC_DROP_BAD_INNER;
}

#endif
