/* Probes: asking peers what has arrived, and answering them.
 *
 * The sender counts data packets per EV, the receiver counts what came by it. A report brings the
 * receiver's counts of all EVs back: sent minus received is the loss on each path, whatever order
 * packets arrived in, and a path on which nothing arrives is seen without a probe on it. What was
 * sent too shortly before the report was asked for may be on its way yet: that is left out.
 */
#ifndef MRC_PROBE_H
#define MRC_PROBE_H

#include "headers.h"
#include "spray.h"

#define REORDERED_NS 1000000000ULL /* older than this is not reordering but a restarted clock */
#define NS_PER_US 1000ULL

struct control {
	struct mrc_hdr mrc;
	struct mrc_probe probe;
};

/* What is asked for, and on which EV. */
struct request {
	__u64 now;
	__u32 host_id;
	__u32 number; /* of the EV */
	__u32 round; /* of the report, if one is asked for */
	__u16 first;
	__u16 counts; /* 0 = no report, only a reply */
};

/* What the program that pushes leaves for mrc_probe, which it runs on a clone. One per CPU. */
struct mrc_ride {
	__u32 armed;
	__u32 reserved;
	struct request request;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct mrc_ride);
} mrc_rides SEC(".maps");

#define TRIALS_AT_ONCE 8 /* EVs that are tried per report */

/* A report being read or written, and what it leads to. One per CPU. */
struct mrc_scratch {
	struct mrc_count count[MRC_REPORT_EVS];
	__u32 trial[TRIALS_AT_ONCE]; /* EVs that lag and are to be probed */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct mrc_scratch);
} mrc_scratch SEC(".maps");

static __always_inline const struct mrc_srh *srh_at(__u32 index)
{
	return settings.srh ? bpf_map_lookup_elem(&mrc_srhs, &index) : 0;
}

/* Bytes behind the MRC header. Room for any SRH: a reply may need a longer one than its request. */
static __always_inline __u32 probe_length(__u32 counts)
{
	__u32 length = sizeof(struct mrc_probe) + (settings.srh ? MRC_SRH_MAX : 0);

	return counts ? length + MRC_BALLAST + counts * sizeof(struct mrc_count) : length;
}

/* ---- asking ----------------------------------------------------------------------------- */

/* Sent at least this long before a report was asked for: not on its way any more. */
static __always_inline __u64 reordering_window(const struct mrc_rounds *rounds)
{
	__u64 window = rounds->rtt_var_ns / 2, least = settings.reorder_us * NS_PER_US;
	__u64 most = settings.probe_gap_us * NS_PER_US;

	if (window > most)
		window = most;
	return window > least ? window : least;
}

struct marking {
	__u64 now;
	__u64 window;
	__u32 index;
	__u32 slot;
};

static long mark_ev(__u64 i, void *context)
{
	struct marking *m = context;
	struct mrc_ev *ev = ev_at(m->index + i);
	__u32 tx, probes, slot = m->slot & (MRC_ROUNDS - 1);

	if (!ev)
		return 1;
	tx = *(volatile __u64 *)&ev->tx_packets;
	probes = *(volatile __u32 *)&ev->probe_seq;
	/* What was there at the last report is older than the window: no two are nearer than that. */
	ev->mark_tx[slot] = aged(m->now, ev->last_tx_ns, m->window) ? tx : ev->noted_tx;
	ev->mark_probes[slot] = aged(m->now, ev->probe_ns, m->window) ? probes : ev->noted_probes;
	ev->noted_tx = tx;
	ev->noted_probes = probes;
	return 0;
}

static __always_inline __u32 report_chunks(void)
{
	return (settings.evs_per_peer + MRC_REPORT_EVS - 1) / MRC_REPORT_EVS;
}

/* Begin a round: note what has been sent on each EV. `asked_ns` is when the last was begun. Returns 1 if
 * this CPU is to ask for the report.
 */
static __noinline int begin_round(struct mrc_rounds *rounds, struct request *r, __u64 asked_ns)
{
	__u32 chunks = report_chunks() ?: 1;
	struct marking m = { .now = r->now };

	if (__sync_val_compare_and_swap(&rounds->asked_ns, asked_ns, r->now) != asked_ns)
		return 0;
	r->round = rounds->round + 1;
	r->first = (r->round % chunks) * MRC_REPORT_EVS;
	r->counts = settings.evs_per_peer - r->first < MRC_REPORT_EVS ? settings.evs_per_peer - r->first :
									MRC_REPORT_EVS;
	m.window = reordering_window(rounds);
	m.index = ev_index(r->host_id, r->first);
	m.slot = r->round / chunks;
	bpf_loop(r->counts, mark_ev, &m, 0);
	rounds->sent_ns[r->round & (MRC_REPORT_SLOTS - 1)] = r->now;
	rounds->round = r->round;
	return 1;
}

