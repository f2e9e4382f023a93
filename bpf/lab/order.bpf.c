/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Measures reordering: by how many bytes TCP data arrives late, as a histogram (RFC 4737 §4.3, in bytes).
 *
 * scripts/lab attaches it at tc ingress of a receiving host's mrc0, or of its NICs for other traffic. It sees packets
 * in the order in which TCP sees them, including whole and merged bursts. It measures one flow, that of the newest SYN.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>

#include <bpf/bpf_helpers.h>

#include "../parse.h"

#define BUCKETS 32 /* 0: in order; n: late by less than 2^n bytes, and at least 2^(n-1) */

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct order {
	__u32 next; /* highest sequence number received, plus one */
	__u32 ports; /* of the flow, as in its TCP header; 0 = none yet */
	__u64 late[BUCKETS]; /* skbs with data */
};
_Static_assert(sizeof(struct order) == 264, "labkit.order.ORDER");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct order);
} orders SEC(".maps");

/* Return the TCP header of an inner packet and set `bytes` to its payload's length, or return NULL. */
static __always_inline struct tcphdr *data_segment(struct __sk_buff *skb, __u32 *bytes)
{
	struct cursor c = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	struct ethhdr *eth;
	struct tcphdr *tcp;
	__u32 headers = ETH_HLEN;

	if (!TAKE(&c, eth))
		return 0;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip;

		if (!TAKE(&c, ip) || ip->ihl != 5 || ip->protocol != IPPROTO_TCP)
			return 0;
		headers += sizeof(*ip);
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip6;

		if (!TAKE(&c, ip6) || ip6->nexthdr != IPPROTO_TCP)
			return 0;
		headers += sizeof(*ip6);
	} else {
		return 0;
	}
	if (!TAKE(&c, tcp))
		return 0;
	headers += tcp->doff * 4;
	*bytes = skb->len > headers ? skb->len - headers : 0;
	return tcp;
}

static __always_inline __u32 bucket_of_lateness(__u32 bytes)
{
	__u32 bucket = 1;

	for (; bytes > 1 && bucket < BUCKETS - 1; bucket++)
		bytes >>= 1;
	return bucket;
}

SEC("tc")
int lab_order(struct __sk_buff *skb)
{
	const __u32 only = 0;
	struct order *o = bpf_map_lookup_elem(&orders, &only);
	__u32 bytes = 0, seq, bucket = 0;
	struct tcphdr *tcp = data_segment(skb, &bytes);

	if (!o || !tcp)
		return TC_ACT_UNSPEC;
	seq = bpf_ntohl(tcp->seq);
	if (tcp->syn) {
		o->ports = *(__u32 *)tcp;
		o->next = seq + 1;
	}
	if (!bytes || *(__u32 *)tcp != o->ports)
		return TC_ACT_UNSPEC;
	if ((__s32)(seq - o->next) < 0)
		bucket = bucket_of_lateness(o->next - seq);
	if ((__s32)(seq + bytes - o->next) > 0)
		o->next = seq + bytes;
	__sync_fetch_and_add(&o->late[bucket & (BUCKETS - 1)], 1);
	return TC_ACT_UNSPEC;
}
