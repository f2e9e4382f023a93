/* The programs of mrcd.
 *
 *   mrc_push   tc egress of mrc0 (burst), tc ingress of its peer (packet): choose an EV, put the
 *              outer headers on, redirect to the plane's NIC
 *   mrc_probe  tc egress of mrc0's peer: make the clone of a packet that mrc_push sends there the probe
 *              request that rides on it
 *   mrc_pop    tc ingress of the plane NICs: account, take the headers off, into the stack;
 *              reflect probe requests, judge the paths by the replies, heed ICMPv6 errors
 *   mrc_pop_xdp  the data half of mrc_pop, before the kernel makes an skb; probes go on to mrc_pop
 *   mrc_sweep  run by the daemon: one packet in, probe requests on the EVs of a peer out
 *   mrc_steer  run by the daemon: change the state of an EV
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <stddef.h>

#include <bpf/bpf_helpers.h>

#include "icmp.h"
#include "judge.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* What no table holds but Python's view repeats: here it is in the object's BTF, for the test that
 * compares the two. libbpf leaves sections alone that it does not know.
 */
const struct {
	struct mrc_hdr hdr;
	struct mrc_probe probe;
	struct mrc_count count;
	struct mrc_event event;
	enum mrc_type type;
	enum mrc_ev_state ev_state;
	enum mrc_reason reason;
	enum mrc_drop drop;
	enum mrc_histogram histogram;
} mrc_btf SEC("btf");

/* ---- push ------------------------------------------------------------------------------- */

struct inner {
	__u32 l3_length; /* of the IP header, bytes */
	__u8 ip_proto;
	__u8 traffic_class;
	__u64 flags; /* none, or those of bpf_skb_adjust_room */
};

/* Read the inner IP header: the destination as a key of the trie, and what the outer one copies. */
static __always_inline enum mrc_drop parse_inner(struct __sk_buff *skb, struct mrc_prefix *key,
						 struct inner *inner)
{
	struct cursor c = { (void *)(long)skb->data, (void *)(long)skb->data_end };
	struct ethhdr *eth;

	key->prefixlen = 128;
	if (!TAKE(&c, eth))
		return MRC_DROP_NOT_IP;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip;

		if (!TAKE(&c, ip))
			return MRC_DROP_NOT_IP;
		__builtin_memset(key->address, 0, 10);
		__builtin_memset(key->address + 10, 0xff, 2);
		__builtin_memcpy(key->address + 12, &ip->daddr, 4);
		inner->traffic_class = ip->tos;
		inner->ip_proto = ip->protocol;
		inner->l3_length = ip->ihl * 4;
		return MRC_DROP_NONE;
	}
	if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip6;

		if (!TAKE(&c, ip6))
			return MRC_DROP_NOT_IP;
		__builtin_memcpy(key->address, &ip6->daddr, 16);
		inner->traffic_class = traffic_class(ip6);
		inner->ip_proto = ip6->nexthdr;
		inner->l3_length = sizeof(*ip6);
		return MRC_DROP_NONE;
	}
	return MRC_DROP_NOT_IP;
}

/* Packets that this skb will be on the wire. */
static __always_inline __u32 wire_packets(struct __sk_buff *skb, const struct inner *inner)
{
	__u32 l4_length = sizeof(struct udphdr), payload;

	if (!skb->gso_size)
		return 1;
	if (skb->gso_segs)
		return skb->gso_segs;
	/* The stack has not counted them yet (forwarded from a virtual machine). */
	if (inner->ip_proto == IPPROTO_TCP) {
		struct tcphdr tcp;

		if (bpf_skb_load_bytes(skb, ETH_HLEN + inner->l3_length, &tcp, sizeof(tcp)))
			return 1;
		l4_length = tcp.doff * 4;
	}
	payload = skb->len - ETH_HLEN - inner->l3_length - l4_length;
	return (payload + skb->gso_size - 1) / skb->gso_size;
}

/* Whether a probe can be made of this packet: its checksum is in the ballast, wherever the NIC writes it. */
static __always_inline int can_carry(const struct inner *inner)
{
	return inner->l3_length <= sizeof(struct ipv6hdr) &&
	       (inner->ip_proto == IPPROTO_TCP || inner->ip_proto == IPPROTO_UDP);
}

