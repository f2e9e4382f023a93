/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reads the inner headers of a packet that is not pushed yet, or already popped. */
#ifndef MRC_INNER_H
#define MRC_INNER_H

#include "arith.h"
#include "maps.h"
#include "parse.h"

/* Looks up destinations, with a cache per CPU. The trie walks bit by bit, and deeper the more prefixes there are. Each
 * step can miss the CPU's caches, so each CPU keeps its newest results in a table of its own.
 */

/* Fill in the trie key of an IPv4 address. */
static __always_inline void key_of_ip4(struct mrc_prefix *key, const __be32 *address)
{
	key->prefixlen = 128;
	__builtin_memset(key->address, 0, 10);
	__builtin_memset(key->address + 10, 0xff, 2);
	__builtin_memcpy(key->address + 12, address, 4);
}

/* Fill in the trie key of an IPv6 address. */
static __always_inline void key_of_ip6(struct mrc_prefix *key, const struct in6_addr *address)
{
	key->prefixlen = 128;
	__builtin_memcpy(key->address, address, 16);
}

/* Look up the host id and policy of an address in the trie. Returns 0 if the trie has no entry. */
static __always_inline int find_destination(struct mrc_prefix *key, struct mrc_node *self, __u32 *value)
{
	__u32 index = bpf_get_smp_processor_id() * MRC_DST_ENTRIES + dst_slot((const __u32 *)key->address);
	struct mrc_dst_entry *entry = bpf_map_lookup_elem(&mrc_dst_cache, &index);
	__u32 *found, epoch;

	if (entry && entry->epoch == self->epoch && same_address(entry->address, key->address)) {
		*value = entry->value;
		return 1;
	}
	/* Read before the trie, on every architecture: a change in between makes the entry stale. */
	epoch = __sync_fetch_and_add(&self->epoch, 0);
	found = bpf_map_lookup_elem(&mrc_prefixes, key);
	if (!found)
		return 0;
	*value = *found;
	if (entry) {
		__builtin_memcpy(entry->address, key->address, sizeof(entry->address));
		entry->value = *value;
		entry->epoch = epoch;
	}
	return 1;
}

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

#endif
