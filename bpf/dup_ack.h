/* Acknowledgements that go alone go twice, by two EVs.
 *
 * Where bursts come faster than they are read, TCP says so of all that is under way with one packet. If that is lost,
 * both ends are silent until the sender's timers run out, and the receiver's after that, for a packet of 52
 * bytes on a path that nobody knew to be bad. So one that comes a while after the flow's last has a twin; of those
 * that follow each other closely the next one says the same anyway.
 *
 * What a second one that is alike tells Linux: while data is lost already, as one more duplicate nothing (RFC 6675 counts
 * what is selectively acknowledged); after a tail loss probe that the original had arrived too (RFC 8985 §7.4), so no cut
 * of the window; after a timeout that this was a loss (RFC 5682 §2.1, step 2), unless timestamps say otherwise. Not twice go
 * duplicates that TCP counts (RFC 2883), thus none with a SACK option, nor the last of a connection: there the other end
 * knows no connection any more, and would answer with a reset.
 */
#ifndef MRC_DUP_ACK_H
#define MRC_DUP_ACK_H

#include "send_probe.h"
#include "sack_hiding.h"

#define TCP_HEADER_MAX 60 /* bytes */
#define TCP_FLAGS_ACK 0x10 /* of the flags: no SYN, FIN, RST or PSH, and no echo of congestion */
#define DUP_ACK_GAP_NS 20000 /* from one twin to the next of a CPU: of thousands of flows each ACK may go alone */

/* Whether the connection goes on. A raw socket's may; of what is forwarded nobody knows. */
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

/* Whether this is an acknowledgement and nothing else. */
static __always_inline int is_pure_ack(struct __sk_buff *skb, const struct inner *inner, struct tcphdr *tcp)
{
	__u32 at = ETH_HLEN + inner->l3_length;

	return inner->ip_proto == IPPROTO_TCP && !inner->fragment && !skb->gso_size &&
	       skb->len <= at + TCP_HEADER_MAX && !bpf_skb_load_bytes(skb, at, tcp, sizeof(*tcp)) &&
	       skb->len == at + tcp->doff * 4 && ((__u8 *)tcp)[13] == TCP_FLAGS_ACK;
}

/* Whether an acknowledgement is to have a twin: none of its flow has gone for some time. */
static __always_inline int should_duplicate(struct __sk_buff *skb, const struct inner *inner, const struct tcphdr *tcp,
				      __u64 now)
{
	__u32 slot, zero = 0;
	__u64 *ack, *dup_ack, before;

	if (!settings.dup_ack_us)
		return 0;
	slot = bpf_get_hash_recalc(skb) & (ACK_FLOWS - 1);
	ack = bpf_map_lookup_elem(&mrc_acks, &slot);
	dup_ack = bpf_map_lookup_elem(&mrc_dup_acks, &zero);
	if (!ack || !dup_ack)
		return 0;
	before = *(volatile __u64 *)ack;
	*(volatile __u64 *)ack = now;
	if (!aged(now, before, settings.dup_ack_us * NS_PER_US) || !aged(now, *dup_ack, DUP_ACK_GAP_NS) || !is_connection_open(skb) ||
	    sack_at(skb, ETH_HLEN + inner->l3_length, tcp))
		return 0;
	*dup_ack = now;
	return 1;
}

/* Push the clone. */
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
		return TC_ACT_SHOT; /* the packet itself is dropped and counted next */
	p.traffic_class = inner.traffic_class;
	verdict = push_data(skb, &p, r->host_id, 1, r->now, 0);
	if (verdict == TC_ACT_REDIRECT)
		__sync_fetch_and_add(&peer->dup_acks, 1);
	return verdict;
}

#endif