SEC("tc")
int mrc_push(struct __sk_buff *skb)
{
	struct inner inner = {};
	struct mrc_prefix key = {};
	struct mrc_hdr mrc = {};
	struct choice choice = {};
	struct request request = {};
	struct push p = {};
	struct mrc_node *self = node();
	struct mrc_rotation *turn;
	struct mrc_peer *peer;
	struct mrc_ev *ev;
	__u32 *host_id, number, index, segments, room, length;
	enum mrc_drop reason;

	reason = parse_inner(skb, &key, &inner);
	if (reason)
		return drop_skb(reason);
	host_id = bpf_map_lookup_elem(&mrc_prefixes, &key);
	peer = host_id ? peer_at(*host_id) : 0;
	turn = host_id ? bpf_map_lookup_elem(&mrc_rotations, host_id) : 0;
	if (!peer || !self || !turn)
		return drop_skb(MRC_DROP_NO_PEER);
	length = skb->len - ETH_HLEN;
	if (!skb->gso_size && length > settings.inner_mtu)
		return drop_skb(MRC_DROP_TOO_BIG);
	request.host_id = *host_id;
	request.now = bpf_ktime_get_ns();
	turn->unprobed++;
	if (can_carry(&inner))
		ask_along(skb, self, peer, turn, &request, 2 * settings.probe_gap_us);
	if (!choose_ev(peer, request.host_id, ports_both(self, peer), turn, &choice))
		return drop_skb(MRC_DROP_NO_USABLE_EV);
	number = choice.plane * settings.evs_per_plane + choice.slot;
	index = ev_index(request.host_id, number);
	ev = ev_at(index);
	p.plane = plane_at(choice.plane);
	if (!ev || !ev->configured || !p.plane)
		return drop_skb(MRC_DROP_NO_USABLE_EV);
	p.ev = ev;
	p.srh = srh_at(index);
	p.path_ev = number;
	p.payload = length;
	p.traffic_class = inner.traffic_class; /* DSCP, and ECN in RFC 6040's normal mode */

	room = sizeof(struct ipv6hdr) + sizeof(struct outer_l4);
	if (settings.srh)
		room += ev->srh_len & 0x7f;
	segments = wire_packets(skb, &inner);
	if (bpf_skb_adjust_room(skb, room, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 |
					BPF_F_ADJ_ROOM_ENCAP_L4_UDP))
		return drop_skb(MRC_DROP_PUSH_FAILED);
	mrc.version = MRC_WIRE_VERSION;
	mrc.type = MRC_DATA;
	mrc.sender = bpf_htons(settings.host_id);
	mrc.receiver = bpf_htons(request.host_id);
	mrc.ev = bpf_htons(number);
	request.now = bpf_ktime_get_ns();
	ev->last_tx_ns = request.now; /* before the count: who reads that must not think it old */
	mrc.seq = bpf_htonl(__sync_fetch_and_add(&ev->tx_packets, segments));
	__sync_fetch_and_add(&ev->tx_bytes, length);
	mrc.segments = bpf_htons(segments);
	mrc.tx_ns = bpf_cpu_to_be64(request.now);
	if (write_outer(skb, &p, &mrc))
		return drop_skb(MRC_DROP_PUSH_FAILED);
	return send_skb(skb, p.plane);
}

SEC("tc")
int mrc_probe(struct __sk_buff *skb)
{
	struct mrc_node *self = node();
	__u32 zero = 0;
	struct mrc_ride *mine = bpf_map_lookup_elem(&mrc_rides, &zero);
	int verdict;

	if (!mine || !self || !mine->armed)
		return TC_ACT_UNSPEC; /* the kernel's own, of the interface */
	mine->armed = 0;
	verdict = ride(skb, self, &mine->request);
	return verdict < 0 ? drop_skb(MRC_DROP_PROBE_FAILED) : verdict;
}

/* ---- pop -------------------------------------------------------------------------------- */

/* A packet with our headers: whose is it, and by which path did it come? */
struct arrival {
	struct mrc_peer *peer;
	__u32 host_id;
	__u32 ev;
	__u32 plane;
};

#define NO_PLANE MRC_MAX_PLANES

