/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Guards the kernel's SRv6 endpoints (End.DX4, End.DT6), which decapsulate whatever reaches their SIDs. They are for
 * traffic of and to detached hosts: a packet passes if this host or its sender is detached, or if the sender's probes say
 * that it sends by plain SRv6, now or lately, or changes its wire version; and if its source is a peer's address on a plane.
 */
#ifndef MRC_KERNEL_SIDS_H
#define MRC_KERNEL_SIDS_H

#include "arith.h"
#include "maps.h"
#include "parse.h"

#define UNHEARD_NS NS_PER_S
#define REROUTE_NS (3 * NS_PER_S) /* packets of a peer that has changed its route are on the way for less */

/* Return 1 if an address is a SID of the kernel on one of this host's planes: its uSID, then a function. */
static __always_inline int is_kernel_sid(const struct in6_addr *address)
{
	const __u32 *sid;
	struct mrc_plane *plane;
	__be16 function = address->in6_u.u6_addr16[3];
	__u32 i;

	if (function != bpf_htons(MRC_UDT4) && function != bpf_htons(MRC_UDT6))
		return 0;
	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++) {
		plane = plane_at(i);
		if (!plane || !plane->ifindex)
			continue;
		sid = (const __u32 *)plane->sid; /* the low 80 bits of a uSID are 0; those of an address are not */
		if (sid[0] == address->in6_u.u6_addr32[0] && !sid[2] && !sid[3] &&
		    sid[1] == (address->in6_u.u6_addr32[1] & bpf_htonl(0xffff0000)))
			return 1;
	}
	return 0;
}

/* Return 1 if a peer was not heard for longer than an idle one is between two sweeps. It may have started anew, and sends
 * to the kernel's SIDs until it has heard this host.
 */
static __always_inline int is_unheard(const struct mrc_peer *peer, __u64 now)
{
	const struct mrc_node *self = node();
	__u64 idle_ns = self ? 3 * NS_PER_US * self->idle_us : 0;

	return !peer->heard_ns || aged(now, peer->heard_ns, idle_ns > UNHEARD_NS ? idle_ns : UNHEARD_NS);
}

/* Return 1 if this host requires tags and has no key of the peer: so it takes nothing from it. */
static __always_inline int has_no_key(__u32 host_id)
{
	const struct mrc_auth *auth = auth_at(host_id);

	return auth && auth->mode == MRC_AUTH_REQUIRED && !(auth->rx_id[0] | auth->rx_id[1]);
}

/* Return 1 if a peer may use the kernel's SIDs now. */
static __always_inline int may_use_kernel_sids(const struct mrc_peer *peer, __u64 now)
{
	const struct mrc_node *self = node();

	return !self || self->status & MRC_STATUS_DETACHED ||
	       peer->status & (MRC_STATUS_DETACHED | MRC_STATUS_PLAIN) || !aged(now, peer->plain_ns, REROUTE_NS) ||
	       (peer->status >> MRC_STATUS_WIRE & 0xff) == MRC_WIRE_CHANGING || is_unheard(peer, now);
}

/* Return 1 if a packet on a plane NIC is for one of the kernel's SIDs and must not reach it. `at`: where the IP header
 * begins. A global function, so that the verifier walks through it once.
 */
__noinline int is_stray_srv6(struct __sk_buff *skb, __u32 at)
{
	struct ipv6hdr *ip6 = (void *)(long)skb->data + (at ? ETH_HLEN : 0);
	void *end = (void *)(long)skb->data_end;
	struct mrc_peer *peer;
	int on_plane = 0;
	__u32 host_id, i;

	if ((void *)(ip6 + 1) > end || !is_kernel_sid(&ip6->daddr))
		return 0;
	host_id = bpf_ntohl(ip6->saddr.in6_u.u6_addr32[3]) - 1; /* Paths.addresses() in mrcd/fabric/paths.py */
	peer = peer_at(host_id);
	if (!peer || !peer->configured || has_no_key(host_id))
		return 1;
	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++)
		on_plane |= same_address(&ip6->saddr, peer->address[i]);
	return !on_plane || !may_use_kernel_sids(peer, now_ns());
}

/* Leave a packet that is not mrcd's to the kernel, unless it is stray. */
static __always_inline int leave_to_kernel(struct __sk_buff *skb, __u32 at)
{
	return is_stray_srv6(skb, at) ? drop_skb(MRC_DROP_STRAY_SRV6) : TC_ACT_UNSPEC;
}

#endif
