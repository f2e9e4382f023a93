/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Chooses EVs for traffic that cannot bear reordering: finds a packet's policy, and applies those that do not spray. */
#ifndef MRC_CLASSES_H
#define MRC_CLASSES_H

#include "inner.h"
#include "spray.h"

#define REHASHES 4 /* attempts to find a usable EV by hash, before the search goes in order */
/* 32-bit words of the IP headers. */
#define V4_WORDS (sizeof(struct iphdr) / 4)
#define V6_WORDS (sizeof(struct ipv6hdr) / 4)

static __always_inline __u32 port_number(__be16 port)
{
	__u32 number = bpf_ntohs(port);

	OPAQUE(number);
	return number & 0xffff;
}

/* Return the policy of a packet: of its destination, else of its ports, else of its DSCP. */
static __always_inline __u32 policy_of(struct __sk_buff *skb, const struct inner *inner, __u32 by_prefix)
{
	__u32 zero = 0, by_port = 0;
	const struct mrc_classes *classes;
	__be16 ports[2];

	if (by_prefix || !settings.classes)
		return by_prefix;
	classes = bpf_map_lookup_elem(&mrc_classes, &zero);
	if (!classes)
		return 0;
	if ((inner->ip_proto == IPPROTO_TCP || inner->ip_proto == IPPROTO_UDP) && !inner->fragment &&
	    !bpf_skb_load_bytes(skb, ETH_HLEN + inner->l3_length, ports, sizeof(ports))) {
		by_port = classes->ports[port_number(ports[1])];
		if (!by_port)
			by_port = classes->ports[port_number(ports[0])];
	}
	return by_port ?: classes->dscp[inner->traffic_class >> 2];
}

static __always_inline int is_ev_usable(const struct mrc_peer *peer, __u32 plane_mask, __u32 number)
{
	return plane_mask & (1u << (number / settings.evs_per_plane & 31)) && is_usable(peer, number);
}

/* Return the EV of all packets of a flow, or NO_SLOT. The EV stays the same while it is usable. The flows of an
 * unusable EV spread over the other EVs of its plane, each by the next of its hashes that fits. The flows of a plane
 * without usable EVs spread over the other planes in the same way. Remapped flows do not move when other EVs change.
 * Not inlined, so that spraying pays nothing for it.
 */
__noinline __u32 pinned_ev(struct mrc_peer *peer, __u32 plane_mask, __u32 hash)
{
	__u32 plane = hash % settings.planes, by_slot = hash / settings.planes, i;
	struct choice found;

	if (!peer || !peer->slots)
		return NO_SLOT;
	for (i = 0; i < REHASHES; i++) {
		if (plane_mask & (1u << (plane & 31)) && usable_slot(peer, plane, 0) != NO_SLOT)
			break;
		hash = rehash(hash);
		plane = hash % settings.planes;
	}
	for (i = 0; i < REHASHES; i++) {
		if (is_ev_usable(peer, plane_mask, plane * settings.evs_per_plane + by_slot % peer->slots))
			return plane * settings.evs_per_plane + by_slot % peer->slots;
		by_slot = rehash(by_slot);
	}
	if (!next_usable(peer, plane_mask, plane, 0, by_slot % peer->slots, &found))
		return NO_SLOT;
	return found.plane * settings.evs_per_plane + found.slot;
}

/* Keep a flow on its EV until it pauses for longer than the delay of other EVs exceeds this one's: then no packet
 * overtakes another (Kandula et al., FLARE, 2007).
 */
static __always_inline int flowlet_ev(struct mrc_peer *peer, __u32 host_id, __u32 plane_mask, __u64 now, __u32 hash,
				      struct mrc_rotation *rotation, struct choice *out)
{
	__u32 index = hash & (FLOWLETS - 1), number;
	struct mrc_flowlet *f = bpf_map_lookup_elem(&mrc_flowlets, &index);

	if (!f)
		return choose_ev(peer, host_id, plane_mask, now, rotation, out);
	/* One read: another CPU may write another peer's EV, for a flow that shares the entry. */
	number = *(volatile __u32 *)&f->number;
	if (f->host_id != host_id || aged(now, f->ns, settings.flowlet_us * NS_PER_US) ||
	    !is_ev_usable(peer, plane_mask, number)) {
		if (!choose_ev(peer, host_id, plane_mask, now, rotation, out))
			return 0;
		f->number = out->plane * settings.evs_per_plane + out->slot;
		f->host_id = host_id;
	} else {
		set_choice(number, out);
	}
	f->ns = now;
	return 1;
}

/* Return a hash of a packet's addresses and ports. The kernel's own hash is the socket's, or follows the IPv6 flow
 * label, and TCP changes both after a timeout. The kernel hashes fragments and packets without ports.
 */
__noinline __u32 flow_hash(struct __sk_buff *skb, __u32 ip_proto, __u32 l3_length)
{
	__be32 words[V6_WORDS + 1] = {}; /* the IP header, and the ports behind it */
	int v4 = skb->protocol == bpf_htons(ETH_P_IP);
	__u32 first = v4 ? 3 : 2, n = v4 ? V4_WORDS + 1 : V6_WORDS + 1, hash = 0, i;

	if ((ip_proto != IPPROTO_TCP && ip_proto != IPPROTO_UDP) || l3_length != (n - 1) * 4 ||
	    bpf_skb_load_bytes(skb, ETH_HLEN, words, n * 4) || (v4 && words[1] & bpf_htonl(IP_FRAGMENT)))
		return bpf_get_hash_recalc(skb);
	for (i = 2; i < V6_WORDS + 1; i++)
		if (i >= first && i < n)
			hash = rehash(hash ^ words[i]);
	return hash;
}

/* Choose the EV of a packet by its policy. Returns 0 if there is none. */
static __always_inline int classed_ev(struct __sk_buff *skb, const struct inner *inner, __u32 policy,
				      struct mrc_peer *peer, __u32 host_id, __u32 plane_mask, __u64 now,
				      struct mrc_rotation *rotation, struct choice *out)
{
	switch (policy) {
	case MRC_POLICY_PINNED:
		return set_choice(pinned_ev(peer, plane_mask, flow_hash(skb, inner->ip_proto, inner->l3_length)), out);
	case MRC_POLICY_FLOWLET:
		return flowlet_ev(peer, host_id, plane_mask, now, flow_hash(skb, inner->ip_proto, inner->l3_length),
				  rotation, out);
	default:
		return choose_ev(peer, host_id, plane_mask, now, rotation, out);
	}
}

#endif
