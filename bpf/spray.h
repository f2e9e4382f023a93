/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Chooses the EV of the next packet: the planes in turn, and in each plane its usable EVs in turn. A plane keeps its
 * share of the traffic while most of its usable EVs have full weight, and no longer queue than the others (balance.h).
 * So a failed EV is always replaced from its own plane.
 */
#ifndef MRC_SPRAY_H
#define MRC_SPRAY_H

#include "balance.h"

#define TRIES_MAX 4 /* EVs of a plane tried for a turn that another has skipped: few of full weight do not get all */

/* The EV that a packet takes. */
struct choice {
	__u32 packets; /* of this burst, on the wire */
	__u32 avoid; /* planes to leave out if another one can be used: a bit each */
	__u32 plane;
	__u32 slot; /* of the EV, in its plane */
};

/* Set the choice to an EV number. Returns 0 if it is NO_SLOT. */
static __always_inline int set_choice(__u32 number, struct choice *out)
{
	if (number == NO_SLOT)
		return 0;
	out->plane = number / settings.evs_per_plane;
	out->slot = number % settings.evs_per_plane;
	return 1;
}

/* Return the first usable slot of a plane at or after `from`, or NO_SLOT. */
__noinline __u32 usable_slot(const struct mrc_peer *peer, __u32 plane, __u32 from)
{
	if (!peer || plane >= settings.planes)
		return NO_SLOT;
	return next_slot(peer->usable, plane * settings.evs_per_plane, settings.evs_per_plane, from);
}

/* Return the number of a usable EV of any of the planes, or NO_SLOT; another one for each `cursor`. */
__noinline __u32 any_usable(const struct mrc_peer *peer, __u32 plane_mask, __u32 cursor)
{
	__u32 from = cursor / settings.planes % settings.evs_per_plane, plane, slot, i;

	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++) {
		plane = (cursor % settings.planes + i) % settings.planes;
		slot = plane_mask & (1u << plane) ? usable_slot(peer, plane, from) : NO_SLOT;
		if (slot != NO_SLOT)
			return plane * settings.evs_per_plane + slot;
	}
	return NO_SLOT;
}

/* The same as usable_slot(), but faster: `from` itself is nearly always usable. One bit tells that, without branches
 * that depend on the slot number. A CPU cannot predict those where each packet goes to another peer.
 */
static __always_inline __u32 slot_from(const struct mrc_peer *peer, __u32 plane, __u32 from)
{
	if (from >= settings.evs_per_plane)
		from = 0;
	return is_usable(peer, plane * settings.evs_per_plane + from) ? from : usable_slot(peer, plane, from);
}

/* Return 1 if a congested EV skips its turn: it does so once. */
static __always_inline int skips_once(struct mrc_ev *ev, __u32 index)
{
	const struct mrc_path_stats *stats;

	if (ev->state != MRC_EV_SKIP || is_slow(ev))
		return 0;
	stats = path_stats_at(index);
	return stats && !stats->lag_ns &&
	       __sync_val_compare_and_swap(&ev->state, MRC_EV_SKIP, MRC_EV_GOOD) == MRC_EV_SKIP;
}

/* Return a slot of a plane whose EV has full weight and does not skip its turn: the first of some, from `slot` on, with
 * growing steps, so that no single EV stands in for all of a row. Returns NO_SLOT if it is none of these.
 */
__noinline __u32 unskipped_slot(const struct mrc_peer *peer, __u32 host_id, __u32 plane, __u32 slot)
{
	struct mrc_ev *ev;
	__u32 index, i;

	for (i = 0; peer && i < TRIES_MAX; i++) {
		slot = usable_slot(peer, plane, (slot + i) % (peer->slots ?: 1));
		if (slot == NO_SLOT)
			break;
		index = ev_index(host_id, plane * settings.evs_per_plane + slot);
		ev = ev_at(index);
		if (ev && ev->weight >= MRC_WEIGHT_FULL && !skips_once(ev, index))
			return slot;
	}
	return NO_SLOT;
}

/* Find the first plane, in turn from `plane` on, that has a usable EV: at or after slots[plane], or after `slot` if
 * `slots` is NULL. Returns 0 if no plane has one.
 */
