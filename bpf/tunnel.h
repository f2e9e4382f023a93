/* Packets that are a tunnel's before they are pushed: VXLAN, Geneve, GRE or IPIP over mrc0, and popped packets that this
 * host forwards, which the kernel still takes for a tunnel's where a virtual link has brought them whole.
 *
 * The kernel takes one tunnel per packet: bpf_skb_adjust_room adds no second one, and what it knows of the first stays.
 * A burst of VXLAN or Geneve can be cut all the same: everything up to the Ethernet header in the tunnel is copied in front
 * of each segment, and the lengths of the outermost IP and UDP headers are written anew. The tunnel's own lengths remain
 * those of the burst, until the packet is popped.
 */
#ifndef MRC_TUNNEL_H
#define MRC_TUNNEL_H

#include <bpf/bpf_core_read.h>

#include "arith.h"
#include "maps.h"
#include "parse.h"

#define ERROR_EALREADY (-114) /* -EALREADY */
#define SPARE_BYTES 4 /* bytes */

/* UAPI headers before Linux 6.3 lack them. */
#ifndef BPF_F_ADJ_ROOM_DECAP_L3_IPV4
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV4 (1ULL << 7)
#define BPF_F_ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)
#endif

/* The kernel's own view of an skb; libbpf finds out where it has these fields. */
struct sk_buff___kernel {
	__u32 data_len;
	__u32 truesize;
	__u32 end;
	__u16 network_header;
	__u16 inner_network_header;
	__u8 encapsulation : 1;
} __attribute__((preserve_access_index));

extern void *bpf_cast_to_kern_ctx(void *) __ksym __weak; /* kernel 6.2 and later */

/* Whether the kernel takes a packet for a tunnel's. */
__noinline int encapsulated(struct __sk_buff *skb)
{
	const struct sk_buff___kernel *k = (void *)skb;

	if (settings.kernel_has & MRC_KERNEL_HAS_KERN_CTX) {
		k = bpf_cast_to_kern_ctx(skb);
		return BPF_CORE_READ_BITFIELD(k, encapsulation);
	}
	return BPF_CORE_READ_BITFIELD_PROBED(k, encapsulation);
}

/* Give a popped segment of UDP that has the lengths of its burst its own. Its checksum is none: bursts that have one are cut
 * before they are pushed (can_be_cut).
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

/* Whether the kernel can cut a burst that is a tunnel's once it has outer headers. A tunnel's own checksum would stay that
 * of the burst: mrc0 cuts bursts that have one, and the kernel gives each packet its own.
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
		return 1; /* popped: what the kernel knows was true of it before, and is again */
	ip_proto = ((struct ipv6hdr *)ip)->nexthdr;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		ip_proto = ip->protocol;
		l3 = ip->ihl * 4;
	}
	return ip_proto == IPPROTO_UDP && !bpf_skb_load_bytes(skb, ETH_HLEN + l3, &udp, sizeof(udp)) && !udp.check;
}

/* Make room for outer headers in front of a packet that is a tunnel's. `whole`: its NIC takes such bursts. Returns 0, or
 * ALREADY if this is a burst that has to be cut first, or another error.
 */
__noinline int make_nested_headroom(struct __sk_buff *skb, __u32 length, __u32 whole)
{
	if (skb->gso_size && !(whole && can_be_cut(skb)))
		return ERROR_EALREADY;
	if (!(settings.kernel_has & MRC_KERNEL_HAS_DECAP_L3) || skb->protocol == bpf_htons(ETH_P_IPV6))
		return bpf_skb_adjust_room(skb, length, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
	/* To take something off is the way to make it IPv6 to the kernel. */
	return bpf_skb_adjust_room(skb, length + SPARE_BYTES, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) ||
	       bpf_skb_adjust_room(skb, -SPARE_BYTES, BPF_ADJ_ROOM_MAC,
				   BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_DECAP_L3_IPV6);
}

#endif
