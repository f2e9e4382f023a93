/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Checks inner addresses ([overlay] source_check): a host sends from its own prefixes only, and accepts from a peer only
 * what is from the peer's prefixes to its own. Otherwise a peer could send under any address, and have this host route
 * its packets. The overlay trie says which host an address belongs to; it holds this host's prefixes, too.
 */
#ifndef MRC_SOURCE_CHECK_H
#define MRC_SOURCE_CHECK_H

#include "inner.h"

#define NO_HOST 0xffffffff /* no host has this id */

/* Return 1 for an IPv4-mapped address (RFC 4291 §2.5.5.2). The trie holds IPv4 prefixes as such addresses, but in an IPv6
 * header none belongs to a host.
 */
static __always_inline int is_mapped(const struct in6_addr *address)
{
	const __u32 *words = address->in6_u.u6_addr32;

	return !words[0] && !words[1] && words[2] == bpf_htonl(0xffff);
}

/* Return the id of the host of an inner packet's source, or of its destination if `of_source` is 0. NO_HOST if no host
 * has it, or if the header is truncated.
 */
static __noinline __u32 inner_host(const void *inner, const void *end, __be16 eth_type, int of_source)
{
	const struct ipv6hdr *ip6 = inner;
	const struct iphdr *ip = inner;
	struct mrc_node *self = node();
	struct mrc_prefix key = {};
	__u32 entry;

	if (eth_type == bpf_htons(ETH_P_IP)) {
		if ((void *)(ip + 1) > end)
			return NO_HOST;
		key_of_ip4(&key, of_source ? &ip->saddr : &ip->daddr);
	} else {
		if ((void *)(ip6 + 1) > end)
			return NO_HOST;
		if (is_mapped(of_source ? &ip6->saddr : &ip6->daddr))
			return NO_HOST;
		key_of_ip6(&key, of_source ? &ip6->saddr : &ip6->daddr);
	}
	return self && find_destination(&key, self, &entry) ? entry & MRC_DST_HOST : NO_HOST;
}

/* Return 1 if this host may send an inner packet, which parse_inner() has accepted. */
static __always_inline int is_own_source(struct __sk_buff *skb)
{
	struct ethhdr *eth = (void *)(long)skb->data;

	if (!settings.source_check)
		return 1;
	return (void *)(eth + 1) <= (void *)(long)skb->data_end &&
	       inner_host(eth + 1, (void *)(long)skb->data_end, eth->h_proto, 1) == settings.host_id;
}

/* Check that an inner packet is from the peer `host_id` to this host. Returns 0 or a drop reason, and counts its
 * `packets` on the peer if they are refused. accept_inner() has accepted the inner header; `eth_type` is its type.
 */
static __always_inline enum mrc_drop check_hosts(const void *inner, const void *end, __be16 eth_type,
						 struct mrc_peer *peer, __u32 host_id, __u32 packets)
{
	enum mrc_drop reason = MRC_DROP_NONE;

	if (!settings.source_check)
		return MRC_DROP_NONE;
	if (inner_host(inner, end, eth_type, 1) != host_id)
		reason = MRC_DROP_WRONG_INNER_SOURCE;
	else if (inner_host(inner, end, eth_type, 0) != settings.host_id)
		reason = MRC_DROP_WRONG_INNER_DESTINATION;
	if (reason)
		__sync_fetch_and_add(&peer->refused, packets);
	return reason;
}

#endif
