/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the BPF helpers that change the packet, with the errors and bounds of the kernel (net/core/filter.c). */
#ifndef FUZZ_PACKET_HELPERS_H
#define FUZZ_PACKET_HELPERS_H

#include "helpers.h"

#pragma clang attribute push(__attribute__((no_sanitize("coverage"))), apply_to = function) /* as in helpers.h */

/* ---- memory ---- */

static __u8 *data(void)
{
	return packet.end - packet.linear;
}

static __u32 whole_length(void)
{
	return packet.linear + packet.paged;
}

/* Show the packet to the program, after a change of its place. */
static void show(void)
{
	__u8 *front = data() - packet.meta;

	require(packet.linear + packet.meta + 2 * POISONED < AREA);
	if (packet.poisoned)
		ASAN_UNPOISON_MEMORY_REGION(packet.poisoned, POISONED);
	packet.poisoned = front - POISONED;
	ASAN_POISON_MEMORY_REGION(packet.poisoned, POISONED);
	skb.data = xdp.data = (uintptr_t)data();
	skb.data_end = xdp.data_end = (uintptr_t)packet.end;
	skb.data_meta = xdp.data_meta = (uintptr_t)front;
	skb.len = whole_length();
}

static void unpoison(void)
{
	if (packet.poisoned)
		ASAN_UNPOISON_MEMORY_REGION(packet.poisoned, POISONED);
	packet.poisoned = 0;
}

/* Give the linear part another length: `change` bytes more or fewer at its front, which are zeros. */
static void move_front(__s32 change)
{
	unpoison();
	packet.linear += change;
	if (change > 0)
		memset(data(), 0, change);
	packet.meta = 0;
}

static int make_writable(__u32 length)
{
	__u32 more;

	if (length > whole_length())
		return -ENOMEM;
	if (length > packet.linear) {
		more = length - packet.linear;
		unpoison();
		memmove(data() - more, data(), packet.linear);
		memcpy(packet.end - more, packet.fragments, more);
		memmove(packet.fragments, packet.fragments + more, packet.paged - more);
		packet.linear = length;
		packet.paged -= more;
	}
	return 0;
}

static void make_area(void)
{
	__u8 *low = low_memory(AREA + 2 * PAGE);

	require(!mprotect(low, PAGE, PROT_NONE) && !mprotect(low + PAGE + AREA, PAGE, PROT_NONE));
	packet.start = low + PAGE;
	packet.end = packet.start + AREA;
}

/* Make a packet of these bytes, of which at most `linear` are in the linear part. */
static void set_packet(const __u8 *bytes, __u32 length, __u32 linear)
{
	unpoison();
	packet.linear = linear < length ? linear : length;
	packet.paged = length - packet.linear;
	packet.meta = 0;
	memcpy(data(), bytes, packet.linear);
	memcpy(packet.fragments, bytes + packet.linear, packet.paged);
	show();
}

/* ---- helpers for skbs ---- */

long bpf_skb_load_bytes(const struct __sk_buff *from, __u32 offset, void *to, __u32 length)
{
	__u32 n;

	if (offset > INT32_MAX || (__u64)offset + length > whole_length()) {
		memset(to, 0, length);
		return -EFAULT;
	}
	n = offset < packet.linear ? packet.linear - offset : 0;
	n = n < length ? n : length;
	memcpy(to, data() + (n ? offset : 0), n);
	memcpy((__u8 *)to + n, packet.fragments + (n ? 0 : offset - packet.linear), length - n);
	return 0;
}

long bpf_skb_store_bytes(struct __sk_buff *s, __u32 offset, const void *from, __u32 length, __u64 flags)
{
	if (flags & ~(__u64)(BPF_F_RECOMPUTE_CSUM | BPF_F_INVALIDATE_HASH))
		return -EINVAL;
	if (offset > INT32_MAX || (__u64)offset + length > whole_length() || make_writable(offset + length))
		return -EFAULT;
	memcpy(data() + offset, from, length);
	show();
	return 0;
}

long bpf_skb_pull_data(struct __sk_buff *s, __u32 length)
{
	long error;

	error = make_writable(length ? length : packet.linear);
	show();
	return error;
}

