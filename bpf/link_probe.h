/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Watches this host's own links by link probes: packets that a switch sends back. The carrier T0 · own host turns round
 * at the T0, the carrier T0 · T1 · T0 · own host at the T1. No host answers them, and no EV changes its state by them.
 *
 * A link probe is a probe request whose sender is its receiver. Its EV is the number of the link. It is tagged with a
 * key that only these programs have, so no other host can make one. It counts once, and within LINK_AGE_MAX_NS.
 */
#ifndef MRC_LINK_PROBE_H
#define MRC_LINK_PROBE_H

#include "maps.h"
#include "send_probe.h"

#define LINK_GAP_NS 80000000ULL /* least time between two probes of a link: less than LINK_PROBES_S of the daemon */
#define LINK_AGE_MAX_NS 1000000000ULL /* a probe that took longer is lost */
#define LINK_LABELS 256 /* flow labels and source ports, as many as EVs have; a power of two */

/* Links to probe, one after the other. */
struct link_sweep {
	struct __sk_buff *skb; /* the packet of which probes are made */
	const struct mrc_node *node;
	struct mrc_clock *clock;
	__u32 first; /* link to begin with */
	__u32 sent;
};

static __always_inline struct mrc_link *link_at(__u32 number)
{
	return bpf_map_lookup_elem(&mrc_links, &number);
}

/* Return 1 if a packet says that it is a link probe of this host. Its tag is not checked. */
static __always_inline int is_link_probe(const struct mrc_hdr *mrc)
{
	return mrc->version == MRC_PROBE_VERSION && mrc->type == MRC_PROBE_REQUEST &&
	       mrc->sender == bpf_htons(settings.host_id) && mrc->receiver == mrc->sender;
}

static __always_inline __u64 link_probe_tag(const struct control *c)
{
	return probe_tag(settings.link_key[0], settings.link_key[1], c);
}

/* Write a probe of a link into the skb, and send a clone of it. Returns 1 if it was sent. */
static __always_inline int send_link_probe(const struct link_sweep *s, struct mrc_link *link, __u32 number, __u64 now)
{
	struct mrc_auth *auth = auth_at(settings.host_id);
	struct control c = {};
	struct mrc_ev path = {};
	__u32 label = number & (LINK_LABELS - 1);
	struct push p = { .ev = &path, .path_ev = label, .source_port = MRC_SPORT_BASE + label,
			  .traffic_class = probe_class(0) };
	int sent;

	p.plane = plane_at(link->plane);
	if (!p.plane || !auth)
		return 0;
	__builtin_memcpy(path.dst, link->dst, sizeof(path.dst));
	c.mrc.version = MRC_PROBE_VERSION;
	c.mrc.type = MRC_PROBE_REQUEST;
	c.mrc.sender = bpf_htons(settings.host_id);
	c.mrc.receiver = bpf_htons(settings.host_id);
	c.mrc.ev = bpf_htons(number);
	c.mrc.seq = bpf_htonl(__sync_fetch_and_add(&auth->sent, 1) + 1);
	c.mrc.segments = bpf_htons(1);
	c.mrc.tx_ns = bpf_cpu_to_be64(now);
	c.mrc.auth = link_probe_tag(&c);
	if (write_control(s->skb, &p, &c) ||
	    (p.plane->vlan && bpf_skb_vlan_push(s->skb, bpf_htons(ETH_P_8021Q), p.plane->vlan)))
		return 0;
	sent = !bpf_clone_redirect(s->skb, p.plane->ifindex, 0);
	if (p.plane->vlan && bpf_skb_vlan_pop(s->skb))
		return 0;
	return sent;
}

/* Take a probe out of a link's counts: it was not sent. The sender and mrc_unsent may both notice: the first one changes
 * the probe's time.
 */
static __always_inline void take_back(struct mrc_link *link, __u64 tx_ns)
{
	if (__sync_val_compare_and_swap(&link->tx_ns, tx_ns, tx_ns - 1) != tx_ns)
		return;
	__sync_fetch_and_add(&link->sent, -1);
	if (link->unanswered)
		__sync_fetch_and_add(&link->unanswered, -1);
}

/* Probe the i-th link from the first on, if its NIC has a link. Ends when the budget is spent: all other probes take
 * precedence.
 */
static long probe_link(__u64 i, void *context)
{
	struct link_sweep *s = context;
	__u32 number = s->first + i;
	struct mrc_link *link = link_at(number);
	__u64 now = now_ns(), sent, received;

	if (!link || s->clock->budget <= -(__s64)budget_reserve())
		return 1;
	if (!link->configured || !(s->node->plane_mask & (1u << (link->plane & 31))) ||
	    !aged(now, link->tx_ns, LINK_GAP_NS))
		return 0;
	sent = *(volatile __u64 *)&link->sent;
	received = *(volatile __u64 *)&link->received;
	link->lost = sent > received ? sent - received : 0;
	/* Before the packet: its arrival must find them. */
	link->tx_ns = now;
	__sync_fetch_and_add(&link->unanswered, 1);
	__sync_fetch_and_add(&link->sent, 1);
	if (!send_link_probe(s, link, number, now)) {
		take_back(link, now);
		return 0;
	}
	count_probe(MRC_PROBE_LINK);
	__sync_fetch_and_add(&s->clock->budget, -1);
	s->sent++;
	return 0;
}

/* Count a link probe that has come back. Its MRC header is at offset `at`. A global function, so that the verifier
 * checks it once.
 */
__noinline int pop_link_probe(struct __sk_buff *skb, __u32 at, __u32 plane)
{
	struct mrc_replay *replay = replay_at(settings.host_id);
	__u64 now = now_ns(), rtt;
	struct mrc_link *link;
	struct control c;

	if (bpf_skb_load_bytes(skb, at, &c, sizeof(c)))
		return drop_skb(MRC_DROP_TRUNCATED);
	link = link_at(bpf_ntohs(c.mrc.ev));
	if (!link || !link->configured || !replay)
		return drop_skb(MRC_DROP_BAD_EV);
	if (link->plane != plane)
		return drop_skb(MRC_DROP_WRONG_PLANE);
	if (link_probe_tag(&c) != c.mrc.auth)
		return drop_skb(MRC_DROP_BAD_TAG);
	rtt = now - bpf_be64_to_cpu(c.mrc.tx_ns);
	if (rtt >= LINK_AGE_MAX_NS) /* consumed, and counted as lost */
		return TC_ACT_SHOT;
	if (!is_first(replay->requests, bpf_ntohl(c.mrc.seq), 0))
		return drop_skb(MRC_DROP_REPLAYED);
	link->rtt_ns = link->rtt_ns ? link->rtt_ns - link->rtt_ns / 8 + rtt / 8 : rtt;
	link->rx_ns = now;
	link->unanswered = 0;
	__sync_fetch_and_add(&link->received, 1);
	return TC_ACT_SHOT;
}

#endif