/* The plane by which a packet that is addressed to this host came in, or NO_PLANE. */
static __always_inline __u32 arrival_plane(const struct ipv6hdr *ip6, __u32 ifindex, __u16 vlan)
{
	struct mrc_plane *plane = 0;
	__u32 i;

	for (i = 0; i < MRC_MAX_PLANES && i < settings.planes; i++) {
		plane = plane_at(i);
		if (plane && plane->ifindex == ifindex && plane->vlan == vlan)
			break;
		plane = 0;
	}
	if (plane && (same_address(&ip6->daddr, plane->sid) ||
		      same_address(&ip6->daddr, plane->address)))
		return i;
	return NO_PLANE;
}

static __always_inline enum mrc_drop verify_arrival(const struct outer *o, __u32 plane,
						    struct arrival *a)
{
	if (o->mrc->version != MRC_WIRE_VERSION)
		return MRC_DROP_BAD_VERSION;
	if (o->mrc->type < MRC_DATA || o->mrc->type > MRC_PROBE_REPLY)
		return MRC_DROP_BAD_TYPE;
	if (o->mrc->receiver != bpf_htons(settings.host_id))
		return MRC_DROP_WRONG_RECEIVER;
	a->host_id = bpf_ntohs(o->mrc->sender);
	a->peer = peer_at(a->host_id);
	if (!a->peer || !a->peer->configured)
		return MRC_DROP_UNKNOWN_SENDER;
	a->ev = bpf_ntohs(o->mrc->ev);
	if (a->ev >= settings.evs_per_plane * settings.planes)
		return MRC_DROP_BAD_EV;
	a->plane = a->ev / settings.evs_per_plane;
	if (a->plane != plane)
		return MRC_DROP_WRONG_PLANE;
	if (!same_address(&o->ip6->saddr, a->peer->address[a->plane & (MRC_MAX_PLANES - 1)]))
		return MRC_DROP_WRONG_SOURCE;
	return MRC_DROP_NONE;
}

static __always_inline void count_arrival(const struct arrival *a, __u32 packets, __u32 bytes, int ce)
{
	__u32 index = ev_index(a->host_id, a->ev);
	struct mrc_rx *rx = bpf_map_lookup_elem(&mrc_rxs, &index);

	if (!rx)
		return;
	__sync_fetch_and_add(&rx->packets, packets);
	__sync_fetch_and_add(&rx->bytes, bytes);
	if (ce)
		__sync_fetch_and_add(&rx->ce, packets);
}

#define SMALL 512 /* bytes: most acknowledgements are */

/* Ask for a report when a small packet has come from the peer, an acknowledgement mostly: what it answers
 * has been on its way for a round trip, and cloning it is cheap. Pushing asks where none comes in time.
 */
static __always_inline void ask_back(struct __sk_buff *skb, const struct arrival *a)
{
	struct request request = { .host_id = a->host_id };
	struct mrc_rotation *turn = bpf_map_lookup_elem(&mrc_rotations, &request.host_id);
	struct mrc_node *self = node();
	struct mrc_prefix key = {};
	struct inner inner = {};

	if (!turn || !self || skb->gso_size || skb->len > SMALL || turn->unprobed < settings.probe_packets ||
	    parse_inner(skb, &key, &inner) || !can_carry(&inner))
		return;
	request.now = bpf_ktime_get_ns();
	ask_along(skb, self, a->peer, turn, &request, settings.probe_gap_us);
}

/* Outer lengths agree with each other. A whole burst may be longer than a 16-bit length can say,
 * and its lengths are rewritten only where it is cut, so theirs is not checked.
 */
static __always_inline int lengths_agree(const struct outer *o, __u32 skb_length, int burst)
{
	__u32 l3 = (void *)o->ip6 - (void *)o->eth;
	__u32 payload = bpf_ntohs(o->ip6->payload_len), udp = bpf_ntohs(o->udp->len);

	if (burst)
		return 1;
	return l3 + sizeof(*o->ip6) + payload <= skb_length &&
	       udp + o->length - sizeof(*o->ip6) - sizeof(struct outer_l4) == payload &&
	       udp >= sizeof(struct outer_l4);
}

