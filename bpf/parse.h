/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Parses packet headers for XDP and tc alike. TAKE gives the next header and moves the cursor behind it, or gives NULL
 * if the packet ends before.
 */
#ifndef MRC_PARSE_H
#define MRC_PARSE_H

#include <bpf/bpf_endian.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include "arith.h"

#define VLAN_VID_MASK 0x0fff /* in a tag control information field */
#define NEXTHDR_ROUTING 43 /* RFC 8200 §4.4 */
#define IP_OFFSET 0x1fff /* in iphdr.frag_off: fragment offset */
#define IP_FRAGMENT 0x3fff /* in iphdr.frag_off: more-fragments bit and fragment offset */
#define SRH_TYPE 4 /* RFC 8754 §2 */

struct vlan_tag {
	__be16 tci;
	__be16 eth_type;
};

struct srh {
	__u8 next_header;
	__u8 length; /* 8-byte units after the first 8 bytes */
	__u8 type;
	__u8 segments_left;
	__u8 last_entry;
	__u8 flags;
	__be16 tag;
};

struct cursor {
	void *at;
	void *end;
};

/* Give the header at the cursor and move the cursor behind it; NULL if the packet ends before. */
#define TAKE(cursor, out)                                                                          \
	({                                                                                         \
		(out) = (cursor)->at;                                                              \
		(void *)((out) + 1) > (cursor)->end ? ((out) = 0) :                                \
						      ((cursor)->at = (out) + 1, (out));           \
	})

/* The outer headers of a packet that may be mrcd's. `mrc` is NULL unless all were found. */
struct outer {
	struct ethhdr *eth;
	struct vlan_tag *vlan; /* NULL if untagged */
	struct ipv6hdr *ip6;
	struct srh *srh; /* NULL if there is none */
	struct udphdr *udp;
	struct mrc_hdr *mrc;
	__u32 length; /* bytes from the IPv6 header to the end of the MRC header */
};

enum parsed {
	PARSED_NOT_OURS, /* pass it to the stack */
	PARSED_OURS,
	PARSED_TRUNCATED, /* it has mrcd's UDP port, but no room for the MRC header */
	PARSED_BAD_SRH,
};

static __always_inline enum parsed parse_outer(struct cursor *c, struct outer *o, __u16 udp_port)
{
	__be16 eth_type;
	__u8 ip_proto;

	o->vlan = 0;
	o->ip6 = 0;
	o->srh = 0;
	o->length = sizeof(*o->ip6) + sizeof(*o->udp) + sizeof(*o->mrc);
	if (!TAKE(c, o->eth))
		return PARSED_NOT_OURS;
	eth_type = o->eth->h_proto;
	if (eth_type == bpf_htons(ETH_P_8021Q)) {
		if (!TAKE(c, o->vlan))
			return PARSED_NOT_OURS;
		eth_type = o->vlan->eth_type;
	}
	if (eth_type != bpf_htons(ETH_P_IPV6) || !TAKE(c, o->ip6))
		return PARSED_NOT_OURS;
	ip_proto = o->ip6->nexthdr;
	if (ip_proto == NEXTHDR_ROUTING) {
		__u32 skip;

		if (!TAKE(c, o->srh) || o->srh->type != SRH_TYPE || o->srh->next_header != IPPROTO_UDP)
			return PARSED_NOT_OURS;
		if (o->srh->length > (MRC_SRH_MAX - 8) / 8 || o->srh->length % 2)
			return PARSED_BAD_SRH;
		skip = o->srh->length * 8;
		o->length += sizeof(*o->srh) + skip;
		c->at += skip;
		ip_proto = IPPROTO_UDP;
	}
	if (ip_proto != IPPROTO_UDP || !TAKE(c, o->udp) || o->udp->dest != bpf_htons(udp_port))
		return PARSED_NOT_OURS;
	if (o->srh && o->srh->segments_left)
		return PARSED_BAD_SRH;
	if (!TAKE(c, o->mrc))
		return PARSED_TRUNCATED;
	return PARSED_OURS;
}

static __always_inline int same_address(const void *a, const void *b)
{
	const __u32 *x = a, *y = b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3];
}

/* Return 1 if a header has the version of its type. */
static __always_inline int is_right_version(const struct mrc_hdr *mrc)
{
	return mrc->version == (mrc->type == MRC_DATA ? MRC_WIRE_VERSION : MRC_PROBE_VERSION);
}

/* Return 1 if an inner packet is UDP by its IP header; 0 if the header is truncated. */
static __always_inline int is_udp(const void *inner, const void *end)
{
	const struct iphdr *ip = inner; /* an IPv6 header is longer, but its next-header field is within this length */

	if ((void *)(ip + 1) > end)
		return 0;
	return (ip->version == 4 ? ip->protocol : ((const struct ipv6hdr *)inner)->nexthdr) == IPPROTO_UDP;
}

/* Return 1 if less than a packet has arrived, `length` bytes: its IP header says more, or is not whole. In a burst beyond
 * 64 KiB it says 0.
 */
static __always_inline int is_cut(const void *inner, const void *end, __u32 length)
{
	const struct ipv6hdr *ip6 = inner;
	const struct iphdr *ip = inner;

	if ((void *)(ip + 1) > end)
		return 1;
	if (ip->version == 4)
		return bpf_ntohs(ip->tot_len) > length;
	return ip->version == 6 && ((void *)(ip6 + 1) > end || sizeof(*ip6) + bpf_ntohs(ip6->payload_len) > length);
}

/* Return the traffic class of an IPv6 header: its 8 bits straddle two bytes. */
static __always_inline __u8 traffic_class(const struct ipv6hdr *ip6)
{
	return ip6->priority << 4 | ip6->flow_lbl[0] >> 4;
}

#endif
