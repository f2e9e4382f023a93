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

/* Confirm the losses that have been known for half of overdue_us: late packets would have arrived by now. */
static __always_inline void confirm_losses(struct mrc_path_stats *stats, __u64 now)
{
	if (!aged(now, stats->pending_losses_ns, settings.overdue_us * NS_PER_US / 2))
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
	__u16 epoch = now / (settings.loss_window_us * NS_PER_US / 2 ?: 1), past = epoch - stats->epoch;
	__u32 shift = past < 16 ? past : 16;

	stats->epoch = epoch;
	if (!shift || settings.loss_any) /* loss_any keeps every loss until it is judged */
		return;
	stats->window_tx >>= shift;
	stats->window_lost >>= shift;
	stats->window_samples >>= shift;
	stats->window_losses >>= shift;
	stats->pending_losses >>= shift;
	stats->confirmed_losses >>= shift;
}

#endif
