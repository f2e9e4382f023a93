/* Finds planes that lose, by the sums of their EVs: where there are many EVs, each alone has too few losses for a verdict in
 * the loss window. A NIC's cable is one such case.
 */
#ifndef MRC_PLANE_LOSS_H
#define MRC_PLANE_LOSS_H

#include "probe.h"

static __always_inline void add_losses(struct plane_loss *sum, const struct plane_loss *p)
{
	sum->sent += p->sent;
	sum->lost += p->lost;
	sum->samples += p->samples;
	sum->losses += p->losses;
	sum->known_losses += p->known_losses;
	sum->evs += p->evs;
	sum->lossy_evs += p->lossy_evs;
}

/* Note how the EVs of a report lose, and add what the report of the other part told, if that is not older than the loss
 * window: where a report has room for one plane of two, a lossy plane would have nothing to be compared with.
 */
static __always_inline void add_other_part(struct part_loss *sum, __u32 host_id, __u32 part, __u64 now)
{
	struct mrc_plane_losses *all = bpf_map_lookup_elem(&mrc_plane_losses, &host_id);
	const struct part_loss *other;

	part &= MRC_REPORT_PARTS - 1;
	if (!all)
		return;
	all->part[part] = *sum;
	other = &all->part[!part];
	if (aged(now, all->ns[!part], settings.loss_window_us * NS_PER_US))
		return;
	sum->below_limit += other->below_limit;
	sum->above_limit += other->above_limit;
	sum->samples += other->samples;
	sum->losses += other->losses;
}
_Static_assert(MRC_REPORT_PARTS == 2, "add_other_part");

/* The planes that lose as much as the loss rule condemns, of which most EVs have losses, and which lose more
 * than the other planes do; as bits. A report of one part of the EVs has been added up in the scratch.
 */
__noinline __u32 lossy_planes(__u32 host_id, __u32 part)
{
	struct mrc_plane_losses *all = bpf_map_lookup_elem(&mrc_plane_losses, &host_id);
	__u32 zero = 0, planes = 0, evs = 0, i;
	struct mrc_scratch *scratch = bpf_map_lookup_elem(&mrc_scratch, &zero);
	__u64 now = bpf_ktime_get_ns();
	struct plane_loss *sum, *own;
	int is_fresh;

	if (!all || !scratch || settings.loss_any)
		return 0;
	part &= MRC_REPORT_PARTS - 1;
	all->ns[part] = now;
	is_fresh = !aged(now, all->ns[!part], settings.loss_window_us * NS_PER_US);
	sum = &scratch->loss[MRC_MAX_PLANES];
	for (i = 0; i < settings.planes && i < MRC_MAX_PLANES; i++) {
		own = &scratch->loss[i];
		all->of[part][i] = *own;
		if (is_fresh)
			add_losses(own, &all->of[!part][i]);
		add_losses(sum, own);
		evs += own->evs > 0;
	}
	for (i = 0; i < settings.planes && i < MRC_MAX_PLANES; i++) {
		own = &scratch->loss[i];
		/* Few samples of the others are no measure. */
		if (2 * own->lossy_evs > own->evs && 4 * (__u64)(sum->samples - own->samples) >= own->samples &&
		    (__u64)own->lost * 1000000 >= (__u64)settings.loss_ppm * own->sent &&
		    loses_more(own->losses, own->samples, sum->known_losses - own->known_losses, sum->samples - own->samples, evs,
			       settings.loss_samples))
			planes |= 1u << i;
	}
	return planes;
}
_Static_assert(MRC_REPORT_PARTS == 2, "lossy_planes");

#endif
