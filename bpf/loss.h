/* The loss window of an EV: losses of the last moments, which fade. */
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
	stats->sure = 0;
	stats->unsure = 0;
}

/* Packets that were counted as lost have come after all. */
static __always_inline void unlose(struct mrc_path_stats *l, __u32 found)
{
	__u32 left = l->window_lost > found ? l->window_lost - found : 0, losses;

	if (!l->window_lost)
		return;
	losses = (__u64)l->window_losses * left / l->window_lost;
	l->window_losses = losses;
	l->window_lost = left;
	if (l->unsure > losses)
		l->unsure = losses;
	if (l->sure > losses)
		l->sure = losses;
}

static __always_inline void lose(struct mrc_path_stats *l, __u32 lost, __u32 losses)
{
	l->window_lost += lost;
	l->window_losses += losses;
}

/* Losses that have been known for some time are sure: late packets would have come. */
static __always_inline void make_sure(struct mrc_path_stats *l, __u64 now)
{
	if (!aged(now, l->unsure_ns, settings.overdue_us * NS_PER_US / 2))
		return;
	l->sure = l->unsure;
	l->unsure = l->window_losses;
	l->unsure_ns = now;
}

static __always_inline void sample(struct mrc_path_stats *l, __u32 packets, __u32 samples)
{
	l->window_tx += packets;
	l->window_samples += samples;
}

static __always_inline void fade(struct mrc_path_stats *l, __u64 now)
{
	__u16 epoch = now / (settings.loss_window_us * NS_PER_US / 2 ?: 1), past = epoch - l->epoch;
	__u32 shift = past < 16 ? past : 16;

	l->epoch = epoch;
	if (!shift || settings.loss_any) /* any loss is remembered until it is judged */
		return;
	l->window_tx >>= shift;
	l->window_lost >>= shift;
	l->window_samples >>= shift;
	l->window_losses >>= shift;
	l->unsure >>= shift;
	l->sure >>= shift;
}

#endif
