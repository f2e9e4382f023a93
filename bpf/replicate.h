/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sends critical packets on two EVs, and delivers the copy that comes first (IEEE 802.1CB).
 *
 * Bulk data tell of a lost packet by those that follow. A packet that is alone has nobody to tell: TCP waits a second for
 * a lost SYN, and for a lost ACK until a timer expires at either end, because of some bytes on a path that was not known
 * to be bad. So mrc_push has mrc_probe send a copy of it, made of a clone, on the next EV in turn, and sends the packet
 * itself on one of another plane, if any can be used. Critical are
 *
 *  - TCP segments with SYN, FIN or RST;
 *  - TCP segments sent again, which their sequence number tells: it is before the connection's next one. In packet
 *    granularity mrc_push learns that before mrc0 segments them;
 *  - small TCP segments that end a message, with few others of the connection on the way;
 *  - ACKs without data that come some time after their flow's previous one. Of ACKs in close sequence, the next one
 *    repeats what the lost one said;
 *  - packets of a class with this policy.
 *
 * Bursts are not copied: their packets on the wire share one header, and so one number. Nor are packets of classes that
 * keep their EV, as those cannot bear reordering.
 *
 * Both copies have the same number (mrc_hdr.seq). Numbers begin at the generation of the sender's tables, which is
 * random: after a restart, its packets are not taken for ones that have arrived. Each EV counts its copy as sent and as
 * arrived, so reports know nothing of this.
 */
#ifndef MRC_REPLICATE_H
#define MRC_REPLICATE_H

#include "auth.h"
#include "inner.h"
#include "send_probe.h"
#include "spray.h"

#define SOCK_STREAM 1 /* linux/net.h */
#define TCP_HEADER_MAX 60 /* bytes */
#define TCP_FLAGS 13 /* offset in a TCP header */
#define TCP_FLAGS_ACK 0x10 /* flags of a pure ACK: no SYN, FIN, RST or PSH */
#define TCP_FLAGS_ECN 0xc0 /* CWR and ECE, which a pure ACK may have */
#define TCP_FLAG_PSH 0x08
#define TCP_FLAGS_SINGLE 0x07 /* SYN, FIN and RST: a segment that has no other behind it */
#define FEW_SEGMENTS 3 /* before the end of a message: with more, it is bulk data */
/* A CPU may copy so much ahead of its rate: segments that open and end connections. Others only half as much, and
 * ends of messages a quarter, so that a flood of them leaves room for these.
 */
#define COPIES_AHEAD_NS 50000000ULL

/* ---- the sender ---------------------------------------------------------------------------- */

/* Return 1 if a packet is a TCP ACK and nothing else. */
static __always_inline int is_pure_ack(struct __sk_buff *skb, const struct inner *inner)
{
	__u32 at = ETH_HLEN + inner->l3_length;
	struct tcphdr tcp;

	return inner->ip_proto == IPPROTO_TCP && !inner->fragment && !skb->gso_size &&
	       skb->len <= at + TCP_HEADER_MAX && !bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)) &&
	       skb->len == at + tcp.doff * 4 && (((__u8 *)&tcp)[TCP_FLAGS] & ~TCP_FLAGS_ECN) == TCP_FLAGS_ACK;
}

/* Return 1 if a flow has sent no ACK for some time before this one. */
static __always_inline int is_isolated(struct __sk_buff *skb, __u64 now)
{
	__u32 slot;
	__u64 *newest, before;

	if (!settings.dup_ack_us)
		return 0;
	slot = bpf_get_hash_recalc(skb) & (ACK_FLOWS - 1);
	newest = bpf_map_lookup_elem(&mrc_acks, &slot);
	if (!newest)
		return 0;
	before = *(volatile __u64 *)newest;
	*(volatile __u64 *)newest = now;
	return aged(now, before, settings.dup_ack_us * NS_PER_US);
}

/* Return a pointer to the fixed TCP header of a packet of mrc0, or NULL. */
static __always_inline const __u8 *tcp_header(const struct __sk_buff *skb, const struct inner *inner)
{
	const __u8 *tcp = (void *)(long)skb->data + ETH_HLEN + (inner->l3_length & 0x3f);

	return inner->ip_proto == IPPROTO_TCP && !inner->fragment &&
			       (void *)(tcp + sizeof(struct tcphdr)) <= (void *)(long)skb->data_end ?
		       tcp :
		       NULL;
}

/* Return 2 if a connection of this host sends a TCP segment again, 4 if a small one that ends a message and has next to
 * none before it: nothing that follows tells of its loss soon. Else 0. Only at mrc0: behind it, the connection may have
 * sent more. Large ones are mostly the ends of bulk data, where a copy costs more than it brings.
 */