static __always_inline int pop_data(struct __sk_buff *skb, const struct outer *o,
				    const struct arrival *a)
{
	__u32 segments = bpf_ntohs(o->mrc->segments), packets = 1, length;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	struct ethhdr *eth;
	enum mrc_drop reason;
	__u16 inner_proto = 0;
	int ce = 0;

	if (skb->gso_size) {
		if (segments < 2)
			return drop_skb(MRC_DROP_GLUED);
		packets = segments;
	}
	length = skb->len - ETH_HLEN - o->length;
	reason = merge_ecn(o->ip6, o->mrc + 1, (void *)(long)skb->data_end, &inner_proto, &ce);
	count_arrival(a, packets, length, ce);
	if (reason)
		return drop_skb(reason);
	flags |= inner_proto == bpf_htons(ETH_P_IP) ? BPF_F_ADJ_ROOM_DECAP_L3_IPV4 :
						      BPF_F_ADJ_ROOM_DECAP_L3_IPV6;
	if (bpf_skb_adjust_room(skb, -(__s32)o->length, BPF_ADJ_ROOM_MAC, flags))
		return drop_skb(MRC_DROP_POP_FAILED);
	eth = (void *)(long)skb->data;
	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return drop_skb(MRC_DROP_POP_FAILED);
	eth->h_proto = inner_proto;
	return TC_ACT_UNSPEC;
}

/* Probes: the header is verified, what follows it is not yet. */
static __always_inline int pop_control(struct __sk_buff *skb, const struct outer *o,
				       const struct arrival *a)
{
	struct control c;

	c.mrc = *o->mrc;
	if (bpf_ntohs(o->udp->len) < sizeof(struct outer_l4) + sizeof(c.probe) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + o->length, &c.probe, sizeof(c.probe)))
		return drop_skb(MRC_DROP_TRUNCATED);
	if (c.mrc.type == MRC_PROBE_REPLY) {
		enum mrc_drop reason = settle(skb, &c, a->peer, a->host_id, a->ev, ETH_HLEN + o->length);

		if (reason)
			return drop_skb(reason);
		learn_status(a->peer, a->host_id, &c);
		return TC_ACT_SHOT; /* consumed, not dropped */
	}
	learn_status(a->peer, a->host_id, &c);
	return reflect(skb, &c, a->peer, a->host_id, a->ev, a->plane);
}

#define ICMP_QUOTE                                                                                 \
	(ETH_HLEN + 2 * sizeof(struct ipv6hdr) + sizeof(struct icmp6) + sizeof(struct outer_l4))

/* An ICMPv6 packet: if it is an error that quotes a packet of ours, it counts against that one's EV. The
 * stack gets it all the same.
 */
static __noinline int take_icmp(struct __sk_buff *skb, __u16 vlan)
{
	__u32 wanted = ICMP_QUOTE + (settings.srh ? MRC_SRH_MAX : 0), number;
	struct mrc_plane *plane;
	struct ipv6hdr *ip6;
	struct ethhdr *eth;
	struct cursor c;

	bpf_skb_pull_data(skb, skb->len < wanted ? skb->len : wanted);
	c.at = (void *)(long)skb->data;
	c.end = (void *)(long)skb->data_end;
	if (!TAKE(&c, eth) || !TAKE(&c, ip6))
		return 0;
	number = arrival_plane(ip6, skb->ifindex, vlan);
	plane = plane_at(number);
	if (plane)
		heed_icmp(&c, plane, number);
	return 0;
}

/* Behind generic XDP, kernels up to 6.18 at least hand tc a copy of the packet that has forgotten the
 * length of its Ethernet header, and so begins at the IP header. Give it one, without addresses, if
 * it is for this host; the stack knows the true one of all others.
 */
static __always_inline int restore_ethernet(struct __sk_buff *skb, __u16 vlan)
{
	__be16 eth_type = bpf_htons(ETH_P_IPV6);
	struct ethhdr *eth = (void *)(long)skb->data;
	struct ipv6hdr *ip6 = (void *)(long)skb->data;

	if ((void *)(eth + 1) > (void *)(long)skb->data_end || eth->h_proto == eth_type)
		return 0;
	if ((void *)(ip6 + 1) > (void *)(long)skb->data_end ||
	    arrival_plane(ip6, skb->ifindex, vlan) == NO_PLANE)
		return -1;
	return bpf_skb_change_head(skb, ETH_HLEN, 0) ||
	       bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &eth_type, sizeof(eth_type), 0);
}

