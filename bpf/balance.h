/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Balances planes of unequal rate or delay, where they are the bottleneck.
 *
 * A burst takes, in turn, one of the planes on which it will have arrived before the next could on the quickest.
 * The time of arrival follows from two figures of each plane: its packets in flight, from the peer's reports, and its
 * time per packet (J. Little, 1961). Only queueing delay counts; base delay is subtracted. So a slow plane
 * carries what it can, and the others carry the rest. Without queues, the planes take turns. A plane whose base delay
 * exceeds another's by more than BASE_DELAY_SPREAD_NS carries nothing: TCP's timers follow the round trips of the other
 * planes, so TCP would take its packets for lost.
 */
#ifndef MRC_BALANCE_H
#define MRC_BALANCE_H

#include "maps.h"
#include "probe.h"
#include "states.h"

#define PACE_PERIOD_NS 8000000 /* the rate of each plane is measured over so much time */
#define PACE_PERIODS_MAX 8 /* periods: after so many without a report the measurement begins anew */
/* The skew is the maximum of this period and the one before, so old skew is forgotten. */
#define SKEW_PERIOD_NS 100000000
#define FADE_PERIODS_MAX 1024 /* periods without reports that count when a slow plane is forgotten */
#define MARKING_DIFFERENCE 16 /* CE marks per 256 packets: with less difference all planes take turns */
#define PAUSE_INTERVAL_NS 1000000000ULL /* least time between two pauses of a plane: they cost throughput */
#define BASE_DELAY_SPREAD_NS 10000000 /* beyond this excess of base delay a plane carries nothing: see above */

static __always_inline struct mrc_pace *pace_at(__u32 host_id)
{
	return bpf_map_lookup_elem(&mrc_paces, &host_id);
}

/* Return the planes of `plane_mask`, as bits, whose base delay exceeds the shortest by more than BASE_DELAY_SPREAD_NS;
 * never all. There are `count` planes.
 */
static __always_inline __u32 distant_planes(const struct mrc_pace *p, __u32 count, __u32 plane_mask)
{
	__u64 least_ns = ~0u, base_delay_ns; /* 32-bit values in 64 bits, so that differences have a sign */
	__u32 planes = 0, i;

	/* Without branches: the verifier would walk through all combinations of planes. */
	for (i = 0; i < MRC_MAX_PLANES && i < count; i++) {
		/* Infinite, if not in `plane_mask`. */
		base_delay_ns = p->base_delay_ns[i] | ((plane_mask >> i & 1) - 1u);
		least_ns = lesser(base_delay_ns, least_ns);
	}
	for (i = 0; i < MRC_MAX_PLANES && i < count; i++)
		planes |= (least_ns + BASE_DELAY_SPREAD_NS - p->base_delay_ns[i]) >> 63 << i;
	return planes & plane_mask;
}

/* Return the planes of `plane_mask`, as bits, that may carry the next `packets`; at least one. All of them have usable
 * EVs.
 */
__noinline __u32 planes_in_pace(__u32 host_id, __u32 plane_mask, __u32 packets)
{
	const struct mrc_peer *peer = peer_at(host_id);
	struct mrc_pace *p = pace_at(host_id);
	__u64 end_ns[MRC_MAX_PLANES], now = now_ns(), wait_ns, burst_ns, least_burst_ns = NEVER_NS;
	__u64 slowest = 0, quickest = ~0u, pace_ns;
	__u32 paused = 0, planes = settings.planes, i, n;

	if (!p || !peer)
		return plane_mask;
	for (i = 0; i < MRC_MAX_PLANES && i < planes; i++)
		paused |= !aged(now, p->paused_until_ns[i], 0) << i;
	plane_mask &= ~distant_planes(p, planes, plane_mask);
	/* A pause must not send all to planes that are too slow. */
	plane_mask = plane_mask & ~paused & ~peer->slow_planes ? plane_mask & ~paused : plane_mask;
	for (i = 0; i < MRC_MAX_PLANES && i < planes; i++) {
		slowest += p->pace_ns[i] - lesser(slowest, p->pace_ns[i]);
		quickest = lesser((__u32)(p->pace_ns[i] - 1), quickest); /* a plane without a measured rate is none */
	}
	for (i = 0; i < MRC_MAX_PLANES && i < planes; i++) {
		pace_ns = p->pace_ns[i];
		pace_ns |= slowest & less_mask(pace_ns, 1); /* a new plane has no measured rate yet */
		n = p->in_flight[0][i] + p->in_flight[1][i] + p->sent[i];
		wait_ns = n * pace_ns;
		wait_ns -= lesser(wait_ns, p->base_delay_ns[i]);
		burst_ns = packets * (quickest + 1 + p->slow_ns[i] - lesser(quickest + 1, p->slow_ns[i]));
		least_burst_ns = lesser(burst_ns | (__u64)(~plane_mask >> i & 1) << 62, least_burst_ns);
		end_ns[i] = wait_ns + burst_ns;
	}
	return unmarked_planes(p->marking, p->turns++, planes, in_pace(end_ns, least_burst_ns, planes, plane_mask));
}
_Static_assert(MRC_REPORT_PARTS == 2, "planes_in_pace, note_planes");

