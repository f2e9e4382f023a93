/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sends isolated TCP ACKs twice: the ACK and its copy, which is made of a clone, take two EVs.
 *
 * TCP acknowledges all packets in flight by one ACK if bursts arrive faster than the application reads them. If
 * that ACK is lost, neither end sends a packet until the sender's timers expire, because of 52 bytes on a path that was
 * not known to be bad. So mrc_push copies an ACK that comes some time after the flow's previous one. Of ACKs in close
 * sequence, the next one repeats what the lost one said.
 *
 * "Duplicate ACK" is TCP's word for an ACK that repeats the previous ACK number (RFC 5681 §2). Linux handles the copy
 * as follows. During loss recovery it is one more duplicate ACK, and has no effect (RFC 6675 counts SACKed data).
 * After a tail loss probe it says that the original packet had arrived, too (RFC 8985 §7.4), so the window is not cut.
 * After a timeout it says that the loss was real (RFC 5682 §2.1, step 2), unless timestamps tell otherwise. Two kinds
 * of ACK are not copied. One is any ACK that TCP counts as a duplicate ACK (RFC 2883), thus any with a SACK option.
 * The other is the last ACK of a connection: the other end has closed it, and would answer with a reset.
 *
 * An ACK may say what the receiver has seen of ECN. With DCTCP (RFC 8257 §3.2) ECE holds for the bytes that the ACK
 * covers, and the copy covers none. With Accurate ECN the three flags are the low bits of a counter, which the copy
 * repeats. With RFC 3168 the receiver itself repeats ECE in each ACK until the sender has reacted.
 */
#ifndef MRC_DUP_ACK_H
#define MRC_DUP_ACK_H

#include "send_probe.h"
#include "sack_hiding.h"

#define TCP_HEADER_MAX 60 /* bytes */
#define TCP_FLAGS_ACK 0x10 /* TCP flags of a pure ACK: no SYN, FIN, RST or PSH */
#define TCP_FLAGS_ECN 0xc0 /* CWR and ECE, which a pure ACK may have */
/* Least time between two ACK copies of a CPU: with thousands of flows every ACK can be isolated. */
#define DUP_ACK_GAP_NS 20000

/* Return 1 if the connection stays open, or if the socket is not TCP's. Forwarded packets have no socket: 0. */
static __always_inline int is_connection_open(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	if (!sk)
		return 0;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return 0;
	return sk->protocol != IPPROTO_TCP || sk->state == BPF_TCP_ESTABLISHED || sk->state == BPF_TCP_CLOSE_WAIT;
}

/* Return 1 if a packet is a TCP ACK and nothing else. */
static __always_inline int is_pure_ack(struct __sk_buff *skb, const struct inner *inner, struct tcphdr *tcp)
{
	__u32 at = ETH_HLEN + inner->l3_length;

	return inner->ip_proto == IPPROTO_TCP && !inner->fragment && !skb->gso_size &&
	       skb->len <= at + TCP_HEADER_MAX && !bpf_skb_load_bytes(skb, at, tcp, sizeof(*tcp)) &&
	       skb->len == at + tcp->doff * 4 && (((__u8 *)tcp)[13] & ~TCP_FLAGS_ECN) == TCP_FLAGS_ACK;
}

/* Return 1 if an ACK is to be sent twice: its flow has sent none for some time. */
static __always_inline int should_duplicate(struct __sk_buff *skb, const struct inner *inner, const struct tcphdr *tcp,
					    __u64 now)
{
	__u32 slot, zero = 0;
	__u64 *ack, *dup_ack, before;

	if (!settings.dup_ack_us)
		return 0;
	slot = bpf_get_hash_recalc(skb) & (ACK_FLOWS - 1);
	ack = bpf_map_lookup_elem(&mrc_acks, &slot);
	dup_ack = bpf_map_lookup_elem(&mrc_dup_ack_times, &zero);
	if (!ack || !dup_ack)
		return 0;
	before = *(volatile __u64 *)ack;
	*(volatile __u64 *)ack = now;
	if (!aged(now, before, settings.dup_ack_us * NS_PER_US) || !aged(now, *dup_ack, DUP_ACK_GAP_NS) ||
	    !is_connection_open(skb) || sack_at(skb, ETH_HLEN + inner->l3_length, tcp))
		return 0;
	*dup_ack = now;
	return 1;
}

/* Push the ACK copy, a clone of the ACK. */
static __always_inline int push_dup_ack(struct __sk_buff *skb, const struct mrc_node *self, const struct request *r)
{
	struct mrc_rotation *rotation = bpf_map_lookup_elem(&mrc_rotations, &r->host_id);
	struct mrc_peer *peer = peer_at(r->host_id);
	struct choice choice = { .packets = 1 };
	struct mrc_prefix key = {};
	struct inner inner = {};
	struct push p = {};
	int verdict;

	if (!peer || !rotation || parse_inner(skb, &key, &inner) ||
	    !choose_ev(peer, r->host_id, linked_planes(self, peer), r->now, rotation, &choice) ||
	    push_by(&p, r->host_id, choice.plane * settings.evs_per_plane + choice.slot))
		return TC_ACT_SHOT; /* the ACK itself is dropped next, for the same reason, and counted */
	p.traffic_class = inner.traffic_class;
	verdict = push_data(skb, &p, r->host_id, 1, r->now, 0);
	if (verdict == TC_ACT_REDIRECT)
		__sync_fetch_and_add(&peer->dup_acks, 1);
	return verdict;
}

#endif