long bpf_skb_change_tail(struct __sk_buff *s, __u32 length, __u64 flags)
{
	__u32 before = whole_length();

	if (flags || length > LENGTH_MAX || length < ETHERNET)
		return -EINVAL;
	if (packet.encapsulated)
		return -NOT_SUPPORTED;
	make_writable(before);
	unpoison();
	if (length > before) {
		memmove(packet.end - length, data(), before);
		memset(packet.end - (length - before), 0, length - before);
	} else {
		memmove(packet.end - length, data(), length);
	}
	packet.linear = length;
	skb.gso_size = skb.gso_segs = 0;
	packet.meta = 0;
	show();
	return 0;
}

long bpf_skb_change_head(struct __sk_buff *s, __u32 room, __u64 flags)
{
	__u32 length = whole_length() + room;

	if (flags || room > INT32_MAX || (!skb.gso_size && length > LENGTH_MAX) || length < whole_length())
		return -EINVAL;
	move_front(room);
	show();
	return 0;
}

/* Insert bytes behind the Ethernet header, or remove some, if `change` is negative. */
static int change_behind_ethernet(__s32 change)
{
	__u8 ethernet[ETHERNET];

	if (make_writable(ETHERNET + (change < 0 ? -change : 0)))
		return -ENOMEM;
	memcpy(ethernet, data(), ETHERNET);
	move_front(change);
	if (change > 0)
		memset(data(), 0, ETHERNET + change);
	memcpy(data(), ethernet, ETHERNET);
	return 0;
}

long bpf_skb_change_proto(struct __sk_buff *s, __be16 protocol, __u64 flags)
{
	if (flags)
		return -EINVAL;
	if (skb.protocol != __builtin_bswap16(0x86dd) || protocol != __builtin_bswap16(0x0800))
		return -NOT_SUPPORTED;
	if (change_behind_ethernet(IP4 - IP6))
		return -ENOMEM;
	skb.protocol = protocol;
	show();
	return 0;
}

long bpf_skb_adjust_room(struct __sk_buff *s, __s32 change, __u32 mode, __u64 flags)
{
	__u64 encap = BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	__u64 decap4 = 1ULL << 7, decap6 = 1ULL << 8;
	__u32 size = change < 0 ? -change : change, least, network = whole_length() - ETHERNET;
	int is_ip6 = skb.protocol == __builtin_bswap16(0x86dd);

	require(mode == BPF_ADJ_ROOM_MAC);
	if (flags & ~(encap | decap4 | decap6 | BPF_F_ADJ_ROOM_FIXED_GSO))
		return -EINVAL;
	if (size > 0xfff)
		return -EFAULT;
	if (!is_ip6 && skb.protocol != __builtin_bswap16(0x0800))
		return -NOT_SUPPORTED;
	least = is_ip6 ? IP6 : IP4;
	if (flags & (decap4 | decap6)) {
		if (change >= 0 || (flags & decap4 && flags & decap6))
			return -EINVAL;
		least = flags & decap6 ? IP6 : IP4;
	}
	if (whole_length() < ETHERNET || (change < 0 && (size >= network || network - size < least)) ||
	    (change >= 0 && whole_length() + size > LENGTH_MAX && !skb.gso_size))
		return -NOT_SUPPORTED;
	if (change >= 0 && skb.gso_size && !(flags & BPF_F_ADJ_ROOM_FIXED_GSO) && host.random & 1)
		return -NOT_SUPPORTED; /* the kernel tells TCP bursts from others */
	if (change >= 0 && flags & encap && packet.encapsulated)
		return -EALREADY;
	if (change_behind_ethernet(change))
		return -ENOMEM;
	if (change >= 0 && flags & encap) {
		packet.encapsulated = 1;
		skb.protocol = __builtin_bswap16(0x86dd);
	}
	if (flags & decap4)
		skb.protocol = __builtin_bswap16(0x0800);
	if (flags & decap6)
		skb.protocol = __builtin_bswap16(0x86dd);
	show();
	return 0;
}

long bpf_skb_vlan_push(struct __sk_buff *s, __be16 protocol, __u16 tci)
{
	if (skb.vlan_present)
		return -ENOMEM; /* the kernel would insert the tag; no target needs a second one */
	skb.vlan_present = 1;
	skb.vlan_tci = tci;
	show();
	return 0;
}

