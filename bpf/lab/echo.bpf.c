/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Emulates thousands of peers for one host of the lab.
 *
 * scripts/labkit/cluster/emulated_peers.py attaches it at tc ingress of the far ends of one host's plane NICs. It
 * counts the host's packets per peer and EV, as the peer's mrc_pop would. It answers probe requests with these counts
 * at once, on the reverse path, and swallows data. Packets are lost only on an EV number that is dead for all peers.
 * No peer sends data or requests of its own.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_helpers.h>

#include "../parse.h"

#define HOSTS_MOST 16512 /* host ids are below; as in labkit.cluster.emulated_peers */
#define HOSTS_PER_T0 40 /* host n ≥ 1 is under T0 1 + (n - 1) / this; as in labkit.cluster.emulated_peers */

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct arrivals {
	__u32 packets;
	__u32 probes;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HOSTS_MOST * MRC_MAX_EVS_PER_PEER);
	__type(key, __u32);
	__type(value, struct arrivals);
} arrivals SEC(".maps");

/* EV number + 1 on which nothing arrives, at any peer, as behind a dead T1; 0 = none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} dead SEC(".maps");

/* Packets from that host, counted before any is lost. */
struct seen {
	__u64 data_bursts;
	__u64 data_packets; /* a burst counts its segments */
	__u64 data_bytes; /* a burst has its headers once */
	__u64 requests;
	__u64 request_bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct seen);
} seen SEC(".maps");

struct scratch {
	struct mrc_count count[MRC_REPORT_EVS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

struct outer_packet {
	struct ethhdr eth;
	struct ipv6hdr ip6;
	struct udphdr udp;
	struct mrc_hdr mrc;
	struct mrc_probe probe;
} __attribute__((packed));

struct counting {
	struct scratch *scratch;
	__u32 index;
};

static long count_ev(__u64 i, void *context)
{
	struct counting *c = context;
	__u32 index = c->index + i;
	struct arrivals *a = bpf_map_lookup_elem(&arrivals, &index);
	struct mrc_count *count = &c->scratch->count[i & (MRC_REPORT_EVS - 1)];

	if (!a)
		return 1;
	count->packets = bpf_htonl(a->packets);
	count->probes = bpf_htons(a->probes);
	count->ce = 0;
	return 0;
}

static __always_inline int write_counts(struct __sk_buff *skb, __u32 host_id, __u32 first, __u32 counts)
{
	__u32 zero = 0, bytes = counts * sizeof(struct mrc_count);
	struct counting c = { .index = host_id * MRC_MAX_EVS_PER_PEER + first };

	c.scratch = bpf_map_lookup_elem(&scratches, &zero);
	OPAQUE(bytes);
	if (!c.scratch || bytes > sizeof(c.scratch->count))
		return -1;
	OPAQUE(bytes);
	if (bytes < sizeof(struct mrc_count))
		return -1;
	bpf_loop(counts, count_ev, &c, 0);
	return bpf_skb_store_bytes(skb, sizeof(struct outer_packet) + MRC_BALLAST, c.scratch->count, bytes, 0);
}

/* Send a packet back to its sender, as switches do with link probes. */
static __always_inline void turn_round(struct outer_packet *p)
{
	__u8 mac[ETH_ALEN];

	__builtin_memcpy(mac, p->eth.h_source, ETH_ALEN);
	__builtin_memcpy(p->eth.h_source, p->eth.h_dest, ETH_ALEN);
	__builtin_memcpy(p->eth.h_dest, mac, ETH_ALEN);
	p->ip6.daddr = p->ip6.saddr;
}

/* Turn a request into the reply of host `host_id`. */
static __always_inline void make_reply(struct outer_packet *p, __u32 host_id)
{
	turn_round(p);
	p->ip6.saddr.s6_addr16[3] = bpf_htons(1 + (host_id - 1) / HOSTS_PER_T0);
	p->ip6.saddr.s6_addr16[7] = bpf_htons(host_id + 1);
	p->mrc.type = MRC_PROBE_REPLY;
	p->mrc.receiver = p->mrc.sender;
	p->mrc.sender = bpf_htons(host_id);
	p->mrc.tx_ns = bpf_cpu_to_be64(bpf_ktime_get_ns());
	p->probe.status = bpf_htons(MRC_WIRE_VERSION << MRC_STATUS_WIRE);
	p->probe.generation = bpf_htonl(1);
}

static __always_inline void count_arrival(const struct outer_packet *p, __u32 bytes)
{
	__u32 zero = 0;
	struct seen *s = bpf_map_lookup_elem(&seen, &zero);

	if (!s)
		return;
	if (p->mrc.type == MRC_DATA) {
		s->data_bursts++;
		s->data_packets += bpf_ntohs(p->mrc.segments);
		s->data_bytes += bytes;
	} else if (p->mrc.type == MRC_PROBE_REQUEST) {
		s->requests++;
		s->request_bytes += bytes;
	}
}

SEC("tc")
int echo(struct __sk_buff *skb)
{
	__u32 host_id, number, index, first, counts, zero = 0, *dead_number;
	struct outer_packet *p;
	struct arrivals *a;

	if (skb->protocol != bpf_htons(ETH_P_IPV6))
		return TC_ACT_UNSPEC;
	bpf_skb_pull_data(skb, sizeof(*p));
	p = (void *)(long)skb->data;
	if ((void *)(p + 1) > (void *)(long)skb->data_end || p->ip6.nexthdr != IPPROTO_UDP ||
	    p->mrc.version != (p->mrc.type == MRC_DATA ? MRC_WIRE_VERSION : MRC_PROBE_VERSION))
		return TC_ACT_UNSPEC;
	if (p->mrc.receiver == p->mrc.sender) {
		turn_round(p);
		return bpf_redirect(skb->ifindex, 0);
	}
	count_arrival(p, skb->len);
	host_id = bpf_ntohs(p->mrc.receiver);
	number = bpf_ntohs(p->mrc.ev);
	index = host_id * MRC_MAX_EVS_PER_PEER + number;
	a = bpf_map_lookup_elem(&arrivals, &index);
	dead_number = bpf_map_lookup_elem(&dead, &zero);
	if (!a || number >= MRC_MAX_EVS_PER_PEER || (dead_number && *dead_number == number + 1))
		return TC_ACT_SHOT;
	if (p->mrc.type != MRC_PROBE_REQUEST) {
		__sync_fetch_and_add(&a->packets, p->mrc.type == MRC_DATA ? bpf_ntohs(p->mrc.segments) : 0);
		return TC_ACT_SHOT;
	}
	__sync_fetch_and_add(&a->probes, 1);
	first = bpf_ntohs(p->probe.first);
	counts = bpf_ntohs(p->probe.counts);
	make_reply(p, host_id);
	if (counts && (first + counts > MRC_MAX_EVS_PER_PEER || write_counts(skb, host_id, first, counts)))
		return TC_ACT_SHOT;
	return bpf_redirect(skb->ifindex, 0);
}
