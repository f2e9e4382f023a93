/* Planes that are not alike, where they are the limit. A packet takes, in turn, one of those planes on which it begins
 * to arrive before it would have arrived on the soonest: by what is under way on each, which the peer's reports tell,
 * and by how long that takes at the pace at which packets arrive there (J. Little, 1961). What a plane takes longer
 * when it is empty does not count. So a slow plane gets what it can carry, and the others the rest. Where nothing
 * waits, planes just take turns. But one that is further away than FAR_NS is left out: TCP's timers, made for the others'
 * round trips, would take what is on it for lost.
 */
#ifndef MRC_BALANCE_H
#define MRC_BALANCE_H

#include "probe.h"
#include "states.h"

#define PACE_NS 8000000 /* paces are taken over so much time */
#define IDLE_PACES 8 /* after so many times that without a report they are taken anew */
#define APART_NS 100000000
#define QUIET_NS 1000000000ULL /* from one pause of a plane to the next, at least */
#define FAR_NS 10000000 /* a plane whose way is longer than another's by more carries nothing while that one does */

/* What is under way to a peer, by plane. Index: host id. */
struct mrc_pace {
	__u32 apart_now_ns; /* by how much planes differed in delay, at most, in this APART_NS, */
	__u32 epoch; /* which is that */
	__u64 sent_ns[MRC_MAX_PLANES]; /* while queued: when the newest packet was put on each plane */
	__u64 quiet_ns[MRC_MAX_PLANES]; /* until when the plane was, or is, left alone, to see how late it is without us */
	__u64 paced_ns; /* the peer's clock when `paced` was taken */
	__u32 paced[MRC_MAX_PLANES]; /* of `arrived`, of all parts */
	/* Of each part of the EVs that a report tells of, by the newest; one plane's may be in both: */
	__u32 arrived[MRC_REPORT_PARTS][MRC_MAX_PLANES]; /* data packets, a count */
	__u32 under_way[MRC_REPORT_PARTS][MRC_MAX_PLANES]; /* data packets; */
	__u32 sent[MRC_MAX_PLANES]; /* while queued: those sent since, about */
	__u32 pace_ns[MRC_MAX_PLANES]; /* how long a packet takes, smoothed: 1/4 */
	__u32 newest_ns[MRC_MAX_PLANES]; /* how late the newest probe was */
	__u32 late_ns[MRC_MAX_PLANES]; /* as mrc_path_stats.late_ns, of the plane's EVs together; and */
	__u32 empty_ns[MRC_MAX_PLANES]; /* that of a plane on which nothing waits, as far as known */
};

MRC_ARRAY(mrc_paces, BPF_MAP_TYPE_ARRAY, 0, struct mrc_pace);

static __always_inline struct mrc_pace *pace_at(__u32 host_id)
{
	return bpf_map_lookup_elem(&mrc_paces, &host_id);
}

/* Those of the planes in `ports` whose way is longer than FAR_NS more than the shortest, as bits; never all. */
static __always_inline __u32 far_planes(const struct mrc_pace *p, __u32 plane_mask)
{
	__u64 least = ~0u, empty_ns, less; /* of 32 bits, so that differences have a sign */
	__u32 planes = 0, i;

	/* Without branches: the verifier would walk through all combinations of planes. */
	for (i = 0; i < MRC_MAX_PLANES; i++) {
		empty_ns = p->empty_ns[i] | ((plane_mask >> i & 1) - 1u); /* endless, if not in `ports` */
		less = empty_ns - least;
		least += less & -(less >> 63);
	}
	for (i = 0; i < MRC_MAX_PLANES; i++)
		planes |= (least + FAR_NS - p->empty_ns[i]) >> 63 << i;
	return planes & plane_mask;
}

/* Which of the planes in `ports`, that have usable EVs, keep pace, as bits; at least one. `packets` want to go. */
__noinline __u32 planes_in_pace(__u32 host_id, __u32 plane_mask, __u32 packets)
{
	struct mrc_pace *p = pace_at(host_id);
	__u64 wait_ns[MRC_MAX_PLANES], burst_ns[MRC_MAX_PLANES], now = bpf_ktime_get_ns();
	__u32 quiet = 0, slowest = 0, pace_ns, i, n;

	if (!p)
		return plane_mask;
	plane_mask &= (1u << settings.planes) - 1; /* which spares the verifier looking at planes that there are not */
	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++)
		quiet |= !aged(now, p->quiet_ns[i], 0) << i;
	plane_mask &= ~far_planes(p, plane_mask);
	plane_mask = plane_mask & ~quiet ?: plane_mask;
	for (i = 0; i < MRC_MAX_PLANES; i++)
		slowest = p->pace_ns[i] > slowest ? p->pace_ns[i] : slowest;
	for (i = 0; i < MRC_MAX_PLANES; i++) {
		pace_ns = p->pace_ns[i] ?: slowest; /* of a plane that is new nothing is known */
		n = p->under_way[0][i] + p->under_way[1][i] + p->sent[i];
		wait_ns[i] = (__u64)n * pace_ns;
		wait_ns[i] -= wait_ns[i] < p->empty_ns[i] ? wait_ns[i] : p->empty_ns[i];
		burst_ns[i] = (__u64)packets * pace_ns;
		if (!(plane_mask & (1u << i)))
			wait_ns[i] = NEVER_NS;
	}
	return in_pace(wait_ns, burst_ns);
}
_Static_assert(MRC_REPORT_PARTS == 2, "planes_in_pace, note_planes");

