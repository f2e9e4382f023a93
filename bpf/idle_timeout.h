/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Notices that a flow has stopped, by a timer per peer.
 *
 * The last ACK of a burst can be lost on a path that fails in that moment. Then neither end sends a packet until TCP's
 * timers expire. Their first retransmission can take the failed path again, because nothing was sent meanwhile that
 * could have shown the failure. So each report that dense traffic requests restarts a timer of the peer, and the timer
 * expires when that traffic ends. A timer callback cannot send packets: the timer packet sends the probes instead
 * (timer_packet.h), or the daemon, where no timer packet circulates.
 */
#ifndef MRC_IDLE_TIMEOUT_H
#define MRC_IDLE_TIMEOUT_H

#include "arith.h"
#include "maps.h"
#include "wake_up.h"

/* The timeout comes after steady traffic would have requested the next report, but before TCP's first reaction. Linux
 * starts to look for lost reordered packets (RFC 8985 §6.2) one jiffy after an ACK, 4 ms at HZ=250. It sends the tail
 * loss probe (§7) two round trips and two jiffies after the last packet. The daemon need not be woken for the first of
 * these, so its timeout is longer.
 */
#define DAEMON_TIMEOUT_NS 4000000ULL
#define TIMEOUT_SLACK_NS 1000000ULL /* added to the time in which steady traffic would request a report */
#define CLOCK_MONOTONIC 1 /* clockid_t */

#define TIMER_LOST_NS 20000000ULL /* the timer packet is lost if it does not pass for so long */
#define IDLE_SWEEPS 3 /* of a peer after an idle timeout */

static __always_inline struct mrc_timer *timer_packet(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&mrc_timers, &zero);
}

/* Return 1 if the timer packet circulates. */
static __always_inline int is_timer_running(__u64 now)
{
	struct mrc_timer *timer = timer_packet();

	return timer && !aged(now, timer->ns, TIMER_LOST_NS);
}

/* Handle an idle timeout: queue the peer for the timer packet, or else have the daemon's tick sweep it. */
static int on_idle_timeout(void *map, __u32 *host_id, struct mrc_idle_timer *idle_timer)
{
	struct mrc_idle_peer idle = { .due_ns = now_ns(), .host_id = *host_id, .left = IDLE_SWEEPS };
	struct mrc_watch *watch;

	(void)map;
	(void)idle_timer;
	if (is_timer_running(idle.due_ns) && !bpf_map_push_elem(&mrc_idle_peers, &idle, 0))
		return 0;
	watch = watch_at(*host_id);
	if (watch) {
		watch->timed_out = 1;
		watch->due_ns = 0;
	}
	send_wake_up(*host_id, idle.due_ns);
	return 0;
}

/* Restart the idle timer of a peer. */
static __always_inline void set_idle_timer(__u32 host_id, __u64 now)
{
	struct mrc_idle_timer *idle_timer = bpf_map_lookup_elem(&mrc_idle_timers, &host_id);
	__u64 wait = health.probe_late_us * NS_PER_US;

	if (wait < 2 * health.probe_gap_us * NS_PER_US)
		wait = 2 * health.probe_gap_us * NS_PER_US;
	wait += TIMEOUT_SLACK_NS;
	if (wait < DAEMON_TIMEOUT_NS && !is_timer_running(now))
		wait = DAEMON_TIMEOUT_NS;
	if (!idle_timer)
		return;
	bpf_timer_init(&idle_timer->timer, &mrc_idle_timers, CLOCK_MONOTONIC); /* fails on all calls but the first */
	bpf_timer_set_callback(&idle_timer->timer, on_idle_timeout);
	bpf_timer_start(&idle_timer->timer, wait, 0);
}

#endif