static __always_inline int unanswered(const struct mrc_rounds *rounds)
{
	return rounds->round - rounds->settled >= MRC_ROUNDS * report_chunks();
}

/* The EV on which the next report is asked for: usable ones in turn over the planes. While none comes
 * back, every other one by any path: the usable ones may be dead, and only reports tell that others are not.
 */
static __always_inline __u32 report_ev(struct mrc_peer *peer, __u32 host_id, struct mrc_rounds *rounds, __u32 ports)
{
	__u32 turn = rounds->turn++, plane = turn % settings.planes, slot, i;
	const struct mrc_ev *ev;

	if (turn & 1 && unanswered(rounds)) {
		slot = turn / 2 % settings.evs_per_peer;
		ev = ev_at(ev_index(host_id, slot));
		if (ev && ev->configured && ports & (1u << (ev->plane & 31)))
			return slot;
	}
	for (i = 0; i < MRC_MAX_PLANES; i++) {
		if (plane >= settings.planes)
			plane = 0;
		plane &= MRC_MAX_PLANES - 1;
		slot = NO_SLOT;
		if (ports & (1u << plane))
			slot = usable_slot(peer, plane, turn / settings.planes % settings.evs_per_plane);
		if (slot != NO_SLOT)
			return plane * settings.evs_per_plane + slot;
		plane++;
	}
	return NO_SLOT;
}

/* Whether traffic to this peer should carry a request now: after so many packets, but leaving time
 * between two; not while too many are under way; and now and then in any case.
 */
static __always_inline int report_due(const struct mrc_rounds *rounds, const struct mrc_rotation *turn,
				      __u64 now, __u64 asked_ns, __u32 gap_us)
{
	__u64 late = settings.probe_late_us * NS_PER_US;

	/* Never so many at once that the newest must be forgotten before it can have come back. */
	if (late < rounds->rtt_ns / 2)
		late = rounds->rtt_ns / 2;
	if (aged(now, asked_ns, late) && aged(now, asked_ns, reordering_window(rounds)))
		return 1;
	return turn->unprobed >= settings.probe_packets &&
	       aged(now, asked_ns, gap_us * NS_PER_US) &&
	       aged(now, asked_ns, reordering_window(rounds)) &&
	       !unanswered(rounds);
}

/* Let a request ride on this packet, which is not pushed yet, or popped already: mrc_probe makes it of a
 * clone.
 */
static __always_inline void ask_along(struct __sk_buff *skb, const struct mrc_node *self,
				      struct mrc_peer *peer, struct mrc_rotation *turn,
				      struct request *r, __u32 gap_us)
{
	struct mrc_rounds *rounds = rounds_at(r->host_id);
	struct mrc_ride *ride;
	__u64 asked_ns;
	__u32 zero = 0;

	if (!rounds || !self->probe_ifindex)
		return;
	asked_ns = *(volatile __u64 *)&rounds->asked_ns;
	if (!report_due(rounds, turn, r->now, asked_ns, gap_us))
		return;
	r->number = report_ev(peer, r->host_id, rounds, ports_both(self, peer));
	if (r->number == NO_SLOT || !begin_round(rounds, r, asked_ns))
		return;
	turn->unprobed = 0;
	ride = bpf_map_lookup_elem(&mrc_rides, &zero);
	if (!ride)
		return;
	ride->request = *r;
	ride->armed = 1;
	bpf_clone_redirect(skb, self->probe_ifindex, 0);
	ride->armed = 0;
}

static __always_inline void fill_request(struct control *c, const struct mrc_node *self,
					 struct mrc_ev *ev, const struct request *r)
{
	__u32 seq;

	ev->probe_ns = r->now; /* before the count: who reads that must not think it old */
	seq = __sync_fetch_and_add(&ev->probe_seq, 1) + 1;
	c->mrc.version = MRC_WIRE_VERSION;
	c->mrc.type = MRC_PROBE_REQUEST;
	c->mrc.sender = bpf_htons(settings.host_id);
	c->mrc.receiver = bpf_htons(r->host_id);
	c->mrc.ev = bpf_htons(r->number);
	c->mrc.seq = bpf_htonl(seq);
	c->mrc.segments = bpf_htons(1);
	c->mrc.tx_ns = bpf_cpu_to_be64(r->now);
	c->probe.seq = bpf_htonl(seq);
	c->probe.ports = bpf_htons(self->ports);
	c->probe.status = bpf_htons(self->status);
	c->probe.generation = bpf_htonl(self->generation);
	c->probe.round = bpf_htonl(r->round);
	c->probe.first = bpf_htons(r->first);
	c->probe.counts = bpf_htons(r->counts);
	c->probe.tx_ns = bpf_cpu_to_be64(r->now);
}

