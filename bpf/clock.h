/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reads the time, for all programs: CLOCK_MONOTONIC, or a clock that tests set.
 *
 * The loader decides which, by a setting that the verifier knows, so it removes the other branch.
 */
#ifndef MRC_CLOCK_H
#define MRC_CLOCK_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "maps.h"

/* Tests write it (tests/packet/clock.py). */
volatile struct {
	__u64 now_ns;
	__u64 step_ns; /* added by each reading */
} test_clock SEC(".data.clock") = {};

static __always_inline __u64 test_time_ns(void)
{
	return __sync_fetch_and_add(&test_clock.now_ns, test_clock.step_ns);
}

/* Return the time in nanoseconds. */
static __always_inline __u64 now_ns(void)
{
	return settings.test_clock ? test_time_ns() : bpf_ktime_get_ns();
}

/* Return the time of the last timer interrupt: up to 10 ms ago, but cheaper. */
static __always_inline __u64 coarse_now_ns(void)
{
	return settings.test_clock ? test_time_ns() : bpf_ktime_get_coarse_ns();
}

#endif
