/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Injects faults at a switch port of the lab: silently drops, damages, trims or CE-marks packets, or delays them.
 *
 * scripts/lab attaches it at tc ingress or egress of switch ports. It affects only forwarded packets: neighbour
 * discovery and link-local traffic pass, so links stay up and neighbours stay resolved. The unit is an skb: a GSO
 * super-packet is dropped or marked as a whole, damaged in one byte, and never trimmed. Passing packets continue
 * (TC_ACT_UNSPEC), because several faults can share one port.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_helpers.h>

#include "../parse.h"

#define ND_FIRST 133 /* router solicitation (RFC 4861 §4) */
#define ND_LAST 137 /* redirect */
#define UDP_PORT 4797 /* [cluster] udp_port of every lab */
#define SENDERS 256 /* at least as many as a lab has hosts; a power of two */
#define TRIMMED 256 /* bytes that trimming leaves, with the Ethernet header */
#define ADJUST_ROOM_MAX 0xfff /* bytes that bpf_skb_adjust_room() removes at most */
#define TRIM_STEPS 3 /* for jumbo frames */
#define ECN_FIELD 0x30 /* in an IPv6 header's second byte: the two low bits of the traffic class */

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Written by scripts/labkit/faults/fault_program.py, whose RATIOS are these members. Probabilities are in parts of
 * 2^32; 2^32 = always.
 */
struct fault_settings {
	__u64 drop;
	__u64 ce;
	__u64 damage;
	__u64 trim;
};

/* Written by the program; all ports of one fault share it. Counters in fault_program.py has the same members. */
struct fault_counters {
	__u64 passed; /* skbs that were subject to the fault and passed, whole or not */
	__u64 dropped; /* skbs */
	__u64 marked; /* skbs */
	__u64 damaged; /* skbs */
	__u64 trimmed; /* skbs */
	__u64 first_drop_ns; /* CLOCK_MONOTONIC; 0 = none yet */
	__u64 first_data_drops_ns[SENDERS]; /* the same of a host's data packets; index: host id */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fault_settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fault_counters);
} counters SEC(".maps");

/* Written by scripts/labkit/faults/delay.py: ifindex of the device to which the relay listens. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} diversion SEC(".maps");

static __always_inline int chance(__u64 parts)
{
	return bpf_get_prandom_u32() < parts;
}

/* Return 1 for fe80::/10 and ff02::/16, which no switch forwards. */
static __always_inline int link_local(const struct in6_addr *a)
{
	__u16 head = bpf_ntohs(a->s6_addr16[0]);

	return (head & 0xffc0) == 0xfe80 || (head & 0xff0f) == 0xff02;
}