/* Where a probe's content begins: behind the outer headers of its path. */
static __always_inline __u32 probe_at(const struct mrc_ev *path)
{
	return OUTER_L3 + (settings.srh ? path->srh_len & 0x7f : 0) + sizeof(struct outer_l4);
}

/* Write headers and probe over whatever is in the skb, which has their length already. */
static __always_inline int write_control(struct __sk_buff *skb, struct push *p, const struct control *c)
{
	__u32 at = probe_at(p->ev);

	if (skb->len < at + sizeof(c->probe) || bpf_skb_pull_data(skb, at + sizeof(c->probe)))
		return -1;
	p->payload = skb->len - at;
	if (write_outer(skb, p, &c->mrc))
		return -1;
	return bpf_skb_store_bytes(skb, at, &c->probe, sizeof(c->probe), 0);
}

/* Make the skb a request and send a clone of it. Returns 1 if it went out. */
static __always_inline int send_request(struct __sk_buff *skb, const struct mrc_node *self,
					const struct request *r)
{
	__u32 index = ev_index(r->host_id, r->number);
	struct mrc_ev *ev = ev_at(index);
	struct mrc_plane *plane;
	struct control control = {};
	struct push p = {};
	int sent;

	if (!ev || !ev->configured)
		return 0;
	plane = plane_at(ev->plane);
	if (!plane || !(self->ports & (1u << (ev->plane & 31))))
		return 0;
	fill_request(&control, self, ev, r);
	p.plane = plane;
	p.ev = ev;
	p.srh = srh_at(index);
	p.path_ev = r->number;
	if (write_control(skb, &p, &control))
		return 0;
	if (plane->vlan && bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), plane->vlan))
		return 0;
	sent = !bpf_clone_redirect(skb, plane->ifindex, 0);
	if (plane->vlan && bpf_skb_vlan_pop(skb))
		return 0;
	return sent;
}

/* Make room for headers and probe in front of a clone's packet. A small one stays as it is, behind the
 * counts; ballast and counts take the place of a longer one, which is costly, for it may be a whole burst.
 */
static __always_inline int make_room(struct __sk_buff *skb, __u32 headers, __u32 counts)
{
	__u64 encap = BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	__u32 content = probe_length(counts);

	if (!skb->gso_size && skb->len + content <= settings.inner_mtu)
		/* What was popped counts as encapsulated still: the kernel makes it no outer packet again. */
		return bpf_skb_adjust_room(skb, headers + content, BPF_ADJ_ROOM_MAC, encap) &&
		       bpf_skb_adjust_room(skb, headers + content, BPF_ADJ_ROOM_MAC, 0);
	return bpf_skb_change_tail(skb, ETH_HLEN + content - sizeof(struct mrc_probe), 0) ||
	       bpf_skb_adjust_room(skb, headers + sizeof(struct mrc_probe), BPF_ADJ_ROOM_MAC, encap);
}

/* Make a clone of a packet, not pushed yet or popped already, the request that rides on it. */
static __always_inline int ride(struct __sk_buff *skb, const struct mrc_node *self, const struct request *r)
{
	__u32 index = ev_index(r->host_id, r->number), headers;
	struct mrc_ev *ev = ev_at(index);
	struct control control = {};
	struct push p = {};

	if (!ev || !ev->configured)
		return -1;
	p.plane = plane_at(ev->plane);
	p.ev = ev;
	p.srh = srh_at(index);
	p.path_ev = r->number;
	headers = OUTER_L3 - ETH_HLEN + sizeof(struct outer_l4);
	if (settings.srh)
		headers += ev->srh_len & 0x7f;
	if (!p.plane || make_room(skb, headers, r->counts))
		return -1;
	fill_request(&control, self, ev, r);
	if (write_control(skb, &p, &control))
		return -1;
	return send_skb(skb, p.plane);
}

/* ---- answering -------------------------------------------------------------------------- */

/* What every probe says of its sender: links, status, generation. An older probe that was overtaken
 * on another path must not undo a newer one.
 */
