/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Corrects path statistics for packets that a queueing discipline of this host drops. mrc_push has counted such a
 * packet as sent. This file changes the statistics as if the peer had received it. A link probe (link_probe.h) counts as
 * not sent. Counts packets that others drop at mrc0: what applications send, before mrc_push, and popped packets.
 */
#ifndef MRC_UNSENT_H
#define MRC_UNSENT_H

#include <bpf/bpf_core_read.h>

#include "maps.h"
#include "icmp.h"
#include "link_probe.h"

#define QDISC_CODE 4096 /* bytes; no driver's code is so near to the dequeue function of a queueing discipline */
#define QDISC_BUCKETS 16 /* of net_device.qdisc_hash */
#define QDISC_CHAIN 8 /* qdiscs looked at in each */
#define NIC_UP 1 /* IFF_UP of net_device.flags */
#define NIC_NO_CARRIER (1 << 2) /* __LINK_STATE_NOCARRIER of net_device.state */

/* The kernel's structures; libbpf relocates these fields. */
struct ns_common___kernel {
	__u32 inum;
} __attribute__((preserve_access_index));

struct net___kernel {
	struct ns_common___kernel ns;
} __attribute__((preserve_access_index));

struct possible_net___kernel {
	struct net___kernel *net;
} __attribute__((preserve_access_index));

struct Qdisc_ops___unsent {
	void *dequeue;
	void *owner;
} __attribute__((preserve_access_index));

struct hlist_node___unsent {
	struct hlist_node___unsent *next;
} __attribute__((preserve_access_index));

struct hlist_head___unsent {
	struct hlist_node___unsent *first;
} __attribute__((preserve_access_index));

struct Qdisc___unsent {
	const struct Qdisc_ops___unsent *ops;
	struct hlist_node___unsent hash;
} __attribute__((preserve_access_index));

struct netdev_queue___unsent {
	struct Qdisc___unsent *qdisc;
} __attribute__((preserve_access_index));

struct net_device___unsent {
	__u32 ifindex;
	unsigned int flags;
	unsigned long state;
	struct possible_net___kernel nd_net;
	struct netdev_queue___unsent *_tx;
	unsigned int num_tx_queues;
	struct hlist_head___unsent qdisc_hash[QDISC_BUCKETS];
} __attribute__((preserve_access_index));

struct sk_buff___unsent {
	struct net_device___unsent *dev;
	__u32 len;
	__u32 data_len;
	__u16 queue_mapping;
	__u32 end;
	unsigned char *head;
	unsigned char *data;
} __attribute__((preserve_access_index));

struct skb_shared_info___unsent {
	__u16 gso_size;
} __attribute__((preserve_access_index));

enum skb_drop_reason___kernel { /* those before QDISC_OVERLIMIT since Linux 5.18, the others since 6.13 or later */
	SKB_DROP_REASON_NOT_SPECIFIED___kernel,
	SKB_DROP_REASON_NETFILTER_DROP___kernel,
	SKB_DROP_REASON_IP_RPFILTER___kernel,
	SKB_DROP_REASON_TC_INGRESS___kernel,
	SKB_DROP_REASON_TC_EGRESS___kernel,
	SKB_DROP_REASON_QDISC_DROP___kernel,
	SKB_DROP_REASON_QDISC_OVERLIMIT___kernel,
	SKB_DROP_REASON_QDISC_CONGESTED___kernel,
	SKB_DROP_REASON_FQ_BAND_LIMIT___kernel,
	SKB_DROP_REASON_FQ_HORIZON_LIMIT___kernel,
	SKB_DROP_REASON_FQ_FLOW_LIMIT___kernel,
};

