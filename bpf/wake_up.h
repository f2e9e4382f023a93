/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Wakes the daemon when a program finds work for the tick.
 *
 * Ticks are 20 ms apart at most, but up to 250 ms in calm weather (tick.h). What cannot wait so long then ends it.
 */
#ifndef MRC_WAKE_UP_H
#define MRC_WAKE_UP_H

#include "arith.h"
#include "maps.h"

#define ACTIVE_NS 3000000000ULL /* longer than any back-off: within it, some EV is or was out of use, or traffic flowed */
#define EVENT_BACKLOG_MAX 4096 /* bytes of unread events */

/* Tell the daemon that the tick has work. If nobody reads the events, keep the room for state transitions. */
static __always_inline void send_wake_up(__u32 host_id, __u64 now)
{
	struct mrc_event *event;

	if (bpf_ringbuf_query(&mrc_events, BPF_RB_AVAIL_DATA) > EVENT_BACKLOG_MAX)
		return;
	event = bpf_ringbuf_reserve(&mrc_events, sizeof(*event), 0);
	if (!event)
		return;
	__builtin_memset(event, 0, sizeof(*event));
	event->ns = now;
	event->host_id = host_id;
	event->ev = MRC_EVENT_IDLE_TIMEOUT;
	bpf_ringbuf_submit(event, 0);
}

/* End calm weather, in which ticks are rare (tick.h). A global function: its stack is its own. */
__noinline int end_calm(__u32 host_id)
{
	struct mrc_clock *clock = tick_clock();
	__u64 now = now_ns();

	if (!clock || !aged(now, clock->active_ns, ACTIVE_NS))
		return 0;
	clock->active_ns = now;
	send_wake_up(host_id, now);
	return 1;
}

#endif
