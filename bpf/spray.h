/* Which EV the next packet takes: the planes in turn, and in each plane its usable EVs in turn. A
 * plane keeps its share of the traffic as long as it has one usable EV, and no longer queue than the others
 * (balance.h), so the replacement of a failed EV always comes from the same plane.
 */
#ifndef MRC_SPRAY_H
#define MRC_SPRAY_H

#include "balance.h"

#define TRIES 4 /* EVs of a plane that may pass before one is taken all the same */
#define AHEAD 4 /* EVs of each plane that are fetched from memory at once: a power of two */

struct choice {
	__u32 packets; /* that want to go, on the wire */
	__u32 plane;
	__u32 slot;
};

/* The first usable slot of a plane at or after `from`, or NO_SLOT. */
__noinline __u32 usable_slot(struct mrc_peer *peer, __u32 plane, __u32 from)
{
	if (!peer)
		return NO_SLOT;
	return next_slot(peer->usable[plane & (MRC_MAX_PLANES - 1)], settings.evs_per_plane, from);
}

/* Whether an EV lets its turn pass: a congested one does once, a returning one most times at first. */
static __always_inline int passes(struct mrc_ev *ev, __u32 index, struct mrc_rotation *turn)
{
	if (ev->state == MRC_EV_SKIP) {
		const struct mrc_ledger *ledger = ledger_at(index);

		if (ledger && !ledger->lag_ns)
			return __sync_val_compare_and_swap(&ev->state, MRC_EV_SKIP, MRC_EV_GOOD) == MRC_EV_SKIP;
	}
	return ev->weight < MRC_WEIGHT_FULL && turn->turns++ % MRC_WEIGHT_FULL >= ev->weight;
}

/* The next EV of this plane that does not let its turn pass, after one that did. */
static __noinline __u32 next_willing(struct mrc_peer *peer, struct mrc_rotation *turn,
				     __u32 host_id, __u32 plane, __u32 slot)
{
	struct mrc_ev *ev;
	__u32 index, i;

	for (i = 1; i < TRIES; i++) {
		slot = usable_slot(peer, plane, slot + 1);
		if (slot == NO_SLOT)
			break;
		index = ev_index(host_id, plane * settings.evs_per_plane + slot);
		ev = ev_at(index);
		if (!ev || !passes(ev, index, turn))
			break;
	}
	return slot;
}

/* The first of the planes, in turn from `plane` on, that has a usable EV: that at or after slots[plane], or
 * `slot` if there are no slots. Returns 0 if none has.
 */
static __always_inline int next_usable(struct mrc_peer *peer, __u32 ports, __u32 plane, const __u16 *slots,
				       __u32 slot, struct choice *out)
{
	__u32 i;

	for (i = 0; i < MRC_MAX_PLANES; i++) {
		if (plane >= settings.planes)
			plane = 0;
		plane &= MRC_MAX_PLANES - 1; /* for the verifier */
		out->plane = plane;
		out->slot = NO_SLOT;
		if (ports & (1u << plane))
			out->slot = usable_slot(peer, plane, slots ? slots[plane] : slot);
		if (out->slot != NO_SLOT)
			return 1;
		plane++;
	}
	return 0;
}

/* Read what the next turns will need, of all planes: of many EVs hardly one is in a cache, and a CPU waits for all of
 * these hardly longer than for one, for nothing depends on what is read.
 */
static __noinline void fetch_ahead(const struct mrc_peer *peer, const struct mrc_rotation *turn, __u32 host_id,
				   __u32 ports)
{
	__u32 first = ev_index(host_id, 0), plane, slot, i;
	const __u32 planes = settings.planes;
	const struct mrc_ev *ev;

	for (plane = 0; plane < MRC_MAX_PLANES && plane < planes; plane++) {
		slot = turn->slot[plane];
		for (i = 0; i < AHEAD && ports & (1u << plane); i++) {
			if (slot >= peer->slots)
				slot = 0; /* round after the last */
			ev = ev_at(first + slot++);
			if (ev)
				(void)*(volatile __u32 *)&ev->state;
		}
		first += settings.evs_per_plane;
	}
}

/* Whether this EV is the first of AHEAD, or the first to be used of them, in the plane whose turn is the first. */
static __always_inline int begins_anew(const struct mrc_rotation *turn, __u32 plane, __u32 slot)
{
	return plane < turn->plane && (slot ^ (turn->slot[plane] - 1u)) >= AHEAD;
}

static __always_inline int choose_ev(struct mrc_peer *peer, __u32 host_id, __u32 ports, __u64 now,
				     struct mrc_rotation *turn, struct choice *out)
{
	struct mrc_pace *pace = pace_at(host_id);
	__u32 plane, index;
	struct mrc_ev *ev;

	if (pace && pace->queued)
		ports = planes_in_pace(peer, host_id, ports, out->packets);
	if (!next_usable(peer, ports, turn->plane, turn->slot, 0, out))
		return 0;
	plane = out->plane & (MRC_MAX_PLANES - 1);
	if (begins_anew(turn, plane, out->slot))
		fetch_ahead(peer, turn, host_id, ports);
	index = ev_index(host_id, plane * settings.evs_per_plane + out->slot);
	ev = ev_at(index);
	if (ev && passes(ev, index, turn))
		out->slot = next_willing(peer, turn, host_id, plane, out->slot);
	if (out->slot == NO_SLOT)
		return 0;
	if (pace && pace->queued) {
		pace->sent[plane] += out->packets; /* about: other CPUs add to it too */
		pace->sent_ns[plane] = now;
	}
	turn->slot[plane] = out->slot + 1;
	turn->plane = plane + 1;
	return 1;
}

#endif
