/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reads the inner headers of a packet that is not pushed yet, or already popped. */
#ifndef MRC_INNER_H
#define MRC_INNER_H

#include "drop.h"
#include "dst_cache.h"
#include "parse.h"

#define SMALL_PACKET_MAX 512 /* bytes; cheap to clone */

struct inner {
	__u32 l3_length; /* of the IP header, bytes */
	__u8 ip_proto;
	__u8 traffic_class;
	__u8 fragment; /* 1 = not the first fragment: it has no ports */
};

/* Read the inner IP header: the destination as a trie key, and the fields that the outer header copies. */
static __always_inline enum mrc_drop parse_inner(struct __sk_buff *skb, struct mrc_prefix *key, struct inner *inner)
{
	struct cursor c = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	struct ethhdr *eth;

	if (!TAKE(&c, eth))
		return MRC_DROP_NOT_IP;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip;

		if (!TAKE(&c, ip))
			return MRC_DROP_NOT_IP;
		key_of_ip4(key, &ip->daddr);
		inner->traffic_class = ip->tos;
		inner->ip_proto = ip->protocol;
		inner->l3_length = ip->ihl * 4;
		inner->fragment = !!(ip->frag_off & bpf_htons(IP_OFFSET));
		return MRC_DROP_NONE;
	}
	if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip6;

		if (!TAKE(&c, ip6))
			return MRC_DROP_NOT_IP;
		key_of_ip6(key, &ip6->daddr);
		inner->traffic_class = traffic_class(ip6);
		inner->ip_proto = ip6->nexthdr;
		inner->l3_length = sizeof(*ip6);
		return MRC_DROP_NONE;
	}
	return MRC_DROP_NOT_IP;
}

/* Return how many packets an skb will be on the wire. */
static __always_inline __u32 wire_packets(struct __sk_buff *skb, const struct inner *inner)
{
	__u32 l4_length = sizeof(struct udphdr), headers, payload;

	if (!skb->gso_size)
		return 1;
	if (skb->gso_segs)
		return skb->gso_segs;
	/* A packet forwarded from a virtual machine: the stack has not counted its segments. */
	if (inner->ip_proto == IPPROTO_TCP) {
		struct tcphdr tcp;

		if (bpf_skb_load_bytes(skb, ETH_HLEN + inner->l3_length, &tcp, sizeof(tcp)))
			return 1;
		l4_length = tcp.doff * 4;
	}
	headers = ETH_HLEN + inner->l3_length + l4_length;
	if (skb->len <= headers) /* the virtual machine wrote wrong lengths, and the kernel will drop the packet */
		return 1;
	payload = skb->len - headers;
	return (payload + skb->gso_size - 1) / skb->gso_size;
}

/* Return 1 for a small packet, usually an ACK. */
static __always_inline int is_small(const struct __sk_buff *skb)
{
	return !skb->gso_size && skb->len <= SMALL_PACKET_MAX;
}

/* Return 1 if this packet can carry a probe: its checksum must lie in the ballast, wherever the NIC writes it. */
static __always_inline int can_carry_probe(const struct inner *inner)
{
	return inner->l3_length <= sizeof(struct ipv6hdr) &&
	       (inner->ip_proto == IPPROTO_TCP || inner->ip_proto == IPPROTO_UDP);
}

#endif
