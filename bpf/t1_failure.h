/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Records failed T1s, so that the tick probes the EVs of other peers that share the links (neighbours.h).
 *
 * A uSID carrier names the switches in travel order. Two EVs cross the same NIC link, T0 and T1 if the first 64 bits of
 * their carriers are equal: the block and two uSIDs. With an SRH, or without source routing, the destination does not
 * tell the switches, and nothing is recorded.
 */
#ifndef MRC_T1_FAILURE_H
#define MRC_T1_FAILURE_H

#include "arith.h"
#include "clock.h"
#include "maps.h"

/* Least time between two records of the same T1: each neighbour's failure reports it again. */
#define T1_FAILURE_WINDOW_NS 1000000000ULL
/* Records in that time, at most: if many T1s fail towards some peers, their T0 has failed. */
#define T1_FAILURES_PER_WINDOW 4

static __always_inline struct mrc_t1_failure *t1_failure_at(__u32 i)
{
	i &= T1_FAILURES - 1;
	return bpf_map_lookup_elem(&mrc_t1_failures, &i);
}

/* Return 1 if an EV crosses the NIC link, T0 and T1 that a carrier begins with. */
static __always_inline int shares_links(const struct mrc_ev *ev, __u64 carrier)
{
	return ev->configured && !ev->srh_len && *(const __u64 *)ev->dst == carrier;
}

/* Record the T1 of a failed EV. */
__noinline int record_t1_failure(__u32 host_id, __u32 number)
{
	const struct mrc_ev *ev = ev_at(ev_index(host_id, number));
	__u64 carrier, now = now_ns();
	__u32 zero = 0, recent = 0, i, *made;
	struct mrc_t1_failure *failure;

	if (!ev || ev->srh_len || !settings.shared_links)
		return 0;
	carrier = *(const __u64 *)ev->dst;
	for (i = 0; i < T1_FAILURES; i++) {
		failure = t1_failure_at(i);
		if (!failure || aged(now, failure->ns, T1_FAILURE_WINDOW_NS))
			continue;
		recent++;
		if (failure->carrier == carrier)
			return 0;
	}
	if (recent >= T1_FAILURES_PER_WINDOW)
		return 0;
	made = bpf_map_lookup_elem(&mrc_t1_recorded, &zero);
	failure = made ? t1_failure_at(__sync_fetch_and_add(made, 1)) : 0;
	if (!failure)
		return 0;
	failure->carrier = carrier;
	failure->ns = now;
	failure->number = number;
	failure->host_id = host_id;
	__sync_fetch_and_add(&failure->made, 1); /* last: the tick begins when it sees this change */
	return 0;
}

#endif
