/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Keeps the loss window of an EV: recent losses, halved twice per period. */
#ifndef MRC_LOSS_H
#define MRC_LOSS_H

#include "arith.h"
#include "maps.h"

static __always_inline void begin_loss_window(struct mrc_path_stats *stats)
{
	stats->window_tx = 0;
	stats->window_lost = 0;
	stats->window_samples = 0;
	stats->window_losses = 0;
	stats->confirmed_losses = 0;
	stats->pending_losses = 0;
}

/* Remove losses: packets that counted as lost have arrived late. */
static __always_inline void remove_window_losses(struct mrc_path_stats *stats, __u32 found)
{
	__u32 left = stats->window_lost > found ? stats->window_lost - found : 0, losses;

	if (!stats->window_lost)
		return;
	losses = (__u64)stats->window_losses * left / stats->window_lost;
	stats->window_losses = losses;
	stats->window_lost = left;
	if (stats->pending_losses > losses)
		stats->pending_losses = losses;
	if (stats->confirmed_losses > losses)
		stats->confirmed_losses = losses;
}

static __always_inline void add_window_losses(struct mrc_path_stats *stats, __u32 lost, __u32 losses)
{
	stats->window_lost += lost;
	stats->window_losses += losses;
}

/* Confirm the losses that have been known for `late_ns`: late packets would have arrived by now. */
static __always_inline void confirm_losses(struct mrc_path_stats *stats, __u64 now, __u64 late_ns)
{
	if (!aged(now, stats->pending_losses_ns, late_ns))
		return;
	stats->confirmed_losses = stats->pending_losses;
	stats->pending_losses = stats->window_losses;
	stats->pending_losses_ns = now;
}

static __always_inline void add_window_sample(struct mrc_path_stats *stats, __u32 packets, __u32 samples)
{
	stats->window_tx += packets;
	stats->window_samples += samples;
}

/* Halve the loss window once for each half-period since the last call. */
static __always_inline void fade_window(struct mrc_path_stats *stats, __u64 now)
{
	__u16 epoch = now / (health.loss_window_us * NS_PER_US / 2 ?: 1), past = epoch - stats->epoch;
	__u32 shift = past < 16 ? past : 16;

	stats->epoch = epoch;
	if (!shift || health.loss_any) /* loss_any keeps every loss until it is judged */
		return;
	stats->window_tx >>= shift;
	stats->window_lost >>= shift;
	stats->window_samples >>= shift;
	stats->window_losses >>= shift;
	stats->pending_losses >>= shift;
	stats->confirmed_losses >>= shift;
}

/* ---- planes -------------------------------------------------------------------------------- */

/* Finds lossy planes by the sums of their EVs. With many EVs, each alone has too few losses in the loss window for a
 * verdict. A bad cable at a NIC is such a case.
 */

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

/* Store the losses of a report's part of the EVs, and add those of the other part, unless they are older than the loss
 * window. A report may have room for one plane of two, and a lossy plane needs another one to be compared with.
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
	if (aged(now, all->ns[!part], health.loss_window_us * NS_PER_US))
		return;
	sum->below_limit += other->below_limit;
	sum->above_limit += other->above_limit;
	sum->samples += other->samples;
	sum->losses += other->losses;
}
_Static_assert(MRC_REPORT_PARTS == 2, "add_other_part");

/* Return the lossy planes, as bits: they exceed the loss rule's ratio, their EVs lose alike, and they lose more than
 * the other planes. The scratch holds the sums of one part of the EVs.
 */
__noinline __u32 lossy_planes(__u32 host_id, __u32 part)
{
	struct mrc_plane_losses *all = bpf_map_lookup_elem(&mrc_plane_losses, &host_id);
	__u32 zero = 0, planes = 0, evs = 0, i;
	struct mrc_scratch *scratch = bpf_map_lookup_elem(&mrc_scratch, &zero);
	__u64 now = now_ns();
	struct plane_loss *sum, *own;
	int is_fresh;

	if (!all || !scratch || health.loss_any)
		return 0;
	part &= MRC_REPORT_PARTS - 1;
	all->ns[part] = now;
	is_fresh = !aged(now, all->ns[!part], health.loss_window_us * NS_PER_US);
	sum = &scratch->loss[MRC_MAX_PLANES];
	for (i = 0; i < settings.planes && i < MRC_MAX_PLANES; i++) {
		own = &scratch->loss[i];
		all->of[part][i] = *own;
		if (is_fresh)
			add_losses(own, &all->of[!part][i]);
		add_losses(sum, own);
		evs -= less_mask(0, own->evs); /* one more, if it has any */
	}
	for (i = 0; i < settings.planes && i < MRC_MAX_PLANES; i++) {
		own = &scratch->loss[i];
		/* A comparison needs enough samples of the other planes. */
		if (is_plane_wide(own->losses, own->lossy_evs, own->evs) &&
		    4 * (__u64)(sum->samples - own->samples) >= own->samples &&
		    (__u64)own->lost * PPM >= (__u64)health.loss_ppm * own->sent &&
		    loses_more(own->losses, own->samples, sum->known_losses - own->known_losses,
			       sum->samples - own->samples, evs,
			       health.loss_samples))
			planes |= 1u << i;
	}
	return planes;
}
_Static_assert(MRC_REPORT_PARTS == 2, "lossy_planes");

#endif