static __always_inline int is_alone(struct __sk_buff *skb, const struct inner *inner)
{
	const __u8 *tcp = tcp_header(skb, inner);
	struct bpf_tcp_sock *connection;
	struct bpf_sock *sk = skb->sk;
	__u32 seq;

	if (!tcp || !sk)
		return 0;
	seq = bpf_ntohl(*(const __be32 *)(tcp + offsetof(struct tcphdr, seq)));
	sk = bpf_sk_fullsock(sk);
	if (!sk || sk->type != SOCK_STREAM) /* the kernel's socket for resets is no connection, but bpf_tcp_sock() takes it */
		return 0;
	connection = bpf_tcp_sock(sk);
	if (!connection)
		return 0;
	if ((__s32)(seq - connection->snd_nxt) < 0)
		return 2;
	return tcp[TCP_FLAGS] & TCP_FLAG_PSH && is_small(skb) && connection->packets_out < FEW_SEGMENTS ? 4 : 0;
}

/* Return 0 if a packet is not critical, else by what part of COPIES_AHEAD_NS it may be copied: 1 = all, 2 = half, 4 = a
 * quarter. `ack`: it is a pure ACK. `alone`: is_alone() has found so before mrc0 segmented it.
 */
static __always_inline int critical_part(struct __sk_buff *skb, const struct inner *inner, __u32 policy, int ack,
					 int at_mrc0, int alone, __u64 now)
{
	const __u8 *tcp;

	if (skb->gso_size || policy == MRC_POLICY_FLOWLET || policy == MRC_POLICY_PINNED)
		return 0;
	tcp = tcp_header(skb, inner);
	if (tcp && tcp[TCP_FLAGS] & TCP_FLAGS_SINGLE)
		return 1;
	if (policy == MRC_POLICY_CRITICAL || alone || (ack && is_isolated(skb, now)))
		return 2;
	return !ack && at_mrc0 ? is_alone(skb, inner) : 0;
}

/* Return 1 if this CPU may copy a packet now, and pay for it. */
static __always_inline int can_pay_for_copy(__u64 now, int part)
{
	__u32 zero = 0;
	__u64 *paid = bpf_map_lookup_elem(&mrc_copied, &zero);

	if (!paid)
		return 0;
	if (aged(now, *paid, 0))
		*paid = now;
	if (*paid - now >= COPIES_AHEAD_NS / part)
		return 0;
	*paid += settings.copy_ns;
	return 1;
}

/* Send a copy of a critical packet, number it (r->report_seq), and have the packet itself avoid its plane. Returns 0 if the
 * CPU has copied too many.
 */
static __always_inline int replicate(struct __sk_buff *skb, const struct mrc_node *self, struct request *r, int part,
				     struct choice *choice)
{
	struct mrc_copies *copies = copies_at(r->host_id);
	__u32 zero = 0;
	struct mrc_clone_job *slot = bpf_map_lookup_elem(&mrc_clone_jobs, &zero);

	if (!copies || !slot || !self->probe_ifindex || !settings.copy_ns)
		return 0;
	if (!can_pay_for_copy(r->now, part)) {
		__sync_fetch_and_add(&copies->sent_once, 1);
		return 0;
	}
	r->report_seq = self->generation + __sync_fetch_and_add(&copies->sent, 1);
	slot->plane = MRC_MAX_PLANES; /* no plane, if no copy is sent */
	send_clone(skb, self, CLONE_COPY, r);
	choice->avoid = 1u << (slot->plane & 31);
	return 1;
}

/* Push the copy, a clone of the packet. */
static __always_inline int push_copy(struct __sk_buff *skb, const struct mrc_node *self, struct mrc_clone_job *slot)
{
	const struct request *r = &slot->request;
	struct mrc_rotation *rotation = bpf_map_lookup_elem(&mrc_rotations, &r->host_id);
	struct push p = { .flags = MRC_FLAG_CRITICAL, .number = r->report_seq };
	struct mrc_peer *peer = peer_at(r->host_id);
	struct choice choice = { .packets = 1 };
	struct mrc_prefix key = {};
	struct inner inner = {};

	if (!peer || !rotation || parse_inner(skb, &key, &inner) ||
	    !choose_ev(peer, r->host_id, linked_planes(self, peer), r->now, rotation, &choice) ||
	    push_by(&p, r->host_id, choice.plane * settings.evs_per_plane + choice.slot))
		return TC_ACT_SHOT; /* the packet itself is dropped next, for the same reason, and counted */
	slot->plane = choice.plane;
	p.traffic_class = inner.traffic_class;
	return push_data(skb, &p, r->host_id, 1, r->now, 0);
}

/* ---- the receiver -------------------------------------------------------------------------- */

/* Return 1 if a critical packet of a peer is the first of its copies to arrive, and note it. One that is too old to tell is
 * delivered, too: a duplicate is better than a loss. `generation`: of the peer's tables. A global function, as probe_tag().
 */
__noinline int is_first_copy(__u32 host_id, __u32 generation, __u32 number)
{
	struct mrc_copies *copies = copies_at(host_id);
	__u32 epoch;

	if (!copies)
		return 1;
	epoch = table_epoch(&copies->generation, &copies->epoch, generation);
	if (is_forgotten(*(volatile __u64 *)seen_word(copies->seen, number), number, epoch)) {
		__sync_fetch_and_add(&copies->unchecked, 1);
	} else if (!is_first(copies->seen, number, epoch)) {
		__sync_fetch_and_add(&copies->eliminated, 1);
		return 0;
	}
	__sync_fetch_and_add(&copies->delivered, 1);
	return 1;
}

#endif
