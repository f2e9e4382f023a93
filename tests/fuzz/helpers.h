/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the BPF helpers of maps, time and chance in host memory, and defines the packet (packet_helpers.h).
 *
 * The linear part of the packet ends at an inaccessible page, so a read one byte behind data_end faults. The bytes
 * before it are poisoned for AddressSanitizer. Both are below 4 GiB, because data and data_end have 32 bits.
 */
#ifndef FUZZ_HELPERS_H
#define FUZZ_HELPERS_H

#include <errno.h>
#include <sanitizer/asan_interface.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int mrc_probe(struct __sk_buff *skb);

/* libFuzzer is to explore the programs, so it counts no branches of this file. Probes run 1.6 times as fast so. */
#pragma clang attribute push(__attribute__((no_sanitize("coverage"))), apply_to = function)

#define PAGE 4096u
#define AREA (64 * PAGE)
#define LENGTH_MAX 65535 /* BPF_SKB_MAX_LEN */
#define NOT_SUPPORTED 524 /* the kernel's ENOTSUPP */
#define POISONED 256 /* bytes before the packet */
#define ETHERNET 14 /* bytes of an Ethernet header */
#define IP4 20
#define IP6 40
#define META_MAX 32
#define START_NS 1000000000000ULL

#define require(condition)                                                                        \
	do {                                                                                      \
		if (!(condition)) {                                                               \
			fprintf(stderr, "%s:%d: violated: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                                  \
		}                                                                                 \
	} while (0)

/* The packet, and what the kernel knows of it. */
static struct {
	__u8 *start; /* of the area */
	__u8 *end; /* of the linear part; an inaccessible page follows */
	__u8 *poisoned; /* POISONED bytes from here, if not NULL */
	__u32 linear; /* bytes */
	__u32 paged; /* bytes behind the linear part: fragments */
	__u32 meta; /* bytes of XDP metadata before it */
	__u8 fragments[LENGTH_MAX + PAGE];
	int can_meta; /* the driver supports metadata */
	int encapsulated;
	int is_xdp;
} packet;

static struct __sk_buff skb;
static struct xdp_md xdp;
static struct bpf_sock sock, full_sock;
static struct {
	__u64 now;
	__u32 random;
	__u32 sent; /* clones and redirects, by mrc_pop and mrc_push */
	__u32 ring_used;
	__u32 probe_ifindex;
	int nested; /* mrc_probe runs on a clone */
	__u64 nested_drops;
	int ring_full;
} host;

timer_callback *host_timer_callback;
static struct bpf_timer *timer_started;
static __u64 drops_now(void);

/* ---- maps ---- */

static struct host_map *maps[64];
static __u32 map_count;

static struct {
	struct host_map *map;
	__u32 index;
} touched[1 << 16];
static __u32 touched_count;

static struct {
	__u32 length;
	__u8 address[16];
} trie_keys[64];

static void *low_memory(size_t size)
{
	void *memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);

	require(memory != MAP_FAILED);
	return memory;
}

static void make_map(struct host_map *map, __u32 value_size, __u32 entries)
{
	map->value_size = value_size;
	map->entries = entries;
	map->memory = calloc(entries, value_size);
	map->pristine = calloc(entries, value_size);
	map->touched = calloc(entries, 1);
	maps[map_count++] = map;
}

/* Keep the present contents as those at the start of each input. */
static void keep_maps(void)
{
	for (__u32 i = 0; i < map_count; i++) {
		memcpy(maps[i]->pristine, maps[i]->memory, (size_t)maps[i]->entries * maps[i]->value_size);
		memset(maps[i]->touched, 0, maps[i]->entries);
	}
	touched_count = 0;
}

static void touch(struct host_map *map, __u32 index)
{
	if (map->touched[index])
		return;
	map->touched[index] = 1;
	require(touched_count < sizeof(touched) / sizeof(touched[0]));
	touched[touched_count].map = map;
	touched[touched_count++].index = index;
}

/* Restore the entries that the last input has looked up. */
static void restore_maps(void)
{
	for (__u32 i = 0; i < touched_count; i++) {
		struct host_map *map = touched[i].map;
		size_t at = (size_t)touched[i].index * map->value_size;

		memcpy(map->memory + at, map->pristine + at, map->value_size);
		map->touched[touched[i].index] = 0;
	}
	touched_count = 0;
}

static void *search_trie(struct host_map *map, const __u8 *key)
{
	int best = -1, best_length = -1;

	for (__u32 i = 0; i < map->entries; i++) {
		__u32 length = trie_keys[i].length, whole = length / 8, rest = length % 8;

		if (memcmp(trie_keys[i].address, key, whole) ||
		    (rest && (trie_keys[i].address[whole] ^ key[whole]) >> (8 - rest)))
			continue;
		if ((int)length > best_length) {
			best = i;
			best_length = length;
		}
	}
	return best < 0 ? 0 : map->memory + best * map->value_size;
}

void *host_lookup(struct host_map *map, const void *key)
{
	__u32 index;

	require(map->memory);
	if (map->is_trie)
		return search_trie(map, (const __u8 *)key + 4);
	memcpy(&index, key, sizeof(index));
	if (index >= map->entries)
		return 0;
	touch(map, index);
	return map->memory + (size_t)index * map->value_size;
}

/* A queue of at most one page. */
static __u8 queue[PAGE];
static __u32 queued;

long host_push(struct host_map *map, const void *value)
{
	if ((queued + 1) * map->value_size > sizeof(queue))
		return -E2BIG;
	memcpy(queue + queued++ * map->value_size, value, map->value_size);
	return 0;
}

long host_pop(struct host_map *map, void *value, int keep)
{
	if (!queued) {
		memset(value, 0, map->value_size);
		return -ENOENT;
	}
	memcpy(value, queue, map->value_size);
	if (!keep)
		memmove(queue, queue + map->value_size, --queued * map->value_size);
	return 0;
}

/* ---- time and chance ---- */

__u64 bpf_ktime_get_ns(void)
{
	return host.now += 1000;
}

__u64 bpf_ktime_get_coarse_ns(void)
{
	return host.now / 4000000 * 4000000;
}

__u32 bpf_get_prandom_u32(void)
{
	return host.random = host.random * 1664525 + 1013904223;
}

__u32 bpf_get_smp_processor_id(void)
{
	return 0;
}

long bpf_loop(__u32 count, long (*call)(__u64, void *), void *context, __u64 flags)
{
	__u32 i;

	if (flags)
		return -EINVAL;
	if (count > 1 << 23)
		return -E2BIG;
	for (i = 0; i < count; i++)
		if (call(i, context))
			return i + 1;
	return i;
}

/* ---- ring buffer and timers ---- */

void *bpf_ringbuf_reserve(void *ring, __u64 size, __u64 flags)
{
	require(!flags);
	return host.ring_full ? 0 : malloc(size);
}

void bpf_ringbuf_submit(void *record, __u64 flags)
{
	require(!flags);
	free(record);
}

__u64 bpf_ringbuf_query(void *ring, __u64 flags)
{
	return host.ring_full ? PAGE : 0;
}

long host_timer_start(struct bpf_timer *timer, __u64 wait_ns)
{
	timer_started = timer;
	return 0;
}

#pragma clang attribute pop

#endif