static __always_inline int next_usable(struct mrc_peer *peer, __u32 plane_mask, __u32 plane, const __u16 *slots,
				       __u32 slot, struct choice *out)
{
	__u32 i;

	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++) {
		plane &= less_mask(plane, settings.planes); /* the first plane follows the last */
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

/* Find the EV of the next packet, and prefetch its record: with many EVs it is rarely in a cache when its turn comes.
 * BPF has no prefetch instruction. A write to a byte that is never read does the same, because a CPU does not wait for
 * writes.
 */
static __noinline void prefetch_next_ev(struct mrc_peer *peer, struct mrc_rotation *rotation, __u32 host_id,
					__u32 plane_mask)
{
	struct choice next;
	struct mrc_ev *ev;

	if (!next_usable(peer, plane_mask, rotation->plane, rotation->slot, 0, &next))
		return;
	rotation->slot[next.plane & (MRC_MAX_PLANES - 1)] = next.slot; /* spares the next packet this search */
	ev = ev_at(ev_index(host_id, next.plane * settings.evs_per_plane + next.slot));
	if (ev)
		*(volatile __u8 *)&ev->reserved = 0;
}

/* Begin on a plane and EV that depend on both hosts. Otherwise alternating packets to many peers would all take the
 * same plane and T1; so would packets of many senders to one peer, and of hosts that all begin at once.
 */
static __noinline void begin_rotation(const struct mrc_peer *peer, struct mrc_rotation *rotation, __u32 host_id)
{
	__u32 first = pair_offset(settings.host_id, host_id, settings.planes * peer->slots), i;

	rotation->plane = first % settings.planes;
	for (i = 0; i < MRC_MAX_PLANES; i++)
		rotation->slot[i] = first / settings.planes;
}

/* Note packets on a plane that has a queue. */
static __noinline void note_sent(__u32 host_id, __u32 plane, __u32 packets, __u64 now)
{
	struct mrc_pace *pace = pace_at(host_id);

	if (!pace)
		return;
	pace->sent[plane & (MRC_MAX_PLANES - 1)] += packets; /* approximate: other CPUs add to it, too */
	pace->sent_ns[plane & (MRC_MAX_PLANES - 1)] = now;
}

/* Return the number of an EV that takes the turn of another, which skipped it: any of its plane that has full weight, or
 * else of another plane, so that a plane that returns as a whole has the share of its ramp. With none, the EV takes its
 * turn itself. The search begins anywhere, so that the EVs of full weight share such turns.
 */
static __noinline __u32 substitute(struct mrc_peer *peer, struct mrc_rotation *rotation, __u32 host_id,
				   __u32 plane_mask, __u32 number)
{
	__u32 plane = number / settings.evs_per_plane, turn = rotation->substitutes++, i, slot;
	__u32 from = scattered(turn) * peer->slots >> 16;

	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++) {
		slot = plane_mask & (1u << plane) ? unskipped_slot(peer, host_id, plane, from) : NO_SLOT;
		if (slot != NO_SLOT)
			return plane * settings.evs_per_plane + slot;
		plane += i ? 1 : 1 + turn % (settings.planes - 1 ?: 1); /* the other planes share such turns, too */
		plane %= settings.planes;
		plane &= MRC_MAX_PLANES - 1; /* for the verifier */
	}
	return number;
}

/* Choose the EV of the next packet, and advance the rotation. Returns 0 if there is none. */
static __always_inline int choose_ev(struct mrc_peer *peer, __u32 host_id, __u32 plane_mask, __u64 now,
				     struct mrc_rotation *rotation, struct choice *out)
{
	__u32 plane, number, index, all_planes = plane_mask;
	struct mrc_ev *ev;

	if (!rotation->plane)
		begin_rotation(peer, rotation, host_id);
	if (peer->queued)
		plane_mask = planes_in_pace(host_id, plane_mask & peer->usable_planes, out->packets);
	if (out->avoid && plane_mask & ~out->avoid & peer->usable_planes)
		plane_mask &= ~out->avoid;
	/* These planes may have lost their last usable EV since: other CPUs withdraw EVs meanwhile. */
	if (!next_usable(peer, plane_mask, rotation->plane, rotation->slot, 0, out) &&
	    !set_choice(any_usable(peer, all_planes, rotation->plane), out))
		return 0;
	plane = out->plane & (MRC_MAX_PLANES - 1);
	rotation->slot[plane] = out->slot + 1;
	rotation->plane = plane + 1;
	number = out->plane * settings.evs_per_plane + out->slot;
	index = ev_index(host_id, number);
	ev = ev_at(index);
	if (ev && (skips_once(ev, index) ||
		   (ev->weight < MRC_WEIGHT_FULL && !takes_turn(rotation->turns++, ev->weight))))
		set_choice(substitute(peer, rotation, host_id, plane_mask, number), out);
	if (peer->queued)
		note_sent(host_id, out->plane, out->packets, now);
	prefetch_next_ev(peer, rotation, host_id, plane_mask);
	return 1;
}

#endif