static __always_inline void learn_status(struct mrc_peer *peer, __u32 host_id, const struct control *control)
{
	__u64 sent = bpf_be64_to_cpu(control->mrc.tx_ns);
	__u32 ports = bpf_ntohs(control->probe.ports), before = peer->ports;

	peer->heard_ns = bpf_ktime_get_ns();
	if (sent < peer->ports_ns && peer->ports_ns - sent < REORDERED_NS)
		return;
	peer->ports_ns = sent;
	peer->generation = bpf_ntohl(control->probe.generation);
	peer->status = bpf_ntohs(control->probe.status);
	peer->ports = ports;
	if (ports != before)
		refresh_usable(peer, host_id);
}

/* The reply goes back on a usable EV in the same plane, another one for each probe, so that a
 * failure on one way back is not charged to one way forth; without any, on the mirror of the path.
 */
static __always_inline __u32 reply_ev(struct mrc_peer *peer, const struct control *request,
				      __u32 plane, __u32 number)
{
	__u32 turn = (bpf_ntohl(request->probe.seq) + number) % settings.evs_per_plane;
	__u32 slot = usable_slot(peer, plane, turn);

	return slot == NO_SLOT ? number : plane * settings.evs_per_plane + slot;
}

struct counting {
	struct mrc_scratch *scratch;
	__u32 index;
};

static long count_ev(__u64 i, void *context)
{
	struct counting *c = context;
	__u32 index = c->index + i;
	struct mrc_rx *rx = bpf_map_lookup_elem(&mrc_rxs, &index);
	struct mrc_count *count = &c->scratch->count[i & (MRC_REPORT_EVS - 1)];

	if (!rx)
		return 1;
	count->packets = bpf_htonl(rx->packets);
	count->probes = bpf_htons(rx->probes);
	count->ce = bpf_htons(rx->ce);
	return 0;
}

/* Bytes of the counts of a report, or 0 if there are too many. The compiler is kept from moving the check
 * to where the verifier loses sight of it.
 */
static __always_inline __u32 counts_bytes(const struct control *c)
{
	__u32 bytes = bpf_ntohs(c->probe.counts) * sizeof(struct mrc_count);

	asm volatile("" : "+r"(bytes));
	return bytes <= MRC_REPORT_EVS * sizeof(struct mrc_count) ? bytes : 0;
}

/* Whether a report names EVs that there are, and the packet has room for it. */
static __always_inline int report_fits(const struct control *c, __u32 room)
{
	__u32 first = bpf_ntohs(c->probe.first), counts = bpf_ntohs(c->probe.counts);

	return counts <= MRC_REPORT_EVS && first + counts <= settings.evs_per_peer &&
	       room >= sizeof(c->probe) + MRC_BALLAST + counts * sizeof(struct mrc_count);
}

static __always_inline int write_counts(struct __sk_buff *skb, const struct control *c, __u32 host_id,
					__u32 at)
{
	__u32 zero = 0, bytes = counts_bytes(c);
	struct counting counting = { .index = ev_index(host_id, bpf_ntohs(c->probe.first)) };

	counting.scratch = bpf_map_lookup_elem(&mrc_scratch, &zero);
	if (!counting.scratch || !bytes)
		return -1;
	bpf_loop(bytes / sizeof(struct mrc_count), count_ev, &counting, 0);
	return bpf_skb_store_bytes(skb, at, counting.scratch->count, bytes, 0);
}

static __always_inline int reflect(struct __sk_buff *skb, struct control *c,
				   struct mrc_peer *peer, __u32 host_id, __u32 number,
				   __u32 plane_number)
{
	__u32 index = ev_index(host_id, number), back, back_index, at;
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
	__sync_fetch_and_add(&rx->probes, 1);
	c->mrc.type = MRC_PROBE_REPLY;
	c->mrc.sender = bpf_htons(settings.host_id);
	c->mrc.receiver = bpf_htons(host_id);
	c->mrc.tx_ns = bpf_cpu_to_be64(bpf_ktime_get_ns());
	c->probe.ports = bpf_htons(self->ports);
	c->probe.status = bpf_htons(self->status);
	c->probe.generation = bpf_htonl(self->generation);
	p.plane = plane;
	p.ev = ev;
	p.srh = srh_at(back_index);
	p.path_ev = back;
	if (write_control(skb, &p, c))
		return drop_skb(MRC_DROP_REPLY_FAILED);
	at = probe_at(ev);
	if (c->probe.counts) {
		if (!report_fits(c, skb->len - at))
			return drop_skb(MRC_DROP_BAD_PROBE);
		if (write_counts(skb, c, host_id, at + sizeof(c->probe) + MRC_BALLAST))
			return drop_skb(MRC_DROP_REPLY_FAILED);
	}
	return send_skb(skb, plane);
}

#endif