/* Update the pace and the marking of a plane by the packets that arrived in the last `past` ns. `quickest_ns`: the least
 * time per packet of all planes. `has_queue`: the plane had a queue all the time. A global function: the verifier walks
 * through it once, and not for each plane.
 */
__noinline int note_plane(__u32 host_id, __u32 plane, __u64 past, __u64 quickest_ns, __u32 has_queue)
{
	struct mrc_pace *p = pace_at(host_id);
	__u64 periods = past / PACE_PERIOD_NS;
	__u32 i = plane, arrived;

	if (!p)
		return 0;
	OPAQUE(i); /* the compiler knows the callers, and would leave the mask out */
	i &= MRC_MAX_PLANES - 1;
	arrived = p->arrived[0][i] + p->arrived[1][i];
	/* Otherwise there was a pause, or the peer's clock changed. */
	if (past < PACE_PERIODS_MAX * PACE_PERIOD_NS)
		p->pace_ns[i] = smoothed_pace(p->pace_ns[i], arrived - p->paced[i], past);
	p->slow_ns[i] = next_slow_ns(p->slow_ns[i], p->pace_ns[i], has_queue, quickest_ns, lesser(periods, FADE_PERIODS_MAX));
	p->marking[i] = smoothed_marking(p->marking[i], p->marked[i], arrived - p->paced[i]);
	p->marked[i] = 0;
	p->paced[i] = arrived;
	return 0;
}

/* Copy the counts of a plane from the scratch, if a report of `counts` EVs from `first` on covers the plane. A global
 * function, as note_plane().
 */
__noinline int take_counts(__u32 host_id, __u32 plane, __u32 first, __u32 counts)
{
	struct mrc_pace *p = pace_at(host_id);
	__u32 zero = 0, part = first != 0, i = plane, begin;
	struct mrc_scratch *scratch = bpf_map_lookup_elem(&mrc_scratch, &zero);

	OPAQUE(i);
	i &= MRC_MAX_PLANES - 1;
	begin = i * settings.evs_per_plane;
	if (!p || !scratch || begin >= first + counts || begin + settings.evs_per_plane <= first)
		return 0;
	p->arrived[part][i] = scratch->arrived[i];
	p->in_flight[part][i] = scratch->in_flight[i];
	p->sent[i] = 0;
	p->marked[i] += scratch->marked[i];
	return 0;
}

/* Note, by plane, the packets in flight and arrived, as summed up in the scratch. The report tells of `counts` EVs from
 * `first` on; the peer made it at `report_tx_ns` of its clock.
 */
__noinline int note_planes(__u32 host_id, __u32 first, __u32 counts, __u64 report_tx_ns)
{
	struct mrc_pace *p = pace_at(host_id);
	__u64 past, left_ns, quickest = NEVER_NS;
	__u32 i, queues = 0;

	if (!p)
		return 0;
	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++)
		take_counts(host_id, i, first, counts);
	past = report_tx_ns - p->paced_ns;
	if (past < PACE_PERIOD_NS)
		return 0;
	p->paced_ns = report_tx_ns;
	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++) {
		left_ns = (__u64)p->base_delay_ns[i] + QUEUE_DELAY_NS - p->newest_delay_ns[i];
		OPAQUE(left_ns); /* a branch would double what Linux 6.1 verifies, for each plane */
		queues |= left_ns >> 63 << i;
		/* A plane without a measured rate is not the quickest. */
		quickest = lesser((__u64)p->pace_ns[i] | less_mask(p->pace_ns[i], 1) >> 63 << 61, quickest);
	}
	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++)
		note_plane(host_id, i, past, quickest, queues & p->queues & 1u << i);
	p->queues = queues;
	return 0;
}

/* Note whether the planes of a peer are unequal, so that each packet must choose among them, and which are slow.
 * `most_ns`: the longest extra delay of a plane. Without branches: the verifier would walk through all combinations.
 */