SEC("tc")
int mrc_pop(struct __sk_buff *skb)
{
	__u32 linear = ETH_HLEN + sizeof(struct ipv6hdr) + sizeof(struct outer_l4) +
		       sizeof(struct ipv6hdr) + (settings.srh ? MRC_SRH_MAX : 0);
	__u16 vlan = skb->vlan_present ? skb->vlan_tci & VLAN_VID_MASK : 0;
	struct arrival a = {};
	struct outer o = {};
	struct cursor c;
	enum mrc_drop reason;
	enum parsed parsed;
	__u32 plane;

	if (skb->protocol != bpf_htons(ETH_P_IPV6) || restore_ethernet(skb, vlan))
		return TC_ACT_UNSPEC;
	/* Some drivers leave the headers in fragments. */
	if ((void *)(long)skb->data + linear > (void *)(long)skb->data_end)
		bpf_skb_pull_data(skb, skb->len < linear ? skb->len : linear);
	c.at = (void *)(long)skb->data;
	c.end = (void *)(long)skb->data_end;
	parsed = parse_outer(&c, &o, settings.udp_port);
	if (parsed == PARSED_NOT_OURS) {
		if (o.ip6 && o.ip6->nexthdr == IPPROTO_ICMPV6)
			take_icmp(skb, vlan);
		return TC_ACT_UNSPEC;
	}
	plane = arrival_plane(o.ip6, skb->ifindex, vlan);
	if (plane == NO_PLANE)
		return TC_ACT_UNSPEC;
	if (parsed == PARSED_TRUNCATED)
		return drop_skb(MRC_DROP_TRUNCATED);
	if (parsed == PARSED_BAD_SRH)
		return drop_skb(MRC_DROP_BAD_SRH);
	reason = verify_arrival(&o, plane, &a);
	if (reason)
		return drop_skb(reason);
	if (!lengths_agree(&o, skb->len, skb->gso_size))
		return drop_skb(MRC_DROP_TRUNCATED);
	/* The tag is beside the packet here, so taking it off moves nothing but the pointers. */
	if (o.mrc->type == MRC_DATA) {
		int verdict = pop_data(skb, &o, &a);

		if (verdict == TC_ACT_UNSPEC && vlan && bpf_skb_vlan_pop(skb))
			return drop_skb(MRC_DROP_POP_FAILED);
		if (verdict == TC_ACT_UNSPEC)
			ask_back(skb, &a);
		return verdict;
	}
	if (vlan) {
		bpf_skb_vlan_pop(skb);
		c.at = (void *)(long)skb->data;
		c.end = (void *)(long)skb->data_end;
		if (parse_outer(&c, &o, settings.udp_port) != PARSED_OURS)
			return drop_skb(MRC_DROP_POP_FAILED);
	}
	return pop_control(skb, &o, &a);
}

SEC("xdp.frags")
int mrc_pop_xdp(struct xdp_md *ctx)
{
	struct cursor c = { (void *)(long)ctx->data, (void *)(long)ctx->data_end };
	__u32 packets = 1, plane, outer_length, length = bpf_xdp_get_buff_len(ctx);
	struct arrival a = {};
	struct outer o = {};
	struct ethhdr eth, *inner_eth;
	enum mrc_drop reason;
	enum parsed parsed;
	int ce = 0;
	__u16 vlan = 0, inner_proto = 0;

	parsed = parse_outer(&c, &o, settings.udp_port);
	if (parsed != PARSED_OURS) /* or malformed: mrc_pop counts it */
		return XDP_PASS;
	if (o.vlan)
		vlan = bpf_ntohs(o.vlan->tci) & VLAN_VID_MASK;
	/* Where the NIC has stripped the tag this finds no plane, and mrc_pop does the work. */
	plane = arrival_plane(o.ip6, ctx->ingress_ifindex, vlan);
	if (plane == NO_PLANE)
		return XDP_PASS;
	reason = verify_arrival(&o, plane, &a);
	if (reason)
		return drop_xdp(reason);
	if (o.mrc->type != MRC_DATA)
		return XDP_PASS;
	outer_length = o.length + (o.vlan ? sizeof(*o.vlan) : 0);
	length -= ETH_HLEN + outer_length;
	/* Generic XDP sees a burst that a virtual link left whole as one long packet. */
	if (length > settings.inner_mtu)
		packets = bpf_ntohs(o.mrc->segments);
	if (!lengths_agree(&o, bpf_xdp_get_buff_len(ctx), packets > 1))
		return drop_xdp(MRC_DROP_TRUNCATED);
	eth = *o.eth;
	reason = merge_ecn(o.ip6, o.mrc + 1, c.end, &inner_proto, &ce);
	count_arrival(&a, packets, length, ce);
	if (reason)
		return drop_xdp(reason);
	if (bpf_xdp_adjust_head(ctx, outer_length))
		return drop_xdp(MRC_DROP_POP_FAILED);
	inner_eth = (void *)(long)ctx->data;
	if ((void *)(inner_eth + 1) > (void *)(long)ctx->data_end)
		return drop_xdp(MRC_DROP_POP_FAILED);
	eth.h_proto = inner_proto;
	*inner_eth = eth;
	return XDP_PASS;
}

