/* Takes packets that this host itself drops out of the accounts of their paths: mrc_push counts a packet as sent, and then
 * the queueing discipline of the plane's NIC, or its driver, drops it. It is counted as if it had arrived.
 */
#ifndef MRC_UNSENT_H
#define MRC_UNSENT_H

#include <bpf/bpf_core_read.h>

#include "icmp.h"

#define FOR_A_TAP 4 /* PACKET_OUTGOING of sk_buff.pkt_type */
#define NIC_UP 1 /* IFF_UP of net_device.flags */
#define NIC_NO_CARRIER (1 << 2) /* __LINK_STATE_NOCARRIER of net_device.state */

/* What the kernel knows of a packet that it drops; libbpf finds out where it has these fields. */
struct ns_common___kernel {
	__u32 inum;
} __attribute__((preserve_access_index));

struct net___kernel {
	struct ns_common___kernel ns;
} __attribute__((preserve_access_index));

struct possible_net___kernel {
	struct net___kernel *net;
} __attribute__((preserve_access_index));

struct net_device___unsent {
	__u32 ifindex;
	unsigned int flags;
	unsigned long state;
	struct possible_net___kernel nd_net;
} __attribute__((preserve_access_index));

struct sk_buff___unsent {
	struct net_device___unsent *dev;
	__u32 len;
	__u32 data_len;
	__u32 end;
	unsigned char *head;
	unsigned char *data;
	__u8 pkt_type : 3;
} __attribute__((preserve_access_index));

struct skb_shared_info___unsent {
	__u16 gso_size;
} __attribute__((preserve_access_index));

enum skb_drop_reason___kernel {
	SKB_DROP_REASON_TC_EGRESS___kernel,
};

/* The plane of a NIC of this host that has a link; NO_SLOT if it is none. Without a link all is dropped: then a path that
 * loses everything is to be left.
 */
static __always_inline __u32 unsent_plane(const struct net_device___unsent *dev)
{
	const struct mrc_plane *plane;
	__u32 i;

	if (dev->nd_net.net->ns.inum != settings.netns || !(dev->flags & NIC_UP) || dev->state & NIC_NO_CARRIER)
		return NO_SLOT;
	for (i = 0; i < MRC_MAX_PLANES; i++) {
		plane = plane_at(i);
		if (plane && plane->ifindex == dev->ifindex)
			return i;
	}
	return NO_SLOT;
}

/* Read the headers of a dropped packet, which begin at `data`. Returns 0 if it is data that this host has pushed. */
static __always_inline int read_unsent(const unsigned char *data, __u32 length, struct mrc_hdr *mrc)
{
	__u32 at = OUTER_L3;
	struct ipv6hdr ip6;
	struct outer_l4 l4;
	struct srh srh;

	if (length < OUTER_L3 + sizeof(l4) || bpf_probe_read_kernel(&ip6, sizeof(ip6), data + ETH_HLEN) || ip6.version != 6)
		return -1;
	if (ip6.nexthdr == NEXTHDR_ROUTING) {
		if (bpf_probe_read_kernel(&srh, sizeof(srh), data + at))
			return -1;
		at += 8 + srh.length * 8;
	}
	if (length < at + sizeof(l4) || bpf_probe_read_kernel(&l4, sizeof(l4), data + at) ||
	    l4.udp.dest != bpf_htons(settings.udp_port) || l4.mrc.version != MRC_WIRE_VERSION ||
	    l4.mrc.type != MRC_DATA || l4.mrc.sender != bpf_htons(settings.host_id))
		return -1;
	*mrc = l4.mrc;
	return 0;
}

/* The kernel drops a packet: raw tracepoint skb:kfree_skb, of an skb, the place, and enum skb_drop_reason. */
static __always_inline void note_unsent(const struct sk_buff___unsent *skb, __u32 reason)
{
	const struct net_device___unsent *dev = skb->dev;
	const struct skb_shared_info___unsent *shared;
	__u32 plane, number, index, packets = 1;
	const struct mrc_ev *ev;
	struct mrc_ledger *l;
	struct mrc_hdr mrc;
	__u16 gso_size = 0;
	__u64 *count;

	/* A capture that is too slow drops copies of what was sent. A filter at the NIC is an administrator's, or a test's: a
	 * broken path as any.
	 */
	if (!dev || BPF_CORE_READ_BITFIELD(skb, pkt_type) == FOR_A_TAP || reason == bpf_core_enum_value(enum skb_drop_reason___kernel, SKB_DROP_REASON_TC_EGRESS___kernel))
		return;
	plane = unsent_plane(dev);
	if (plane == NO_SLOT || read_unsent(skb->data, skb->len - skb->data_len, &mrc))
		return;
	number = bpf_ntohs(mrc.ev);
	if (number >= settings.evs_per_peer)
		return;
	index = ev_index(bpf_ntohs(mrc.receiver), number);
	ev = ev_at(index);
	l = ledger_at(index);
	count = bpf_map_lookup_elem(&mrc_unsent_packets, &plane);
	/* What comes in by this NIC may be dropped, too, and look like a packet of this host. */
	if (!ev || !l || !count || !sent_lately(&mrc, ev, bpf_ktime_get_ns()))
		return;
	shared = (const void *)(skb->head + skb->end);
	if (!bpf_core_read(&gso_size, sizeof(gso_size), &shared->gso_size) && gso_size)
		packets = bpf_ntohs(mrc.segments);
	__sync_fetch_and_add(&l->offset, packets);
	*count += packets;
}

#endif
