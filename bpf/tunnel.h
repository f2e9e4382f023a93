/* Packets that are a tunnel's before they are pushed: VXLAN, Geneve, GRE or IPIP over mrc0, and popped packets that this
 * host forwards, which the kernel still takes for a tunnel's where a virtual link has brought them whole.
 *
 * The kernel takes one tunnel per packet: bpf_skb_adjust_room adds no second one, and what it knows of the first stays.
 * That is enough to cut a burst whose outer headers all belong to one "tunnel header": it is copied in front of every
 * segment, and only the lengths of the outermost IP and UDP headers are written anew. So before a burst of VXLAN or Geneve
 * is pushed its own IP and UDP lengths become those of one segment, and after it is popped whole those of all again.
 */
#ifndef MRC_TUNNEL_H
#define MRC_TUNNEL_H

#include <bpf/bpf_core_read.h>
#include <linux/tcp.h>

#include "arith.h"
#include "maps.h"
#include "parse.h"

#define ALREADY (-114) /* -EALREADY */
#define SPARE 4 /* bytes */

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
	__u16 inner_transport_header;
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

/* Write the lengths of an IP packet of UDP: `length` bytes, the IP header included. No checksum is left. Returns 0, or an
 * error.
 */
static __always_inline int write_lengths(struct __sk_buff *skb, __u32 length)
{
	struct ethhdr *eth = (void *)(long)skb->data;
	struct iphdr *ip = (void *)(eth + 1);
	__u32 l3 = sizeof(struct ipv6hdr);
	__be16 total, l4[2] = {}; /* length, checksum */

	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return -1;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		l3 = ip->ihl * 4;
		total = bpf_htons(length);
		ip->check = csum_replace16(ip->check, ip->tot_len, total);
		ip->tot_len = total;
	} else {
		((struct ipv6hdr *)ip)->payload_len = bpf_htons(length - l3);
	}
	l4[0] = bpf_htons(length - l3);
	return bpf_skb_store_bytes(skb, ETH_HLEN + l3 + offsetof(struct udphdr, len), l4, sizeof(l4), 0);
}

/* A popped burst of UDP: each of its lengths may be that of one segment. */
static __noinline void restore_lengths(struct __sk_buff *skb)
{
	struct ethhdr *eth = (void *)(long)skb->data;
	struct iphdr *ip = (void *)(eth + 1);
	__u32 length = skb->len - ETH_HLEN, said;

	if ((void *)(ip + 1) > (void *)(long)skb->data_end || length > 0xffff)
		return;
	if (eth->h_proto == bpf_htons(ETH_P_IP))
		said = bpf_ntohs(ip->tot_len);
	else
		said = bpf_ntohs(((struct ipv6hdr *)ip)->payload_len) + sizeof(struct ipv6hdr);
	if (said < length)
		write_lengths(skb, length);
}

/* Make the lengths of a burst's own tunnel those of one segment. Its UDP checksum, another for each, is left out: over IPv4
 * every receiver takes that (RFC 768, RFC 7348 §5). Returns ALREADY if that does not do: over IPv6 there is a checksum, or
 * the last segment is shorter than the others.
 */
static __always_inline int write_segment_lengths(struct __sk_buff *skb, __u32 l4, const struct sk_buff___kernel *k)
{
	__u32 inner = ETH_HLEN + k->inner_network_header - k->network_header, size = skb->gso_size, headers;
	struct ipv6hdr in;
	struct tcphdr tcp;
	struct udphdr udp;
	__u8 ip_proto;

	if (bpf_skb_load_bytes(skb, l4, &udp, sizeof(udp)) ||
	    (udp.check && skb->protocol != bpf_htons(ETH_P_IP)) || bpf_skb_load_bytes(skb, inner, &in, sizeof(in)))
		return ALREADY;
	ip_proto = in.version == 4 ? ((struct iphdr *)&in)->protocol : in.nexthdr;
	headers = ETH_HLEN + k->inner_transport_header - k->network_header;
	if (ip_proto != IPPROTO_TCP || bpf_skb_load_bytes(skb, headers, &tcp, sizeof(tcp)))
		return ALREADY;
	headers += tcp.doff * 4;
	if (!size || (skb->len - headers) % size)
		return ALREADY;
	return write_lengths(skb, headers - ETH_HLEN + size);
}

/* Make room for outer headers in front of a packet that is a tunnel's. `whole`: its NIC takes such bursts. Returns 0, or
 * ALREADY if this is a burst that has to be cut first, or another error.
 */
__noinline int nest(struct __sk_buff *skb, __u32 length, __u32 whole)
{
	__u32 both = MRC_KERNEL_HAS_KERN_CTX | MRC_KERNEL_HAS_DECAP_L3;

	if (skb->gso_size) {
		const struct sk_buff___kernel *k;
		struct cursor c = { (void *)(long)skb->data, (void *)(long)skb->data_end };
		struct ethhdr *eth;
		struct iphdr *ip;
		__u32 l4 = 0;

		if ((settings.kernel_has & both) != both || !whole || !TAKE(&c, eth) || !TAKE(&c, ip))
			return ALREADY;
		if (eth->h_proto == bpf_htons(ETH_P_IPV6) && ((struct ipv6hdr *)ip)->nexthdr == IPPROTO_UDP)
			l4 = ETH_HLEN + sizeof(struct ipv6hdr);
		else if (eth->h_proto == bpf_htons(ETH_P_IP) && ip->protocol == IPPROTO_UDP)
			l4 = ETH_HLEN + ip->ihl * 4;
		k = bpf_cast_to_kern_ctx(skb);
		/* If both are the same this has been popped, and what the kernel knows was true of it before, and is again. */
		if (k->inner_network_header != k->network_header && (!l4 || write_segment_lengths(skb, l4, k)))
			return ALREADY;
	}
	if (!(settings.kernel_has & MRC_KERNEL_HAS_DECAP_L3) || skb->protocol == bpf_htons(ETH_P_IPV6))
		return bpf_skb_adjust_room(skb, length, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO);
	/* To take something off is the way to make it IPv6 to the kernel. */
	return bpf_skb_adjust_room(skb, length + SPARE, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) ||
	       bpf_skb_adjust_room(skb, -SPARE, BPF_ADJ_ROOM_MAC,
				   BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_DECAP_L3_IPV6);
}

#endif
