/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Checks that inner packets belong to their hosts: a host sends from its own prefixes, and receives what a peer sends
 * from the peer's prefixes to its own. Otherwise a host could speak for another one's addresses, and have a receiver
 * route its packets.
 */
#ifndef MRC_OWNER_H
#define MRC_OWNER_H

#include "dst_cache.h"
#include "drop.h"

#define NO_OWNER 0xffffffff /* no host has this id */

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

/* Return the id of the host that owns an address, or NO_OWNER. */
static __noinline __u32 owner(struct mrc_prefix *key)
{
	struct mrc_node *self = node();
	__u32 entry;

	return self && find_destination(key, self, &entry) ? entry & MRC_DST_HOST : NO_OWNER;
}

/* Return 0 if an inner packet is from host `sender` to this host, or a drop reason. merge_ecn() has checked its
 * header.
 */
static __always_inline enum mrc_drop check_owners(const void *inner, const void *end, __u32 sender)
{
	struct mrc_prefix source = {}, destination = {};
	const struct iphdr *ip = inner;
	const struct ipv6hdr *ip6 = inner;

	if (!settings.source_check)
		return MRC_DROP_NONE;
	if ((void *)(ip + 1) > end)
		return MRC_DROP_TRUNCATED;
	if (ip->version == 4) {
		key_of_ip4(&source, &ip->saddr);
		key_of_ip4(&destination, &ip->daddr);
	} else {
		if ((void *)(ip6 + 1) > end)
			return MRC_DROP_TRUNCATED;
		key_of_ip6(&source, &ip6->saddr);
		key_of_ip6(&destination, &ip6->daddr);
	}
	if (owner(&source) != sender)
		return MRC_DROP_WRONG_INNER_SOURCE;
	return owner(&destination) == settings.host_id ? MRC_DROP_NONE : MRC_DROP_WRONG_INNER_DESTINATION;
}

#endif
