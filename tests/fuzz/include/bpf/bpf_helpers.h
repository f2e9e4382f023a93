/* SPDX-License-Identifier: BSD-2-Clause */
/* Replaces libbpf's <bpf/bpf_helpers.h> when the fuzz targets compile bpf/ for the host. A map holds a descriptor of
 * host memory. The helpers are functions of this process (helpers.h).
 */
#ifndef FUZZ_BPF_HELPERS_H
#define FUZZ_BPF_HELPERS_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stddef.h>

#define SEC(name)
#define __ksym
#define __weak
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))

/* Host memory of a map. */
struct host_map {
	__u8 *memory;
	__u8 *pristine; /* contents at the start of each input */
	__u8 *touched; /* by entry: 1 = looked up by this input */
	__u32 value_size;
	__u32 entries;
	__u32 is_trie;
};

/* Members of the map structures in bpf/maps.h. */
#define __uint(name, number) MAP_##name(number)
#define MAP_type(number) struct host_map host
#define MAP_max_entries(number) char (*max_entries)[number]
#define MAP_map_flags(number) char (*flags)[1]
#define __type(name, kind) typeof(kind) *name

void *host_lookup(struct host_map *map, const void *key);
long host_push(struct host_map *map, const void *value);
long host_pop(struct host_map *map, void *value, int keep);

#define bpf_map_lookup_elem(map, key) host_lookup(&(map)->host, key)
#define bpf_map_push_elem(map, from, flags) host_push(&(map)->host, from)
#define bpf_map_pop_elem(map, to) host_pop(&(map)->host, to, 0)
#define bpf_map_peek_elem(map, to) host_pop(&(map)->host, to, 1)

__u64 bpf_ktime_get_ns(void);
__u64 bpf_ktime_get_coarse_ns(void);
__u32 bpf_get_prandom_u32(void);
__u32 bpf_get_smp_processor_id(void);
long bpf_loop(__u32 count, long (*call)(__u64, void *), void *context, __u64 flags);

long bpf_skb_load_bytes(const struct __sk_buff *skb, __u32 offset, void *to, __u32 length);
long bpf_skb_store_bytes(struct __sk_buff *skb, __u32 offset, const void *from, __u32 length, __u64 flags);
long bpf_skb_pull_data(struct __sk_buff *skb, __u32 length);
long bpf_skb_change_tail(struct __sk_buff *skb, __u32 length, __u64 flags);
long bpf_skb_change_head(struct __sk_buff *skb, __u32 room, __u64 flags);
long bpf_skb_change_proto(struct __sk_buff *skb, __be16 protocol, __u64 flags);
long bpf_skb_adjust_room(struct __sk_buff *skb, __s32 change, __u32 mode, __u64 flags);
long bpf_skb_vlan_push(struct __sk_buff *skb, __be16 protocol, __u16 tci);
long bpf_skb_vlan_pop(struct __sk_buff *skb);
long bpf_skb_set_tstamp(struct __sk_buff *skb, __u64 tstamp, __u32 type);
long bpf_l4_csum_replace(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to, __u64 flags);
__s64 bpf_csum_update(struct __sk_buff *skb, __u32 csum);
long bpf_clone_redirect(struct __sk_buff *skb, __u32 ifindex, __u64 flags);
long bpf_redirect(__u32 ifindex, __u64 flags);
__u32 bpf_get_hash_recalc(struct __sk_buff *skb);
long bpf_set_hash(struct __sk_buff *skb, __u32 hash);
struct bpf_sock *bpf_sk_fullsock(struct bpf_sock *sk);
struct bpf_tcp_sock *bpf_tcp_sock(struct bpf_sock *sk);

long bpf_xdp_adjust_head(struct xdp_md *ctx, int change);
long bpf_xdp_adjust_meta(struct xdp_md *ctx, int change);
__u64 bpf_xdp_get_buff_len(struct xdp_md *ctx);

void *bpf_ringbuf_reserve(void *ring, __u64 size, __u64 flags);
void bpf_ringbuf_submit(void *record, __u64 flags);
__u64 bpf_ringbuf_query(void *ring, __u64 flags);

struct mrc_idle_timer;
typedef int timer_callback(void *map, __u32 *key, struct mrc_idle_timer *value);
long host_timer_start(struct bpf_timer *timer, __u64 wait_ns);
extern timer_callback *host_timer_callback;

#define bpf_timer_init(timer, map, clock) 0
#define bpf_timer_set_callback(timer, call) (host_timer_callback = (call))
#define bpf_timer_start(timer, wait_ns, flags) host_timer_start(timer, wait_ns)

#endif
