/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Hides SACK blocks for gaps younger than the delay skew between planes.
 *
 * Data on a quicker plane overtakes data on a slower one. The peer's selective acknowledgements (RFC 2018) report that
 * at once. Linux' RACK (RFC 8985) takes overtaken data for lost after a quarter of the least round trip, or a whole
 * one at most. So while the first gap in the peer's received data is younger than the skew, the SACK option becomes an
 * unknown option. Cumulative acknowledgements stay. A gap that lasts is a loss, and where packets are lost, others soon
 * will be: for LOSSY_WINDOWS nothing is hidden. TCP would wait for each of them, and send no more than its window.
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
#define LOSSY_WINDOWS 64 /* for so long a flow is shown all gaps after one has lasted */
#define ONE_BLOCK 10 /* bytes of a SACK option with one block */
#define RIGHT_EDGE 6 /* offset of the first block's right edge, in a SACK option (RFC 2018 §3) */
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

/* Note the gap of a flow. Returns 1 if it is to be hidden: it is younger than `window_ns`, and none has lasted lately. */
static __always_inline int note_gap(__u32 flow, __u32 ack, __u64 window_ns)
{
	__u32 slot = flow >> 20 & (SACK_GAPS - 1);
	struct mrc_sack_gap *gap = bpf_map_lookup_elem(&mrc_sack_gaps, &slot);
	__u64 now = now_ns(), kept_ns;

	if (!gap)
		return 0;
	kept_ns = gap->is_lossy ? LOSSY_WINDOWS * window_ns : window_ns;
	if (gap->flow == flow && !gap->is_lossy && gap->ack == ack) {
		if (!aged(now, gap->ns, window_ns))
			return 1;
		gap->is_lossy = 1;
		gap->ns = now;
		return 0;
	}
	/* Flows that share an entry would otherwise restart each other's window. */
	if ((gap->flow != flow || gap->is_lossy) && !aged(now, gap->ns, kept_ns))
		return 0;
	gap->flow = flow;
	gap->ack = ack;
	gap->ns = now;
	gap->is_lossy = 0;
	return 1;
}

/* Return 1 if a SACK option tells of a duplicate (RFC 2883), and of no gap: its only block is before the ACK. */
static __always_inline int is_duplicate_only(struct __sk_buff *skb, __u32 option, __u8 length, __u32 ack)
{
	__be32 right;

	return length == ONE_BLOCK && !bpf_skb_load_bytes(skb, option + RIGHT_EDGE, &right, sizeof(right)) &&
	       (__s32)(bpf_ntohl(right) - ack) <= 0;
}

/* Hide the SACK option of a popped packet, if its gap is younger than `window_ns`. Returns 1 if it did. */
__noinline int hide_sack(struct __sk_buff *skb, __u64 window_ns)
{
	struct mrc_prefix key = {};
	struct inner inner = {};
	struct tcphdr tcp;
	__u32 at, option, ack;
	__be16 from, to;

	if (parse_inner(skb, &key, &inner) || inner.ip_proto != IPPROTO_TCP || inner.fragment)
		return 0;
	at = ETH_HLEN + inner.l3_length;
	if (bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return 0;
	option = sack_at(skb, at, &tcp);
	if (!option || bpf_skb_load_bytes(skb, at + option, &from, sizeof(from)))
		return 0;
	ack = bpf_ntohl(tcp.ack_seq);
	if (is_duplicate_only(skb, at + option, bpf_ntohs(from), ack) ||
	    !note_gap(flow_of_ack(skb, &key, &tcp), ack, window_ns))
		return 0;
	to = (from & bpf_htons(0xff)) | bpf_htons(TCP_OPTION_UNKNOWN << 8);
	bpf_l4_csum_replace(skb, at + offsetof(struct tcphdr, check), from, to, sizeof(to));
	bpf_skb_store_bytes(skb, at + option, &to, sizeof(to), 0);
	return 1;
}

#endif