/* ---- run by the daemon ------------------------------------------------------------------ */

struct sweep {
	struct __sk_buff *skb;
	struct mrc_node *node;
	struct request request;
	__u32 sent;
};

static long sweep_one(__u64 number, void *context)
{
	struct sweep *s = context;
	struct mrc_ev *ev = ev_at(ev_index(s->request.host_id, number));

	s->request.now = bpf_ktime_get_ns(); /* a sweep takes longer than packets take to arrive */
	if (!ev || ev->probe_after_ns > s->request.now)
		return 0;
	s->request.number = number;
	s->sent += send_request(s->skb, s->node, &s->request);
	return 0;
}

/* Run by BPF_PROG_TEST_RUN with the peer's host id as mark and any packet of some size: requests on all
 * EVs that are due, and one more that asks for a report. Returns the number of requests sent.
 */
SEC("tc")
int mrc_sweep(struct __sk_buff *skb)
{
	struct sweep s = { .skb = skb, .node = node(), .request = { .host_id = skb->mark } };
	struct mrc_rounds *rounds = rounds_at(skb->mark);
	struct mrc_peer *peer = peer_at(skb->mark);
	__u64 asked_ns;

	if (!s.node || !peer || !peer->configured || !rounds)
		return 0;
	if (bpf_skb_change_tail(skb, OUTER_L3 + sizeof(struct outer_l4) + probe_length(0), 0))
		return 0;
	bpf_loop(settings.evs_per_peer, sweep_one, &s, 0);
	s.request.now = bpf_ktime_get_ns();
	s.request.number = report_ev(peer, skb->mark, rounds, ports_both(s.node, peer));
	asked_ns = *(volatile __u64 *)&rounds->asked_ns;
	if (s.request.number == NO_SLOT || !aged(s.request.now, asked_ns, reordering_window(rounds)) ||
	    !aged(s.request.now, asked_ns, rounds->rtt_ns / 2) ||
	    !begin_round(rounds, &s.request, asked_ns) ||
	    bpf_skb_change_tail(skb, OUTER_L3 + sizeof(struct outer_l4) + probe_length(s.request.counts), 0))
		return s.sent;
	return s.sent + send_request(skb, s.node, &s.request);
}

#define STEER_REFRESH 0xffffffff /* for an EV: none, only work out the usable ones anew */

/* Run by BPF_PROG_TEST_RUN with the peer's host id as mark; cb: EV, new state, enum mrc_reason, and the
 * states that it may be in, as bits. Returns 1 if that has changed its state.
 */
SEC("tc")
int mrc_steer(struct __sk_buff *skb)
{
	__u32 host_id = skb->mark, number = skb->cb[0], after = skb->cb[1], allowed = skb->cb[3], before;
	struct mrc_peer *peer = peer_at(host_id);
	struct mrc_ev *ev;

	if (!peer)
		return 0;
	if (number == STEER_REFRESH) {
		refresh_usable(peer, host_id);
		return 0;
	}
	if (number >= settings.evs_per_peer || after > MRC_EV_DENIED)
		return 0;
	ev = ev_at(ev_index(host_id, number));
	if (!ev || !ev->configured)
		return 0;
	before = ev->state;
	if (!(allowed & (1u << (before & 31))) || !transit(host_id, number, before, after, skb->cb[2]))
		return 0;
	refresh_usable(peer, host_id);
	return 1;
}
