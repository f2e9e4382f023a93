/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Pushes packets that have a tunnel already: VXLAN, Geneve, GRE or IPIP over mrc0. Forwarded popped packets belong to
 * them, where a virtual link brought them whole: the kernel still takes these for encapsulated.
 *
 * The kernel supports one tunnel per packet: bpf_skb_adjust_room adds no second one, and the packet keeps the offsets
 * of the first. Bursts of VXLAN and Geneve can be segmented all the same. The kernel copies everything up to the inner
 * Ethernet header in front of each segment, and rewrites the lengths in the outermost IP and UDP headers. The tunnel's
 * own lengths remain those of the burst until the packet is popped.
 */
#ifndef MRC_TUNNEL_H
#define MRC_TUNNEL_H

#include <bpf/bpf_core_read.h>

#include "arith.h"
#include "maps.h"
#include "parse.h"

#define ERROR_EALREADY (-114) /* -EALREADY */
#define NO_HEADER 0xffff /* sk_buff.transport_header: not known */
#define CHECKSUM_PARTIAL 3 /* sk_buff.ip_summed: the NIC is to write the checksum */
#define SPARE_BYTES 4 /* bytes; added and removed again */

/* UAPI headers before Linux 6.3 lack them. */
#ifndef BPF_F_ADJ_ROOM_DECAP_L3_IPV4
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV4 (1ULL << 7)
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)
#endif

/* The kernel's struct sk_buff; libbpf relocates these fields. */
struct sk_buff___kernel {
	unsigned char *head, *data;
	__u32 data_len;
	__u32 truesize;
	__u32 end;
	__u16 network_header, transport_header;
	__u16 inner_network_header;
	__u16 csum_start, csum_offset; /* from `head`; from csum_start */
	__u8 encapsulation : 1, ip_summed : 2;
} __attribute__((preserve_access_index));

extern void *bpf_cast_to_kern_ctx(void *) __ksym __weak; /* Linux 6.2 and later */

/* Return 1 if the kernel takes a packet for encapsulated. */
__noinline int encapsulated(struct __sk_buff *skb)
{
	const struct sk_buff___kernel *k = (void *)skb;

	if (settings.kernel_has & MRC_KERNEL_HAS_KERN_CTX) {
		k = bpf_cast_to_kern_ctx(skb);
		return BPF_CORE_READ_BITFIELD(k, encapsulation);
	}
	return BPF_CORE_READ_BITFIELD_PROBED(k, encapsulation);
}

/* Return 1 if a clone of this packet can be cut off behind MRC_BALLAST bytes. The kernel cuts neither encapsulated
 * packets, nor headers of the network layer, nor the place of a checksum that is still to be written.
 */
__noinline int can_be_cut_off(struct __sk_buff *skb)
{
	const struct sk_buff___kernel *k = (void *)skb;
	__u32 headroom, transport, checksum, partial;

	if (encapsulated(skb))
		return 0;
	if (settings.kernel_has & MRC_KERNEL_HAS_KERN_CTX) {
		k = bpf_cast_to_kern_ctx(skb);
		headroom = k->data - k->head;
		transport = k->transport_header;
		checksum = k->csum_start + k->csum_offset;
		partial = BPF_CORE_READ_BITFIELD(k, ip_summed) == CHECKSUM_PARTIAL;
	} else {
		headroom = BPF_CORE_READ(k, data) - BPF_CORE_READ(k, head);
		transport = BPF_CORE_READ(k, transport_header);
		checksum = BPF_CORE_READ(k, csum_start) + BPF_CORE_READ(k, csum_offset);
		partial = BPF_CORE_READ_BITFIELD_PROBED(k, ip_summed) == CHECKSUM_PARTIAL;
	}
	if (partial)
		return checksum + sizeof(__sum16) <= headroom + ETH_HLEN + MRC_BALLAST;
	return transport == NO_HEADER || transport <= headroom + ETH_HLEN + MRC_BALLAST;
}

/* Write the lengths of a popped UDP segment that has those of its burst. It has no checksum, because bursts with one
 * are segmented before they are pushed (can_be_cut).
 */
static __noinline void restore_lengths(struct __sk_buff *skb)
{
	struct ethhdr *eth = (void *)(long)skb->data;
	struct iphdr *ip = (void *)(eth + 1);
	__u32 length = skb->len - ETH_HLEN, l3 = sizeof(struct ipv6hdr);
	__be16 own;

	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		if (bpf_ntohs(ip->tot_len) <= length)
			return;
		l3 = ip->ihl * 4;
		own = bpf_htons(length);
		ip->check = csum_replace16(ip->check, ip->tot_len, own); /* the sum over the header stays the same */
		ip->tot_len = own;
		own = bpf_htons(length - l3);
	} else {
		if (bpf_ntohs(((struct ipv6hdr *)ip)->payload_len) + l3 <= length)
			return;
		own = bpf_htons(length - l3);
		bpf_skb_store_bytes(skb, ETH_HLEN + offsetof(struct ipv6hdr, payload_len), &own, sizeof(own),
				    BPF_F_RECOMPUTE_CSUM);
	}
	bpf_skb_store_bytes(skb, ETH_HLEN + l3 + offsetof(struct udphdr, len), &own, sizeof(own), BPF_F_RECOMPUTE_CSUM);
}

/* Return 1 if the kernel can segment an encapsulated burst that has outer headers. It would not update the tunnel's own
 * checksum. So bursts with one are segmented by mrc0, where the kernel computes a checksum for each packet.
 */
static __always_inline int can_be_cut(struct __sk_buff *skb)
{
	__u32 both = MRC_KERNEL_HAS_KERN_CTX | MRC_KERNEL_HAS_DECAP_L3;
	struct cursor c = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	const struct sk_buff___kernel *k;
	__u32 l3 = sizeof(struct ipv6hdr);
	struct ethhdr *eth;
	struct iphdr *ip;
	struct udphdr udp;
	__u8 ip_proto;

	if ((settings.kernel_has & both) != both || !TAKE(&c, eth) || !TAKE(&c, ip) || skb->len > 0xffff)
		return 0;
	k = bpf_cast_to_kern_ctx(skb);
	if (k->inner_network_header == k->network_header)
		return 1; /* popped: the kernel's offsets were right before the pop, and are right again */
	ip_proto = ((struct ipv6hdr *)ip)->nexthdr;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		ip_proto = ip->protocol;
		l3 = ip->ihl * 4;
	}
	return ip_proto == IPPROTO_UDP && !bpf_skb_load_bytes(skb, ETH_HLEN + l3, &udp, sizeof(udp)) && !udp.check;
}

/* Make room for outer headers in front of an encapsulated packet. `whole`: the NIC takes such bursts. Returns 0,
 * ERROR_EALREADY if the packet is a burst that must be segmented first, or another error.
 */
__noinline int make_nested_headroom(struct __sk_buff *skb, __u32 length, __u32 whole)
{
	if (skb->gso_size && !(whole && can_be_cut(skb)))
		return ERROR_EALREADY;
	if (!(settings.kernel_has & MRC_KERNEL_HAS_DECAP_L3) || skb->protocol == bpf_htons(ETH_P_IPV6))
		return bpf_skb_adjust_room(skb, length, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
	/* Only a removal lets a program tell the kernel that the packet is IPv6. */
	return bpf_skb_adjust_room(skb, length + SPARE_BYTES, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) ||
	       bpf_skb_adjust_room(skb, -SPARE_BYTES, BPF_ADJ_ROOM_MAC,
				   BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_DECAP_L3_IPV6);
}

#endif