static __always_inline void note_unequal_planes(struct mrc_peer *peer, const struct mrc_pace *p, __u32 most_ns)
{
	__u64 slowest = 0, quickest = NEVER_NS, most_marked = 0, least_marked = NEVER_NS, unused;
	__u32 usable_planes = peer->usable_planes, slow = 0, slow_ns, i;
	__u8 queued;

	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++) {
		unused = ~usable_planes >> i & 1;
		/* A plane without a measured rate is not the quickest. */
		quickest = lesser((__u64)p->pace_ns[i] | (unused | (less_mask(p->pace_ns[i], 1) & 1)) << 61, quickest);
		most_marked += p->marking[i] - lesser(most_marked, p->marking[i]);
		least_marked = lesser(p->marking[i] | unused << 61, least_marked);
	}
	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++)
		slow |= (2 * quickest - p->slow_ns[i]) >> 63 << i;
	slow &= usable_planes;
	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++) {
		slow_ns = p->slow_ns[i] & -(slow >> i & 1);
		slowest += slow_ns - lesser(slowest, slow_ns);
	}
	if (peer->slow_planes != slow) /* conditional, because every packet reads these cache lines */
		peer->slow_planes = slow;
	if (peer->slow_ns != slowest)
		peer->slow_ns = slowest;
	/* A plane that is too slow to be used has no queue, and gets one with the first burst. */
	queued = most_ns > QUEUE_DELAY_NS || slow || (__s64)(most_marked - least_marked) > MARKING_DIFFERENCE;
	if (peer->queued != queued)
		peer->queued = queued;
}

/* Note the extra delay of a probe that was sent on a plane at `requested_ns`. Part of it can be the queue of this
 * host's own packets. So the plane is paused now and then until its queue is empty, for at most 1/32 of the time.
 */
__noinline int note_plane_delay(__u32 host_id, __u32 plane, __u32 delay_ns, __u64 requested_ns)
{
	struct mrc_pace *p = pace_at(host_id);
	__u64 now = now_ns(), interval = 64 * (__u64)delay_ns;
	__u32 i, most_ns = 0, least_ns = ~0u, epoch = now / SKEW_PERIOD_NS, paused = 0;
	struct mrc_peer *peer = peer_at(host_id);

	plane &= MRC_MAX_PLANES - 1;
	if (!p || !peer)
		return 0;
	p->extra_delay_ns[plane] += delay_ns / 4 - p->extra_delay_ns[plane] / 4;
	if (interval < PAUSE_INTERVAL_NS)
		interval = PAUSE_INTERVAL_NS;
	if (delay_ns < p->base_delay_ns[plane] || aged(requested_ns, p->sent_ns[plane], delay_ns))
		p->base_delay_ns[plane] = delay_ns;
	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++) {
		paused |= !aged(now, p->paused_until_ns[i], 0);
		if (!(peer->usable_planes & (1u << i)))
			continue; /* the plane carries nothing */
		most_ns = p->extra_delay_ns[i] > most_ns ? p->extra_delay_ns[i] : most_ns;
		least_ns = p->extra_delay_ns[i] < least_ns ? p->extra_delay_ns[i] : least_ns;
	}
	/* One plane at a time: a pause of all would leave none, and a pause of all but one would overload that one. */
	if (!paused && delay_ns > p->base_delay_ns[plane] + QUEUE_DELAY_NS &&
	    aged(now, p->paused_until_ns[plane], interval))
		p->paused_until_ns[plane] = now + 2 * (__u64)delay_ns;
	note_unequal_planes(peer, p, most_ns);
	/* The lower of two in a row: the host may have delayed one. */
	most_ns = delay_ns < p->newest_delay_ns[plane] ? delay_ns : p->newest_delay_ns[plane];
	p->newest_delay_ns[plane] = delay_ns;
	most_ns = most_ns > least_ns ? most_ns - least_ns : 0;
	if (!(peer->usable_planes & (1u << plane)) ||
	    (p->base_delay_ns[plane] > least_ns && p->base_delay_ns[plane] - least_ns > BASE_DELAY_SPREAD_NS))
		most_ns = 0; /* the plane carries nothing */
	if (p->epoch != epoch) {
		peer->plane_skew_ns = p->plane_skew_now_ns;
		p->plane_skew_now_ns = 0;
		p->epoch = epoch;
	}
	if (most_ns > p->plane_skew_now_ns)
		p->plane_skew_now_ns = most_ns;
	if (most_ns > peer->plane_skew_ns)
		peer->plane_skew_ns = most_ns;
	return 0;
}

#endif
