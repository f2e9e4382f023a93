/* What no packet tells: that a flow has stopped.
 *
 * The last acknowledgement of a burst may have been lost on a path that died in that moment. Then both ends are
 * silent until TCP's timers run out, and its first try may take a dead path again, for nothing was sent in between
 * that would have told of it. So a timer per peer, set anew with every report that dense traffic asks for, goes
 * off when that ends. Programs that a timer runs cannot send: the next beats ask instead (timer_packet.h), or the daemon,
 * where nothing paces them.
 */
#ifndef MRC_IDLE_TIMEOUT_H
#define MRC_IDLE_TIMEOUT_H

#include "arith.h"
#include "maps.h"

/* After even traffic would have asked again, but before TCP's first try: Linux looks for reordered packets that are lost
 * (RFC 8985 §6.2) a timer tick after an acknowledgement, 4 ms with 250 per second, and sends the tail loss probe (§7)
 * two round trips and two ticks after the last packet. The daemon need not be woken for the first of these.
 */
#define DAEMON_TIMEOUT_NS 4000000ULL
#define TIMEOUT_SLACK_NS 1000000ULL
#define EVENT_BACKLOG_MAX 4096 /* bytes */
#define CLOCK_MONOTONIC 1

#define TIMER_LOST_NS 20000000ULL /* a beat that does not come for so long has ended */
#define IDLE_SWEEPS 3 /* where a flow has stopped */

static __always_inline struct mrc_timer *timer_packet(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&mrc_timers, &zero);
}

/* Whether something goes round that will ask. */
static __always_inline int is_timer_running(__u64 now)
{
	struct mrc_timer *timer = timer_packet();

	return timer && !aged(now, timer->ns, TIMER_LOST_NS);
}

static int on_idle_timeout(void *map, __u32 *host_id, struct mrc_idle_timer *idle_timer)
{
	struct mrc_idle_peer idle = { .due_ns = bpf_ktime_get_ns(), .host_id = *host_id, .left = IDLE_SWEEPS };
	struct mrc_watch *watch;
	struct mrc_event *event;

	(void)map;
	(void)idle_timer;
	if (is_timer_running(idle.due_ns) && !bpf_map_push_elem(&mrc_idle_peers, &idle, 0))
		return 0;
	watch = watch_at(*host_id);
	if (watch) {
		watch->timed_out = 1;
		watch->due_ns = 0;
	}
	/* Nobody listens: leave the room to what is to be told later. */
	if (bpf_ringbuf_query(&mrc_events, BPF_RB_AVAIL_DATA) > EVENT_BACKLOG_MAX)
		return 0;
	event = bpf_ringbuf_reserve(&mrc_events, sizeof(*event), 0);
	if (!event)
		return 0;
	__builtin_memset(event, 0, sizeof(*event));
	event->ns = idle.due_ns;
	event->host_id = *host_id;
	event->ev = MRC_EVENT_IDLE_TIMEOUT;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

static __always_inline void set_idle_timer(__u32 host_id, __u64 now)
{
	struct mrc_idle_timer *idle_timer = bpf_map_lookup_elem(&mrc_idle_timers, &host_id);
	__u64 wait = settings.probe_late_us * NS_PER_US;

	if (wait < 2 * settings.probe_gap_us * NS_PER_US)
		wait = 2 * settings.probe_gap_us * NS_PER_US;
	wait += TIMEOUT_SLACK_NS;
	if (wait < DAEMON_TIMEOUT_NS && !is_timer_running(now))
		wait = DAEMON_TIMEOUT_NS;
	if (!idle_timer)
		return;
	bpf_timer_init(&idle_timer->timer, &mrc_idle_timers, CLOCK_MONOTONIC); /* refused but for the first time */
	bpf_timer_set_callback(&idle_timer->timer, on_idle_timeout);
	bpf_timer_start(&idle_timer->timer, wait, 0);
}

#endif