/* A report, made over there at `told_ns`, has told of the EVs from `first` on: note by plane what of theirs was under
 * way and what has arrived, as added up in the scratch.
 */
__noinline int note_planes(__u32 host_id, __u32 first, __u32 counts, __u64 told_ns)
{
	struct mrc_pace *p = pace_at(host_id);
	__u32 zero = 0, i, begin, arrived, half = first != 0;
	struct mrc_scratch *scratch = bpf_map_lookup_elem(&mrc_scratch, &zero);
	__u64 past;

	if (!p || !scratch)
		return 0;
	for (i = 0; i < MRC_MAX_PLANES; i++) {
		begin = i * settings.evs_per_plane;
		if (i >= settings.planes || begin >= first + counts || begin + settings.evs_per_plane <= first)
			continue;
		p->arrived[half][i] = scratch->arrived[i];
		p->under_way[half][i] = scratch->under_way[i];
		p->sent[i] = 0;
	}
	past = told_ns - p->paced_ns;
	if (past < PACE_NS)
		return 0;
	p->paced_ns = told_ns;
	for (i = 0; i < MRC_MAX_PLANES; i++) {
		arrived = p->arrived[0][i] + p->arrived[1][i];
		if (past < IDLE_PACES * PACE_NS) /* else there was a rest, or another clock */
			p->pace_ns[i] = smoothed_pace(p->pace_ns[i], arrived - p->paced[i], past);
		p->paced[i] = arrived;
	}
	return 0;
}

/* How late a probe on a plane was that was sent at `asked_ns`. Part of it may be the queue of what this host sends; so
 * now and then that is left to drain, for no longer than 1/32 of the time.
 */
__noinline int note_plane_late(__u32 host_id, __u32 plane, __u32 late, __u64 asked_ns)
{
	struct mrc_pace *p = pace_at(host_id);
	__u64 now = bpf_ktime_get_ns(), pause = 64 * (__u64)late;
	__u32 i, most = 0, least = ~0u, epoch = now / APART_NS, quiet = 0;
	struct mrc_peer *peer = peer_at(host_id);

	plane &= MRC_MAX_PLANES - 1;
	if (!p || !peer)
		return 0;
	p->late_ns[plane] += late / 4 - p->late_ns[plane] / 4;
	if (pause < QUIET_NS)
		pause = QUIET_NS;
	if (late < p->empty_ns[plane] || aged(asked_ns, p->sent_ns[plane], late))
		p->empty_ns[plane] = late;
	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++) {
		quiet |= !aged(now, p->quiet_ns[i], 0);
		if (!(peer->usable_planes & (1u << i)))
			continue; /* nothing comes by it */
		most = p->late_ns[i] > most ? p->late_ns[i] : most;
		least = p->late_ns[i] < least ? p->late_ns[i] : least;
	}
	/* One at a time: all at once would be none, and all but one a burden for that one. */
	if (!quiet && late > p->empty_ns[plane] + WAITING_NS && aged(now, p->quiet_ns[plane], pause))
		p->quiet_ns[plane] = now + 2 * (__u64)late;
	if (peer->queued != (most > WAITING_NS)) /* a line that all packets read */
		peer->queued = most > WAITING_NS;
	/* Two in a row: one may have been held up by the host. */
	most = late < p->newest_ns[plane] ? late : p->newest_ns[plane];
	p->newest_ns[plane] = late;
	most = most > least ? most - least : 0;
	if (!(peer->usable_planes & (1u << plane)) || (p->empty_ns[plane] > least && p->empty_ns[plane] - least > FAR_NS))
		most = 0; /* nothing comes by it */
	if (p->epoch != epoch) {
		peer->apart_ns = p->apart_now_ns;
		p->apart_now_ns = 0;
		p->epoch = epoch;
	}
	if (most > p->apart_now_ns)
		p->apart_now_ns = most;
	if (most > peer->apart_ns)
		peer->apart_ns = most;
	return 0;
}

#endif
