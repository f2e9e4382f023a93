/* Whose a destination is. The trie is walked bit by bit, through the deeper the more prefixes there are, and each step
 * may wait for memory: so each CPU remembers what it found, in a table of its own.
 */
#ifndef MRC_OWNER_H
#define MRC_OWNER_H

#include "arith.h"
#include "maps.h"
#include "parse.h"

/* What the trie says of an address, by its key: the host id and the policy. Returns 0 if it has none. */
static __always_inline int find_owner(struct mrc_prefix *key, struct mrc_node *self, __u32 *value)
{
	__u32 index = bpf_get_smp_processor_id() * MRC_OWNERS + owner_slot((const __u32 *)key->address);
	struct mrc_owner *owner = bpf_map_lookup_elem(&mrc_owners, &index);
	__u32 *found, epoch;

	if (owner && owner->epoch == self->epoch && same_address(owner->address, key->address)) {
		*value = owner->value;
		return 1;
	}
	epoch = __sync_fetch_and_add(&self->epoch, 0); /* before the trie is read, on every architecture */
	found = bpf_map_lookup_elem(&mrc_prefixes, key);
	if (!found)
		return 0;
	*value = *found;
	if (owner) {
		__builtin_memcpy(owner->address, key->address, sizeof(owner->address));
		owner->value = *value;
		owner->epoch = epoch;
	}
	return 1;
}

#endif