#define HAS_REASON(name) bpf_core_enum_value_exists(enum skb_drop_reason___kernel, name##___kernel)
#define IS_REASON(reason, name)                                                                    \
	(HAS_REASON(name) &&                                                                       \
	 reason == bpf_core_enum_value(enum skb_drop_reason___kernel, name##___kernel))

/* Return 1 for a drop by a queueing discipline. Other drops prove nothing. Some drivers free sent packets as if they
 * dropped them. A veth drops what its far end does not take. Clones of sent packets are dropped where a capture or a
 * socket has no room.
 */
static __always_inline int is_queue_drop(__u32 reason)
{
	return IS_REASON(reason, SKB_DROP_REASON_QDISC_DROP) || IS_REASON(reason, SKB_DROP_REASON_QDISC_OVERLIMIT) ||
	       IS_REASON(reason, SKB_DROP_REASON_QDISC_CONGESTED) ||
	       IS_REASON(reason, SKB_DROP_REASON_FQ_BAND_LIMIT) ||
	       IS_REASON(reason, SKB_DROP_REASON_FQ_HORIZON_LIMIT) ||
	       IS_REASON(reason, SKB_DROP_REASON_FQ_FLOW_LIMIT);
}

/* Return 1 if an address lies in the code of a queueing discipline, or so near to it that it is in no driver: unmapped
 * pages surround the code of a module, and other code of net/ surrounds the kernel's own. Kernels that pack modules side
 * by side have QDISC_CONGESTED, and their modules need no such check.
 */
static __always_inline int is_code_of(const struct Qdisc___unsent *qdisc, __u64 address)
{
	const struct Qdisc_ops___unsent *ops = BPF_CORE_READ(qdisc, ops);
	__u64 dequeue = (__u64)BPF_CORE_READ(ops, dequeue);

	if (HAS_REASON(SKB_DROP_REASON_QDISC_CONGESTED) && BPF_CORE_READ(ops, owner))
		return 0;
	return dequeue && address - dequeue + QDISC_CODE < 2 * QDISC_CODE;
}

/* Return 1 if `caller`, which frees a packet without a reason, is a queueing discipline of this NIC: that of the transmit
 * queue, or one below. Before Linux 6.14, fq_codel, codel and cake do so with packets that they drop as they dequeue. Some
 * drivers do so with packets that were sent.
 */
static __always_inline int is_freed_by_qdisc(const struct net_device___unsent *dev, __u32 queue, __u64 caller)
{
	struct hlist_head___unsent buckets[QDISC_BUCKETS];
	const struct netdev_queue___unsent *tx_queue;
	const struct hlist_node___unsent *node;
	__u32 i, j;

	if (queue >= dev->num_tx_queues)
		return 0;
	tx_queue = (void *)BPF_CORE_READ(dev, _tx) + queue * bpf_core_type_size(struct netdev_queue___unsent);
	if (is_code_of(BPF_CORE_READ(tx_queue, qdisc), caller))
		return 1;
	if (bpf_core_read(buckets, sizeof(buckets), &dev->qdisc_hash))
		return 0;
	for (i = 0; i < QDISC_BUCKETS; i++) {
		node = buckets[i].first;
		for (j = 0; j < QDISC_CHAIN && node; j++) {
			if (is_code_of((void *)node - bpf_core_field_offset(struct Qdisc___unsent, hash), caller))
				return 1;
			node = BPF_CORE_READ(node, next);
		}
	}
	return 0;
}

/* Return 1 if an EV's packets leave through this NIC, and it has a link. Without a link all packets are dropped, and
 * the path must fail.
 */
static __always_inline int leaves_by(const struct net_device___unsent *dev, __u32 plane_number)
{
	const struct mrc_plane *plane = plane_at(plane_number);

	return plane && plane->ifindex == dev->ifindex && dev->nd_net.net->ns.inum == settings.netns &&
	       dev->flags & NIC_UP && !(dev->state & NIC_NO_CARRIER);
}

/* Read the headers of a dropped packet, which begin at `data`. Returns 0 if it is a data packet or a link probe of this
 * host.
 */
static __always_inline int read_unsent(const unsigned char *data, __u32 length, struct mrc_hdr *mrc)
{
	__u32 at = OUTER_L3;
	struct ipv6hdr ip6;
	struct outer_l4 l4;
	__u8 ip_proto;
	struct srh srh;

	if (length < OUTER_L3 + sizeof(l4) || bpf_probe_read_kernel(&ip6, sizeof(ip6), data + ETH_HLEN) ||
	    ip6.version != 6)
		return -1;
	ip_proto = ip6.nexthdr;
	if (ip_proto == NEXTHDR_ROUTING) {
		if (bpf_probe_read_kernel(&srh, sizeof(srh), data + at))
			return -1;
		ip_proto = srh.next_header;
		at += 8 + srh.length * 8;
	}
	if (ip_proto != IPPROTO_UDP || length < at + sizeof(l4) || bpf_probe_read_kernel(&l4, sizeof(l4), data + at) ||
	    l4.udp.dest != bpf_htons(settings.udp_port) || !is_right_version(&l4.mrc) ||
	    l4.mrc.sender != bpf_htons(settings.host_id) || (l4.mrc.type != MRC_DATA && !is_link_probe(&l4.mrc)))
		return -1;
	*mrc = l4.mrc;
	return 0;
}

/* Take a link probe that was not sent out of its link's counts. */
static __always_inline void note_unsent_link_probe(const struct net_device___unsent *dev, const struct mrc_hdr *mrc)
{
	struct mrc_link *link = link_at(bpf_ntohs(mrc->ev));

	if (link && leaves_by(dev, link->plane))
		take_back(link, bpf_be64_to_cpu(mrc->tx_ns)); /* the newest probe only */
}

/* Count a drop, for a reason that has its own, of a packet that mrc0 sends or has received: without it all paths look
 * well.
 */
static __always_inline void note_undelivered(const struct net_device___unsent *dev, enum mrc_drop reason)
{
	struct mrc_node *self = node();

	if (self && dev->ifindex == self->overlay_ifindex && dev->nd_net.net->ns.inum == settings.netns)
		count_drop(reason);
}

/* Note a packet that the kernel drops: the arguments of the raw tracepoint skb:kfree_skb. */
static __always_inline void note_unsent(const struct sk_buff___unsent *skb, __u64 caller, __u32 reason)
{
	const struct net_device___unsent *dev = skb->dev;
	const struct skb_shared_info___unsent *shared;
	__u32 plane, number, index, packets = 1;
	const struct mrc_ev *ev;
	struct mrc_path_stats *stats;
	struct mrc_hdr mrc;
	__u16 gso_size = 0;
	__u64 *count;

	if (!dev)
		return;
	if (IS_REASON(reason, SKB_DROP_REASON_TC_INGRESS) || IS_REASON(reason, SKB_DROP_REASON_TC_EGRESS)) {
		if (!mark_own_drop(0))
			note_undelivered(dev, MRC_DROP_OTHER_PROGRAM);
		return;
	}
	if (IS_REASON(reason, SKB_DROP_REASON_NETFILTER_DROP))
		return note_undelivered(dev, MRC_DROP_FIREWALL);
	if (IS_REASON(reason, SKB_DROP_REASON_IP_RPFILTER))
		return note_undelivered(dev, MRC_DROP_REVERSE_PATH);
	if (!is_queue_drop(reason) && !IS_REASON(reason, SKB_DROP_REASON_NOT_SPECIFIED))
		return;
	if (read_unsent(skb->data, skb->len - skb->data_len, &mrc))
		return;
	if (!is_queue_drop(reason) && !is_freed_by_qdisc(dev, skb->queue_mapping, caller)) /* last: it costs most */
		return;
	if (mrc.type != MRC_DATA) {
		note_unsent_link_probe(dev, &mrc);
		return;
	}
	number = bpf_ntohs(mrc.ev);
	plane = number / settings.evs_per_plane;
	if (number >= settings.evs_per_peer || !leaves_by(dev, plane))
		return;
	index = ev_index(bpf_ntohs(mrc.receiver), number);
	ev = ev_at(index);
	stats = path_stats_at(index);
	count = bpf_map_lookup_elem(&mrc_unsent_packets, &plane);
	/* Packets that arrive on this NIC can be dropped, too, and look like packets of this host. */
	if (!ev || !stats || !count || !is_recent(&mrc, ev, now_ns()))
		return;
	shared = (const void *)(skb->head + skb->end);
	if (!bpf_core_read(&gso_size, sizeof(gso_size), &shared->gso_size) && gso_size)
		packets = bpf_ntohs(mrc.segments);
	__sync_fetch_and_add(&stats->offset, packets);
	*count += packets;
}

#endif
