/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Looks up destinations, with a cache per CPU. The trie walks bit by bit, and deeper the more prefixes there are. Each
 * step can miss the CPU's caches, so each CPU keeps its newest results in a table of its own.
 */
#ifndef MRC_DST_CACHE_H
#define MRC_DST_CACHE_H

#include "arith.h"
#include "maps.h"
#include "parse.h"

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

#endif
