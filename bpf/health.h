/* Knowing a path's health: probes and the counts they carry.
 *
 * The sender counts data packets per EV, the receiver counts what came by it. A probe travels the
 * EV behind the data and brings the receiver's count back: sent minus received is the loss on that
 * path, whatever order packets arrived in. The first reply of a generation sets the base, so that
 * a host that starts anew does not look like loss.
 */
#ifndef MRC_HEALTH_H
#define MRC_HEALTH_H

#include "headers.h"
#include "spray.h"

#define REORDERED_NS 1000000000ULL /* older than this is not reordering but a restarted clock */

struct control {
	struct mrc_hdr mrc;
	struct mrc_probe probe;
};

static __always_inline const struct mrc_srh *srh_at(__u32 index)
{
	return settings.srh ? bpf_map_lookup_elem(&mrc_srhs, &index) : 0;
}

/* Turn an skb of any content into a probe packet on the path `p`. */
static __always_inline int write_control(struct __sk_buff *skb, const struct push *p,
					 const struct control *control)
{
	__u32 length = OUTER_L3 + sizeof(struct outer_l4) + sizeof(struct mrc_probe);

	if (settings.srh)
		length += p->ev->srh_len & 0x7f;
	if (skb->len != length && bpf_skb_change_tail(skb, length, 0))
		return -1;
	if (bpf_skb_pull_data(skb, length) || write_outer(skb, p, &control->mrc))
		return -1;
	return bpf_skb_store_bytes(skb, length - sizeof(control->probe), &control->probe,
				   sizeof(control->probe), 0);
}

/* Send a probe request down one EV: a clone of `skb`, rewritten. Returns 1 if it went out. */
static __always_inline int send_request(struct __sk_buff *skb, const struct mrc_node *node,
					__u32 host_id, __u32 number)
{
	__u32 index = ev_index(host_id, number);
	struct mrc_ev *ev = ev_at(index);
	struct mrc_plane *plane;
	struct control control = {};
	struct push p = {};
	__u64 now;
	int sent;

	if (!ev || !ev->configured)
		return 0;
	plane = plane_at(ev->plane);
	if (!plane || !(node->ports & (1u << (ev->plane & 31))))
		return 0;
	now = bpf_ktime_get_ns();
	ev->probe_seq++;
	ev->probe_ns = now;
	control.mrc.version = MRC_WIRE_VERSION;
	control.mrc.type = MRC_PROBE_REQUEST;
	control.mrc.sender = bpf_htons(settings.host_id);
	control.mrc.ev = bpf_htons(number);
	control.mrc.segments = bpf_htons(1);
	control.mrc.tx_ns = bpf_cpu_to_be64(now);
	control.probe.seq = bpf_htonl(ev->probe_seq);
	control.probe.ports = bpf_htons(node->ports);
	control.probe.status = bpf_htons(node->status);
	control.probe.generation = bpf_htonl(node->generation);
	control.probe.tx_packets = bpf_cpu_to_be64(ev->tx_packets);
	control.probe.tx_ns = bpf_cpu_to_be64(now);
	p.plane = plane;
	p.ev = ev;
	p.srh = srh_at(index);
	p.path_ev = number;
	p.payload = sizeof(control.probe);
	if (write_control(skb, &p, &control))
		return 0;
	if (plane->vlan && bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), plane->vlan))
		return 0;
	sent = !bpf_clone_redirect(skb, plane->ifindex, 0);
	if (plane->vlan && bpf_skb_vlan_pop(skb))
		return 0;
	return sent;
}

/* What every probe says of its sender: links, status, generation. An older probe that was overtaken
 * on another path must not undo a newer one.
 */
static __always_inline void learn_status(struct mrc_peer *peer, const struct control *control)
{
	__u64 sent = bpf_be64_to_cpu(control->mrc.tx_ns);

	peer->heard_ns = bpf_ktime_get_ns();
	if (sent < peer->ports_ns && peer->ports_ns - sent < REORDERED_NS)
		return;
	peer->ports_ns = sent;
	peer->generation = bpf_ntohl(control->probe.generation);
	peer->ports = bpf_ntohs(control->probe.ports);
	peer->status = bpf_ntohs(control->probe.status);
}

