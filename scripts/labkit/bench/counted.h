/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Before any header of the programs: count every call of a helper, by which. The programs are otherwise the same.
 *
 * A look-up in an array is no call once the verifier has rewritten it, so nothing outside can count it.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* In the order of COUNTED in cost.py. */
enum {
	COUNT_LOOKUP,
	COUNT_TIME,
	COUNT_STORE,
	COUNT_LOAD,
	COUNT_ADJUST,
	COUNT_CLONE,
	COUNT_REDIRECT,
	COUNT_PULL,
	COUNT_LOOP,
	COUNT_HASH,
	COUNT_MAX,
};

__u64 mrc_counted[COUNT_MAX];

/* By hand, so that the compiler keeps no address of a counter on the stack, of which the programs leave little. */
#define COUNT(what)                                                                                \
	({                                                                                         \
		__u64 at, one;                                                                     \
		asm volatile("%0 = mrc_counted ll; %1 = 1; lock *(u64 *)(%0 + %2) += %1"           \
			     : "=&r"(at), "=&r"(one)                                               \
			     : "i"((what) * sizeof(__u64))                                         \
			     : "memory");                                                          \
	})
#define COUNTED(what, call) ({ COUNT(what); call; })
#define bpf_map_lookup_elem(...) COUNTED(COUNT_LOOKUP, bpf_map_lookup_elem(__VA_ARGS__))
#define bpf_ktime_get_ns(...) COUNTED(COUNT_TIME, bpf_ktime_get_ns(__VA_ARGS__))
#define bpf_skb_store_bytes(...) COUNTED(COUNT_STORE, bpf_skb_store_bytes(__VA_ARGS__))
#define bpf_skb_load_bytes(...) COUNTED(COUNT_LOAD, bpf_skb_load_bytes(__VA_ARGS__))
#define bpf_skb_adjust_room(...) COUNTED(COUNT_ADJUST, bpf_skb_adjust_room(__VA_ARGS__))
#define bpf_xdp_adjust_head(...) COUNTED(COUNT_ADJUST, bpf_xdp_adjust_head(__VA_ARGS__))
#define bpf_xdp_adjust_meta(...) COUNTED(COUNT_ADJUST, bpf_xdp_adjust_meta(__VA_ARGS__))
#define bpf_set_hash(...) COUNTED(COUNT_HASH, bpf_set_hash(__VA_ARGS__))
#define bpf_get_hash_recalc(...) COUNTED(COUNT_HASH, bpf_get_hash_recalc(__VA_ARGS__))
#define bpf_clone_redirect(...) COUNTED(COUNT_CLONE, bpf_clone_redirect(__VA_ARGS__))
#define bpf_redirect(...) COUNTED(COUNT_REDIRECT, bpf_redirect(__VA_ARGS__))
#define bpf_skb_pull_data(...) COUNTED(COUNT_PULL, bpf_skb_pull_data(__VA_ARGS__))
#define bpf_loop(...) COUNTED(COUNT_LOOP, bpf_loop(__VA_ARGS__))
