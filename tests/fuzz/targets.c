/* SPDX-License-Identifier: BSD-2-Clause */
/* All fuzz targets in one program, because bpf/ then compiles once. The name of the program selects the target. */
#include "peer_packets.h"

/* It calls what the programs inline. */
#include "fuzz_outer.h"

#pragma clang attribute push(__attribute__((no_sanitize("coverage"))), apply_to = function) /* as in helpers.h */

#include "fuzz_probes.h"

#include "fuzz_icmp.h"

#include "fuzz_push.h"

#include "fuzz_pop.h"

#pragma clang attribute pop

static const struct target {
	const char *name;
	void (*fuzz)(const __u8 *bytes, __u32 length);
} targets[] = {
	{ "outer", fuzz_outer }, { "probes", fuzz_probes }, { "icmp", fuzz_icmp },
	{ "push", fuzz_push },	 { "pop", fuzz_pop },
};

static const struct target *target;

const char *__asan_default_options(void)
{
	return "detect_leaks=0"; /* the tables live as long as the process */
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	const char *slash = strrchr(**argv, '/');

	(void)argc;
	for (__u32 i = 0; i < sizeof(targets) / sizeof(targets[0]); i++)
		if (!strcmp(slash ? slash + 1 : **argv, targets[i].name))
			target = &targets[i];
	if (!target) {
		fprintf(stderr, "fuzz: no target has the name of this program\n");
		exit(1);
	}
	make_host();
	return 0;
}

int LLVMFuzzerTestOneInput(const __u8 *bytes, size_t length)
{
	struct conditions conditions;

	if (length < sizeof(conditions) || length > 4096)
		return -1;
	memcpy(&conditions, bytes, sizeof(conditions));
	begin(&conditions, bytes, length);
	target->fuzz(bytes + sizeof(conditions), length - sizeof(conditions));
	expire_timer();
	return 0;
}
