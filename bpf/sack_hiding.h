/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Hides SACK blocks for gaps younger than the delay skew between planes.
 *
 * Data on a quicker plane overtakes data on a slower one. The peer's selective acknowledgements (RFC 2018) report that
 * at once. Linux' RACK (RFC 8985) takes overtaken data for lost after a quarter of the least round trip, or a whole
 * one at most. So while the first gap in the peer's received data is younger than the skew, the SACK option becomes an
 * unknown option. Cumulative acknowledgements stay. Where several packets are lost, the first gap moves with each that
 * is repaired: a gap before data that has arrived long ago is old.
 */
#ifndef MRC_SACK_HIDING_H
#define MRC_SACK_HIDING_H

#include "balance.h"
#include "maps.h"
#include "inner.h"

/* TCP option kinds. */
#define TCP_OPTION_NOP 1
#define TCP_OPTION_SACK 5
#define TCP_OPTION_TIMESTAMP 8
#define TCP_OPTION_UNKNOWN 253 /* for experiments (RFC 4727 §6): TCP ignores it */
#define RIGHT_EDGE 6 /* offset of the first block's right edge, in a SACK option (RFC 2018 §3) */
#define SACK_BLOCK 8 /* bytes */
#define GAP_WINDOWS 8 /* for so many windows an edge is remembered: sequence numbers wrap */
#define TIMESTAMP_LENGTH 12 /* bytes, with the two NOPs before it */

/* Return how long gaps are hidden from this host's TCP: 1.5 times the delay skew between planes; 0 = never. */
static __always_inline __u64 sack_hiding_ns(const struct mrc_peer *peer)
{
	__u32 plane_skew_ns = peer->plane_skew_ns;

	return plane_skew_ns > QUEUE_DELAY_NS ? (__u64)plane_skew_ns + plane_skew_ns / 2 : 0;
}

/* Return the offset of a SACK option in a TCP header, or 0. It is behind the timestamp option or alone, as TCP stacks
 * write it.
 */
static __always_inline __u32 sack_at(struct __sk_buff *skb, __u32 at, const struct tcphdr *tcp)
{
	__u32 length = tcp->doff * 4, option = sizeof(*tcp);
	__u8 kind[4];

	if (length < option + sizeof(kind) || bpf_skb_load_bytes(skb, at + option, kind, sizeof(kind)))
		return 0;
	if (kind[2] == TCP_OPTION_TIMESTAMP) {
		option += TIMESTAMP_LENGTH;
		if (length < option + sizeof(kind) || bpf_skb_load_bytes(skb, at + option, kind, sizeof(kind)))
			return 0;
	}
	return kind[0] == TCP_OPTION_NOP && kind[1] == TCP_OPTION_NOP && kind[2] == TCP_OPTION_SACK ? option + 2 : 0;
}

/* Return the hash of an ACK's flow, by the low words of both addresses and the ports. */
static __always_inline __u32 flow_of_ack(struct __sk_buff *skb, const struct mrc_prefix *key, const struct tcphdr *tcp)
{
	__u32 from = offsetof(struct iphdr, saddr), source = 0;

	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		from = offsetof(struct ipv6hdr, saddr) + 12;
	bpf_skb_load_bytes(skb, ETH_HLEN + from, &source, sizeof(source));
	return (*(__u32 *)tcp ^ *(__u32 *)&key->address[12] ^ source * 0x85ebca6bu) * 0x9e3779b1u;
}

/* Hide the SACK option of a popped packet, if its gap is younger than `window_ns`. Returns 1 if it did. */
__noinline int hide_sack(struct __sk_buff *skb, __u64 window_ns)
{
	struct mrc_prefix key = {};
	struct inner inner = {};
	struct mrc_sack_gap *gap;
	struct tcphdr tcp;
	__u32 at, option, flow, slot, ack;
	__be16 from, to;
	__be32 right;
	__u64 now;

	if (parse_inner(skb, &key, &inner) || inner.ip_proto != IPPROTO_TCP || inner.fragment)
		return 0;
	at = ETH_HLEN + inner.l3_length;
	if (bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return 0;
	option = sack_at(skb, at, &tcp);
	if (!option || bpf_skb_load_bytes(skb, at + option, &from, sizeof(from)) ||
	    bpf_skb_load_bytes(skb, at + option + RIGHT_EDGE, &right, sizeof(right)))
		return 0;
	flow = flow_of_ack(skb, &key, &tcp);
	slot = flow >> 20 & (SACK_GAPS - 1);
	gap = bpf_map_lookup_elem(&mrc_sack_gaps, &slot);
	if (!gap)
		return 0;
	now = now_ns();
	if (gap->flow != flow && !aged(now, gap->ns, window_ns))
		return 0; /* the flows would otherwise restart each other's window */
	ack = bpf_ntohl(tcp.ack_seq);
	if (gap->flow != flow || (__s32)(ack - gap->edge) >= 0 ||
	    (ack != gap->ack && aged(now, gap->ns, GAP_WINDOWS * window_ns))) {
		gap->flow = flow;
		gap->edge = bpf_ntohl(right);
		/* The first block may tell of a duplicate (RFC 2883). */
		if ((__s32)(gap->edge - ack) <= 0 && !bpf_skb_load_bytes(skb, at + option + RIGHT_EDGE + SACK_BLOCK,
									 &right, sizeof(right)))
			gap->edge = bpf_ntohl(right);
		if ((__s32)(gap->edge - ack) <= 0)
			gap->edge = ack + 1;
		gap->ack = ack;
		gap->ns = now;
	} else {
		gap->ack = ack;
		if (aged(now, gap->ns, window_ns))
			return 0;
	}
	to = (from & bpf_htons(0xff)) | bpf_htons(TCP_OPTION_UNKNOWN << 8);
	bpf_l4_csum_replace(skb, at + offsetof(struct tcphdr, check), from, to, sizeof(to));
	bpf_skb_store_bytes(skb, at + option, &to, sizeof(to), 0);
	return 1;
}

#endif