/* Return the IPv6 header of a packet that the switch forwards, or NULL: then leave the packet alone. */
static __always_inline struct ipv6hdr *forwarded(struct __sk_buff *skb)
{
	struct cursor c;
	struct ethhdr *eth;
	struct ipv6hdr *ip6;
	__u8 *icmp_type;

	if (skb->protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	/* Make the headers linear and private, so that they can be read and written. */
	if (bpf_skb_pull_data(skb, sizeof(*eth) + sizeof(*ip6) + sizeof(*icmp_type)))
		return 0;
	c = (struct cursor){ (void *)(long)skb->data, (void *)(long)skb->data_end };
	if (!TAKE(&c, eth) || !TAKE(&c, ip6) || !TAKE(&c, icmp_type))
		return 0;
	if (link_local(&ip6->daddr) || link_local(&ip6->saddr))
		return 0;
	if (ip6->nexthdr == IPPROTO_ICMPV6 && *icmp_type >= ND_FIRST && *icmp_type <= ND_LAST)
		return 0;
	return ip6;
}

/* Mark a packet as a congested switch does (RFC 3168 §5): ECT(0) and ECT(1) become CE, Not-ECT stays. Returns 1 if it
 * was marked.
 */
static __always_inline int mark_ce(struct ipv6hdr *ip6)
{
	__u8 *second = (__u8 *)ip6 + 1;

	if (!(*second & ECN_FIELD) || (*second & ECN_FIELD) == ECN_FIELD)
		return 0;
	*second |= ECN_FIELD;
	return 1;
}

/* Flip a bit of the packet's last byte, as a switch with bad memory does: no frame check notices it. */
static __always_inline int damage(struct __sk_buff *skb)
{
	__u32 last = skb->len - 1;
	__u8 byte;

	if (bpf_skb_load_bytes(skb, last, &byte, sizeof(byte)))
		return 0;
	byte ^= 1;
	return !bpf_skb_store_bytes(skb, last, &byte, sizeof(byte), 0);
}

/* Find the headers of one of mrcd's packets. Returns 0 if it is none. */
static __always_inline int find_headers(struct __sk_buff *skb, struct outer *o)
{
	struct cursor c;

	if (bpf_skb_pull_data(skb, skb->len < TRIMMED ? skb->len : TRIMMED))
		return 0;
	c = (struct cursor){ (void *)(long)skb->data, (void *)(long)skb->data_end };
	return parse_outer(&c, o, UDP_PORT) == PARSED_OURS;
}

/* Cut the end of one of mrcd's packets off, and rewrite the outer lengths, without which Linux would not forward it.
 * The kernel refuses to shorten an encapsulated packet at its end: its beginning is moved there. Returns 1 if it was cut.
 */
static __always_inline int trim(struct __sk_buff *skb)
{
	__u8 kept[TRIMMED - sizeof(struct ethhdr)];
	struct outer o = {};
	__u32 cut = skb->len - TRIMMED, part, step;

	if (skb->gso_size || skb->len <= TRIMMED || cut > TRIM_STEPS * ADJUST_ROOM_MAX || !find_headers(skb, &o))
		return 0;
	o.ip6->payload_len = bpf_htons(bpf_ntohs(o.ip6->payload_len) - cut);
	o.udp->len = bpf_htons(bpf_ntohs(o.udp->len) - cut);
	if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr), kept, sizeof(kept)))
		return 0;
	for (step = 0; step < TRIM_STEPS && cut; step++, cut -= part) {
		part = cut < ADJUST_ROOM_MAX ? cut : ADJUST_ROOM_MAX;
		if (bpf_skb_adjust_room(skb, -(__s32)part, BPF_ADJ_ROOM_MAC, 0))
			return 0;
	}
	return !bpf_skb_store_bytes(skb, sizeof(struct ethhdr), kept, sizeof(kept), 0);
}

static __always_inline void note_time(__u64 *at)
{
	if (!*at)
		__sync_val_compare_and_swap(at, 0, bpf_ktime_get_ns());
}

/* Note when the first data packet of its sender is dropped. */
static __always_inline void note_data_drop(struct __sk_buff *skb, struct fault_counters *count)
{
	struct outer o = {};

	if (find_headers(skb, &o) && o.mrc->type == MRC_DATA)
		note_time(&count->first_data_drops_ns[bpf_ntohs(o.mrc->sender) & (SENDERS - 1)]);
}

SEC("tc")
int lab_fault(struct __sk_buff *skb)
{
	const __u32 only = 0;
	struct fault_settings *fault = bpf_map_lookup_elem(&settings, &only);
	struct fault_counters *count = bpf_map_lookup_elem(&counters, &only);
	struct ipv6hdr *ip6;

	if (!fault || !count)
		return TC_ACT_UNSPEC;
	ip6 = forwarded(skb);
	if (!ip6)
		return TC_ACT_UNSPEC;
	if (chance(fault->drop)) {
		note_time(&count->first_drop_ns);
		note_data_drop(skb, count);
		__sync_fetch_and_add(&count->dropped, 1);
		return TC_ACT_SHOT;
	}
	if (chance(fault->ce) && mark_ce(ip6))
		__sync_fetch_and_add(&count->marked, 1);
	if (chance(fault->damage) && damage(skb))
		__sync_fetch_and_add(&count->damaged, 1);
	if (chance(fault->trim) && trim(skb))
		__sync_fetch_and_add(&count->trimmed, 1);
	__sync_fetch_and_add(&count->passed, 1);
	return TC_ACT_UNSPEC;
}

/* Delay packets, at tc egress: redirect forwarded packets to the relay, which sends them later. */
SEC("tc")
int lab_delay(struct __sk_buff *skb)
{
	const __u32 only = 0;
	__u32 *ifindex = bpf_map_lookup_elem(&diversion, &only);

	return ifindex && forwarded(skb) ? bpf_redirect(*ifindex, 0) : TC_ACT_UNSPEC;
}