long bpf_skb_vlan_pop(struct __sk_buff *s)
{
	skb.vlan_present = skb.vlan_tci = 0;
	show();
	return 0;
}

long bpf_skb_set_tstamp(struct __sk_buff *s, __u64 tstamp, __u32 type)
{
	s->tstamp = tstamp;
	return 0;
}

long bpf_l4_csum_replace(struct __sk_buff *s, __u32 offset, __u64 from, __u64 to, __u64 flags)
{
	__u16 sum;

	if (flags != 2 || offset > 0xffff || offset & 1)
		return flags != 2 ? -EINVAL : -EFAULT;
	if (make_writable(offset + sizeof(sum)))
		return -EFAULT;
	memcpy(&sum, data() + offset, sizeof(sum));
	sum += from - to;
	memcpy(data() + offset, &sum, sizeof(sum));
	show();
	return 0;
}

/* No packet here has a sum (CHECKSUM_COMPLETE). */
__s64 bpf_csum_update(struct __sk_buff *s, __u32 csum)
{
	return -NOT_SUPPORTED;
}

long bpf_redirect(__u32 ifindex, __u64 flags)
{
	require(ifindex && !(flags & ~(__u64)BPF_F_INGRESS));
	host.sent++;
	return 7; /* TC_ACT_REDIRECT */
}

/* A clone that goes to mrc_probe is handled at once, as in the kernel. */
long bpf_clone_redirect(struct __sk_buff *s, __u32 ifindex, __u64 flags)
{
	static __u8 linear[AREA], fragments[sizeof(packet.fragments)];
	__u32 linear_length = packet.linear, paged = packet.paged, meta = packet.meta;
	int encapsulated = packet.encapsulated;
	struct __sk_buff before = skb;
	__u64 drops = drops_now();
	int verdict;

	require(ifindex && !flags);
	host.sent++;
	if (ifindex != host.probe_ifindex || host.nested)
		return 0;
	memcpy(linear, data(), linear_length);
	memcpy(fragments, packet.fragments, paged);
	host.nested = 1;
	verdict = mrc_probe(&skb);
	require(verdict == -1 || verdict == 2 || verdict == 7);
	host.nested = 0;
	host.nested_drops += drops_now() - drops;
	unpoison();
	skb = before;
	packet.linear = linear_length;
	packet.paged = paged;
	packet.meta = meta;
	packet.encapsulated = encapsulated;
	memcpy(data(), linear, linear_length);
	memcpy(packet.fragments, fragments, paged);
	show();
	return 0;
}

__u32 bpf_get_hash_recalc(struct __sk_buff *s)
{
	return s->hash ? s->hash : 0x12345678;
}

long bpf_set_hash(struct __sk_buff *s, __u32 hash)
{
	s->hash = hash;
	return 0;
}

struct bpf_sock *bpf_sk_fullsock(struct bpf_sock *s)
{
	require(s == &sock);
	return host.random & 2 ? &full_sock : 0;
}

struct bpf_tcp_sock *bpf_tcp_sock(struct bpf_sock *s)
{
	static struct bpf_tcp_sock connection;

	require(s == &full_sock);
	connection.snd_nxt = host.random;
	connection.packets_out = host.random >> 16 & 7;
	return host.random & 4 ? &connection : 0;
}

/* ---- helpers for XDP ---- */

long bpf_xdp_adjust_head(struct xdp_md *ctx, int change)
{
	if (change < 0 || (__u32)change + ETHERNET > packet.linear)
		return -EINVAL; /* the kernel also adds room; no program needs it */
	unpoison();
	packet.linear -= change;
	packet.meta = 0;
	show();
	return 0;
}

long bpf_xdp_adjust_meta(struct xdp_md *ctx, int change)
{
	__s32 length = (__s32)packet.meta - change;

	if (!packet.can_meta)
		return -NOT_SUPPORTED;
	if (length < 0)
		return -EINVAL;
	if (length % 4 || length > META_MAX)
		return -EACCES;
	packet.meta = length;
	show();
	return 0;
}

__u64 bpf_xdp_get_buff_len(struct xdp_md *ctx)
{
	return whole_length();
}

#pragma clang attribute pop

#endif
