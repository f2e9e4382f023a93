/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Delivers popped packets: mrc0 receives them, whichever plane they arrived on.
 *
 * The packets of a flow arrive on every NIC and every queue, because NICs hash the outer headers. Behind mrc0 they
 * meet again. RPS puts them on one CPU by the hash that is set here (overlay.rps_cpus). GRO merges TCP segments:
 * mrc0's veth does, or the NIC after mrc_pop_xdp in burst granularity, where a burst stays on one EV. TCP also finds
 * its cached route again, which it keeps per interface.
 */
#ifndef MRC_DELIVER_H
#define MRC_DELIVER_H

#include "arith.h"
#include "parse.h"
#include "states.h"
#include "tunnel.h"

#define POPPED 0x706f7064 /* "popd": unlikely as metadata of another program */
#define POPPED_OF_BURST (POPPED + 1) /* the same, of a UDP burst */

/* The mark that mrc_pop_xdp leaves for mrc_pop: XDP metadata in front of the packet. It is the same for all TCP
 * packets, because GRO merges none whose metadata differ.
 */
struct popped {
	__u32 mark; /* POPPED; or POPPED_OF_BURST: UDP, and the sender left the burst whole */
};

/* Mark a packet as popped, for mrc_pop. */
static __always_inline void mark_popped(struct xdp_md *ctx, __u32 mark)
{
	struct popped *p;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*p)))
		return;
	p = (void *)(long)ctx->data_meta;
	if ((void *)(p + 1) > (void *)(long)ctx->data)
		return;
	p->mark = mark;
}

/* Return the mark of mrc_pop_xdp, or 0 if it has not popped the packet. */
static __always_inline __u32 popped_by_xdp(struct __sk_buff *skb)
{
	struct popped *p = (void *)(long)skb->data_meta;

	if ((void *)(p + 1) > (void *)(long)skb->data || (p->mark != POPPED && p->mark != POPPED_OF_BURST))
		return 0;
	return p->mark;
}

/* Flow of a popped packet. */
struct flow {
	__u32 hash;
	__u8 ip_proto;
};

/* Hash a packet's flow by source address and ports; the destination is this host. All fragments of a packet get the
 * same hash. Returns -1 if no IP header is where it should be: generic XDP can lose the Ethernet header (see
 * restore_ethernet).
 */
static __always_inline int parse_flow(struct __sk_buff *skb, struct flow *f)
{
	struct cursor c = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	__u32 l4 = ETH_HLEN, ports = 0;
	int whole = 1;
	struct ethhdr *eth;

	if (!TAKE(&c, eth))
		return -1;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip;

		if (!TAKE(&c, ip) || ip->version != 4)
			return -1;
		f->hash = ip->saddr;
		f->ip_proto = ip->protocol;
		whole = !(ip->frag_off & bpf_htons(IP_FRAGMENT));
		l4 += ip->ihl * 4;
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip6;
		__be32 *source;

		if (!TAKE(&c, ip6) || ip6->version != 6)
			return -1;
		source = ip6->saddr.in6_u.u6_addr32;
		f->hash = source[0] ^ source[1] ^ source[2] ^ source[3];
		f->ip_proto = ip6->nexthdr;
		l4 += sizeof(*ip6);
	} else {
		return -1;
	}
	if (whole && (f->ip_proto == IPPROTO_TCP || f->ip_proto == IPPROTO_UDP))
		bpf_skb_load_bytes(skb, l4, &ports, sizeof(ports));
	f->hash = rehash(rehash(f->hash) ^ ports);
	return 0;
}

struct skb_shared_info___kernel {
} __attribute__((preserve_access_index));

#define CACHE_ALIGN(n) (((n) + 63) & ~63u)

/* Return 1 if an skb's truesize covers its memory. It is too small in an skb that a socket of this machine sent and
 * that needed more headroom for outer headers. Merged (skb_gro_receive), such skbs would account for less than their
 * length, and TCP would never open its window again (tcp_measure_rcv_mss). Skbs from a NIC are correct.
 */
static __always_inline int has_valid_truesize(struct __sk_buff *skb)
{
	__u32 overhead = CACHE_ALIGN(bpf_core_type_size(struct sk_buff___kernel)) +
			 CACHE_ALIGN(bpf_core_type_size(struct skb_shared_info___kernel));
	const struct sk_buff___kernel *k = (void *)skb;
	__u32 truesize, end, data_len;

	if (settings.kernel_has & MRC_KERNEL_HAS_KERN_CTX) {
		k = bpf_cast_to_kern_ctx(skb);
		return k->truesize >= k->end + k->data_len + overhead;
	}
	/* The context is the kernel's sk_buff. Reading it costs a call for each field. */
	if (bpf_core_read(&truesize, sizeof(truesize), &k->truesize) ||
	    bpf_core_read(&end, sizeof(end), &k->end) ||
	    bpf_core_read(&data_len, sizeof(data_len), &k->data_len))
		return 0;
	return truesize >= end + data_len + overhead;
}

/* Return 1 if a packet shall pass mrc0's peer, where GRO merges it. Longer packets may not: veth drops what exceeds its
 * MTU. Bursts need not: they are merged already.
 */
static __always_inline int should_merge(struct __sk_buff *skb, const struct mrc_node *self, const struct flow *f,
					int xdp)
{
	return self->merge_ifindex && (!xdp || self->merge_xdp) && f->ip_proto == IPPROTO_TCP && !skb->gso_size &&
	       skb->len <= settings.inner_mtu + ETH_HLEN && has_valid_truesize(skb);
}

/* Deliver a popped packet. `xdp`: mrc_pop_xdp has popped it. `of_burst`: its sender left its burst whole. */
static __noinline int deliver(struct __sk_buff *skb, int xdp, int of_burst)
{
	struct mrc_node *self = node();
	struct ethhdr *eth;
	struct flow f = {};

	if (!self || !self->overlay_ifindex || parse_flow(skb, &f))
		return TC_ACT_UNSPEC;
	if (of_burst && f.ip_proto == IPPROTO_UDP)
		restore_lengths(skb);
	eth = (void *)(long)skb->data;
	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return TC_ACT_UNSPEC;
	__builtin_memcpy(eth, self->overlay_eth, sizeof(self->overlay_eth));
	bpf_set_hash(skb, f.hash);
	if (should_merge(skb, self, &f, xdp)) {
		skb->queue_mapping = f.hash % MRC_MERGE_QUEUES + 1;
		return bpf_redirect(self->merge_ifindex, 0);
	}
	skb->queue_mapping = 0; /* the NIC's queue number; mrc0 can have fewer queues */
	return bpf_redirect(self->overlay_ifindex, BPF_F_INGRESS);
}

#endif