/* The reply goes back on a usable EV in the same plane, another one for each probe, so that a
 * failure on one way back is not charged to one way forth; without any, on the mirror of the path.
 */
static __always_inline __u32 reply_ev(const struct mrc_peer *peer, const struct control *request,
				      __u32 plane, __u32 number)
{
	__u32 turn = (bpf_ntohl(request->probe.seq) + number) % settings.evs_per_plane;
	__u32 slot = next_slot(peer->usable[plane & (MRC_MAX_PLANES - 1)], settings.evs_per_plane, turn);

	return slot == NO_SLOT ? number : plane * settings.evs_per_plane + slot;
}

static __always_inline int reflect(struct __sk_buff *skb, struct control *c,
				   const struct mrc_peer *peer, __u32 host_id, __u32 number,
				   __u32 plane_number)
{
	__u32 index = ev_index(host_id, number), back, back_index;
	struct mrc_plane *plane = plane_at(plane_number);
	struct mrc_rx *rx = bpf_map_lookup_elem(&mrc_rxs, &index);
	struct mrc_node *self = node();
	struct mrc_ev *ev;
	struct push p = {};

	back = reply_ev(peer, c, plane_number, number);
	back_index = ev_index(host_id, back);
	ev = ev_at(back_index);
	if (!plane || !rx || !self || !ev || !ev->configured)
		return drop_skb(MRC_DROP_REPLY_FAILED);
	c->mrc.type = MRC_PROBE_REPLY;
	c->mrc.sender = bpf_htons(settings.host_id);
	c->mrc.tx_ns = bpf_cpu_to_be64(bpf_ktime_get_ns());
	c->probe.ports = bpf_htons(self->ports);
	c->probe.status = bpf_htons(self->status);
	c->probe.generation = bpf_htonl(self->generation);
	c->probe.rx_packets = bpf_cpu_to_be64(rx->packets);
	c->probe.rx_ce = bpf_cpu_to_be64(rx->ce);
	p.plane = plane;
	p.ev = ev;
	p.srh = srh_at(back_index);
	p.path_ev = back;
	p.payload = sizeof(c->probe);
	if (write_control(skb, &p, c))
		return drop_skb(MRC_DROP_REPLY_FAILED);
	return send_skb(skb, plane);
}

/* A reply came back: settle what its EV has lost. Changes nothing if nobody asked for it. */
static __always_inline enum mrc_drop settle(const struct control *c, __u32 host_id, __u32 number)
{
	struct mrc_ev *ev = ev_at(ev_index(host_id, number));
	__u64 now = bpf_ktime_get_ns(), tx, rx, asked_ns, rtt;
	__u32 seq = bpf_ntohl(c->probe.seq), generation;

	if (!ev || !ev->configured)
		return MRC_DROP_BAD_EV;
	tx = bpf_be64_to_cpu(c->probe.tx_packets);
	rx = bpf_be64_to_cpu(c->probe.rx_packets);
	asked_ns = bpf_be64_to_cpu(c->probe.tx_ns);
	/* Serial arithmetic: newer than the newest answered, not newer than the newest sent. */
	if ((__s32)(seq - ev->reply_seq) <= 0 || (__s32)(ev->probe_seq - seq) < 0 ||
	    tx > ev->tx_packets || asked_ns > now)
		return MRC_DROP_UNASKED_REPLY;
	generation = bpf_ntohl(c->probe.generation);
	/* New tables over there: what they count says nothing of before. */
	if (generation != ev->rx_generation || rx < ev->base_rx + ev->settled_rx) {
		ev->rx_generation = generation;
		ev->base_tx = tx - ev->settled_tx;
		ev->base_rx = rx - ev->settled_rx;
	}
	ev->settled_rx = rx - ev->base_rx;
	ev->settled_tx = tx - ev->base_tx;
	ev->rx_ce = bpf_be64_to_cpu(c->probe.rx_ce);
	rtt = now - asked_ns;
	ev->rtt_ns = ev->rtt_ns ? ev->rtt_ns - ev->rtt_ns / 8 + rtt / 8 : rtt;
	ev->reply_seq = seq;
	ev->reply_ns = now;
	ev->replies++;
	return MRC_DROP_NONE;
}

#endif
