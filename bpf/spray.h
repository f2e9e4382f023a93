/* Which EV the next packet takes: the planes in turn, and in each plane its usable EVs in turn. A
 * plane keeps its share of the traffic as long as it has one usable EV, and no longer queue than the others
 * (balance.h), so the replacement of a failed EV always comes from the same plane.
 */
#ifndef MRC_SPRAY_H
#define MRC_SPRAY_H

#include "balance.h"

#define SKIPS_MAX 4 /* EVs of a plane that may pass before one is taken all the same */

struct choice {
	__u32 packets; /* that want to go, on the wire */
	__u32 plane;
	__u32 slot;
};

static __always_inline int set_choice(__u32 number, struct choice *out)
{
	if (number == NO_SLOT)
		return 0;
	out->plane = number / settings.evs_per_plane;
	out->slot = number % settings.evs_per_plane;
	return 1;
}

/* The first usable slot of a plane at or after `from`, or NO_SLOT. */
__noinline __u32 usable_slot(const struct mrc_peer *peer, __u32 plane, __u32 from)
{
	if (!peer || plane >= settings.planes)
		return NO_SLOT;
	return next_slot(peer->usable, plane * settings.evs_per_plane, settings.evs_per_plane, from);
}

/* The number of a usable EV of any of the planes, or NO_SLOT. */
__noinline __u32 any_usable(const struct mrc_peer *peer, __u32 plane_mask)
{
	__u32 plane, slot;

	for (plane = 0; plane < MRC_MAX_PLANES && plane < settings.planes; plane++) {
		slot = plane_mask & (1u << plane) ? usable_slot(peer, plane, 0) : NO_SLOT;
		if (slot != NO_SLOT)
			return plane * settings.evs_per_plane + slot;
	}
	return NO_SLOT;
}

/* As usable_slot. Nearly always `from` itself is usable: one bit tells, without branches that go by its number, which a
 * CPU cannot guess where each packet is another peer's.
 */
static __always_inline __u32 slot_from(const struct mrc_peer *peer, __u32 plane, __u32 from)
{
	if (from >= settings.evs_per_plane)
		from = 0;
	return is_usable(peer, plane * settings.evs_per_plane + from) ? from : usable_slot(peer, plane, from);
}

/* Whether an EV lets its turn pass: a congested one does once, a returning one most times at first. */
static __always_inline int skips_turn(struct mrc_ev *ev, __u32 index, struct mrc_rotation *rotation)
{
	if (ev->state == MRC_EV_SKIP) {
		const struct mrc_path_stats *stats = path_stats_at(index);

		if (stats && !stats->lag_ns)
			return __sync_val_compare_and_swap(&ev->state, MRC_EV_SKIP, MRC_EV_GOOD) == MRC_EV_SKIP;
	}
	return ev->weight < MRC_WEIGHT_FULL && rotation->turns++ % MRC_WEIGHT_FULL >= ev->weight;
}

/* The next EV of this plane that does not let its turn pass, after one that did. */
static __noinline __u32 next_unskipped_slot(struct mrc_peer *peer, struct mrc_rotation *rotation,
				     __u32 host_id, __u32 plane, __u32 slot)
{
	struct mrc_ev *ev;
	__u32 index, next, i;

	for (i = 1; i < SKIPS_MAX; i++) {
		next = usable_slot(peer, plane, slot + 1);
		if (next == NO_SLOT) /* another CPU has just withdrawn the last */
			break;
		slot = next;
		index = ev_index(host_id, plane * settings.evs_per_plane + slot);
		ev = ev_at(index);
		if (!ev || !skips_turn(ev, index, rotation))
			break;
	}
	return slot;
}

/* The first of the planes, in turn from `plane` on, that has a usable EV: that at or after slots[plane], or
 * `slot` if there are no slots. Returns 0 if none has.
 */
static __always_inline int next_usable(struct mrc_peer *peer, __u32 plane_mask, __u32 plane, const __u16 *slots,
				       __u32 slot, struct choice *out)
{
	__u32 i;

	for (i = 0; i < MRC_MAX_PLANES; i++) {
		if (plane >= settings.planes)
			plane = 0;
		plane &= MRC_MAX_PLANES - 1; /* for the verifier */
		out->plane = plane;
		out->slot = NO_SLOT;
		if (plane_mask & (1u << plane))
			out->slot = slots ? slot_from(peer, plane, slots[plane]) : usable_slot(peer, plane, slot);
		if (out->slot != NO_SLOT)
			return 1;
		plane++;
	}
	return 0;
}

/* Find the EV of the next packet, and have it fetched from memory meanwhile: of many EVs hardly one is in a cache when
 * its turn comes. A CPU waits for what it reads sooner than for what it writes, so this writes, where nobody reads.
 */
static __noinline void prefetch_next_ev(struct mrc_peer *peer, struct mrc_rotation *rotation, __u32 host_id, __u32 plane_mask)
{
	struct choice next;
	struct mrc_ev *ev;

	if (!next_usable(peer, plane_mask, rotation->plane, rotation->slot, 0, &next))
		return;
	rotation->slot[next.plane & (MRC_MAX_PLANES - 1)] = next.slot; /* so far it need not be looked for again */
	ev = ev_at(ev_index(host_id, next.plane * settings.evs_per_plane + next.slot));
	if (ev)
		*(volatile __u8 *)&ev->reserved = 0;
}

/* Peers begin on different planes and EVs: else packets to many peers by turns would all take one plane, then all the
 * next, and one T1 of it. So do senders to the same peer.
 */
static __noinline void begin_rotation(const struct mrc_peer *peer, struct mrc_rotation *rotation, __u32 host_id)
{
	__u32 first = host_id + settings.host_id, i;

	rotation->plane = first % settings.planes;
	for (i = 0; i < MRC_MAX_PLANES; i++)
		rotation->slot[i] = first / settings.planes % (peer->slots ?: 1);
}

static __noinline void note_sent(__u32 host_id, __u32 plane, __u32 packets, __u64 now)
{
	struct mrc_pace *pace = pace_at(host_id);

	if (!pace)
		return;
	pace->sent[plane & (MRC_MAX_PLANES - 1)] += packets; /* about: other CPUs add to it too */
	pace->sent_ns[plane & (MRC_MAX_PLANES - 1)] = now;
}

static __always_inline int choose_ev(struct mrc_peer *peer, __u32 host_id, __u32 plane_mask, __u64 now,
				     struct mrc_rotation *rotation, struct choice *out)
{
	__u32 plane, index, all_planes = plane_mask;
	struct mrc_ev *ev;

	if (!rotation->plane)
		begin_rotation(peer, rotation, host_id);
	if (peer->queued)
		plane_mask = planes_in_pace(host_id, plane_mask & peer->usable_planes, out->packets);
	/* The planes in pace may have lost their last EV since: another CPU withdraws EVs meanwhile. */
	if (!next_usable(peer, plane_mask, rotation->plane, rotation->slot, 0, out) && !set_choice(any_usable(peer, all_planes), out))
		return 0;
	plane = out->plane & (MRC_MAX_PLANES - 1);
	index = ev_index(host_id, plane * settings.evs_per_plane + out->slot);
	ev = ev_at(index);
	if (ev && skips_turn(ev, index, rotation))
		out->slot = next_unskipped_slot(peer, rotation, host_id, plane, out->slot);
	if (peer->queued)
		note_sent(host_id, plane, out->packets, now);
	rotation->slot[plane] = out->slot + 1;
	rotation->plane = plane + 1;
	prefetch_next_ev(peer, rotation, host_id, plane_mask);
	return 1;
}

#endif
