/* Which EV the next packet takes: the planes in turn, and in each plane its usable EVs in turn. A
 * plane keeps its share of the traffic as long as it has one usable EV, so the replacement of a
 * failed EV always comes from the same plane.
 */
#ifndef MRC_SPRAY_H
#define MRC_SPRAY_H

#include "arith.h"
#include "maps.h"

struct choice {
	__u32 plane;
	__u32 slot;
};

/* Planes that have a link at both ends. */
static __always_inline __u32 ports_both(const struct mrc_node *node, const struct mrc_peer *peer)
{
	return node->ports & peer->ports;
}

static __always_inline int choose_ev(const struct mrc_peer *peer, __u32 host_id, __u32 ports,
				     struct choice *out)
{
	struct mrc_rotation *turn = bpf_map_lookup_elem(&mrc_rotations, &host_id);
	__u32 plane, slot, i;

	if (!turn)
		return 0;
	plane = turn->plane;
	for (i = 0; i < MRC_MAX_PLANES; i++) {
		if (plane >= settings.planes)
			plane = 0;
		plane &= MRC_MAX_PLANES - 1; /* for the verifier */
		if (ports & (1u << plane)) {
			slot = next_slot(peer->usable[plane], settings.evs_per_plane, turn->slot[plane]);
			if (slot != NO_SLOT) {
				turn->slot[plane] = slot + 1;
				turn->plane = plane + 1;
				out->plane = plane;
				out->slot = slot;
				return 1;
			}
		}
		plane++;
	}
	return 0;
}

#endif
