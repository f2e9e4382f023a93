/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Checks the packet order on each EV: whether the packets of a host leave the fabric complete and in the order sent.
 *
 * scripts/labkit/measure/evorder.py attaches it at the switch ports before one host. It reads the data packets of one
 * sender and changes nothing. mrc_hdr.seq is the number of packets sent on the EV before, so each packet must continue
 * where the previous one ended. The counts are not atomic; two CPUs count the same EV only if the sender sends from
 * two.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../mrc_abi.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

const volatile struct {
	__u32 sender; /* host id */
	__u32 udp_port;
} settings;

/* Written by the program, read by scripts/labkit/measure/evorder.py. All counts are wire packets. */
struct evorder {
	__u64 packets; /* seen */
	__u64 reordered; /* arrived after a packet that was sent later */
	__u64 missing; /* gaps in the sequence, less those that late packets filled */
	__u32 next; /* the next sequence number expected */
	__u16 begun; /* 1 = `next` is known */
	__u16 hop_limit; /* of the last packet's outer header: the lab tells builds of the programs apart by it */
};
_Static_assert(sizeof(struct evorder) == 32, "labkit.measure.evorder.EV");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MRC_MAX_EVS_PER_PEER);
	__type(key, __u32);
	__type(value, struct evorder);
} evorders SEC(".maps");

struct headers {
	struct ethhdr eth;
	struct ipv6hdr ip6;
	struct udphdr udp;
	struct mrc_hdr mrc;
} __attribute__((packed));

SEC("tc")
int lab_evorder(struct __sk_buff *skb)
{
	struct headers h;
	struct evorder *ev;
	__u32 index, seq, segments;
	__s32 ahead;

	if (skb->protocol != bpf_htons(ETH_P_IPV6) || bpf_skb_load_bytes(skb, 0, &h, sizeof(h)) ||
	    h.ip6.nexthdr != IPPROTO_UDP || h.udp.dest != bpf_htons(settings.udp_port) || h.mrc.type != MRC_DATA ||
	    h.mrc.sender != bpf_htons(settings.sender))
		return TC_ACT_UNSPEC;
	index = bpf_ntohs(h.mrc.ev);
	ev = bpf_map_lookup_elem(&evorders, &index);
	if (!ev)
		return TC_ACT_UNSPEC;
	seq = bpf_ntohl(h.mrc.seq);
	segments = bpf_ntohs(h.mrc.segments);
	if (h.mrc.flags & MRC_FLAG_CRITICAL)
		seq = ev->next; /* it has a number of its own */
	/* If a burst was segmented on its way, each of its packets carries the values of the whole burst. */
	if (!skb->gso_size && segments > 1)
		return TC_ACT_UNSPEC;
	ahead = seq - ev->next;
	ev->packets += segments;
	ev->hop_limit = h.ip6.hop_limit;
	if (ev->begun && ahead < 0) {
		ev->reordered += segments;
		ev->missing -= segments;
		return TC_ACT_UNSPEC;
	}
	if (ev->begun)
		ev->missing += ahead;
	ev->begun = 1;
	ev->next = seq + segments;
	return TC_ACT_UNSPEC;
}
