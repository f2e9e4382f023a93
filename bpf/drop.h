/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Drops packets and counts them; the drop reason is the counter's index. */
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
