/* Whose a destination is. The trie is walked bit by bit, through the deeper the more prefixes there are, and each step
 * may wait for memory: so each CPU remembers what it found, in a table of its own.
 */
#ifndef MRC_DST_CACHE_H
#define MRC_DST_CACHE_H

#include "arith.h"
#include "maps.h"
#include "parse.h"

/* What the trie says of an address, by its key: the host id and the policy. Returns 0 if it has none. */
static __always_inline int find_destination(struct mrc_prefix *key, struct mrc_node *self, __u32 *value)
{
	__u32 index = bpf_get_smp_processor_id() * MRC_DST_ENTRIES + dst_slot((const __u32 *)key->address);
	struct mrc_dst_entry *entry = bpf_map_lookup_elem(&mrc_dst_cache, &index);
	__u32 *found, epoch;

	if (entry && entry->epoch == self->epoch && same_address(entry->address, key->address)) {
		*value = entry->value;
		return 1;
	}
	epoch = __sync_fetch_and_add(&self->epoch, 0); /* before the trie is read, on every architecture */
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
