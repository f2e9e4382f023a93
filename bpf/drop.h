/* Counted drops: the reason is the counter. */
#ifndef MRC_DROP_H
#define MRC_DROP_H

#include "maps.h"

static __always_inline void count_drop(enum mrc_drop reason)
{
	__u32 index = reason;
	__u64 *count = bpf_map_lookup_elem(&mrc_drops, &index);

	if (count)
		(*count)++;
}

static __always_inline int drop_skb(enum mrc_drop reason)
{
	count_drop(reason);
	return TC_ACT_SHOT;
}

static __always_inline int drop_xdp(enum mrc_drop reason)
{
	count_drop(reason);
	return XDP_DROP;
}

#endif
