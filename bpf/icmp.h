/* ICMPv6 errors from the fabric (RFC 4443 §3) that quote a packet of ours: evidence against the EV by
 * which it went. Anybody can send one, so the quoted packet must be one that was sent a moment ago: its
 * sequence and its time are not known to who has not seen it.
 */
#ifndef MRC_ICMP_H
#define MRC_ICMP_H

#include "send_probe.h"

#define ICMP_FRESH_NS 1000000000ULL /* how old the quoted packet may be */
#define ICMP_FRESH_PACKETS 65536 /* how many may have been sent on the EV since */
#define ICMP_GAP_NS 1000000ULL /* per peer, between two that change something */

struct icmp6 {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 value;
};

enum {
	ICMP6_UNREACHABLE = 1,
	ICMP6_TOO_BIG = 2,
	ICMP6_TIME_EXCEEDED = 3,
	ICMP6_PORT = 4, /* code of ICMP6_UNREACHABLE */
};

/* The quoted packet, up to our header. Returns its headers, or NULL. */
static __always_inline struct mrc_hdr *quoted_header(struct cursor *c, struct ipv6hdr **out)
{
	__u8 ip_proto;
	struct ipv6hdr *ip6;
	struct udphdr *udp;
	struct mrc_hdr *mrc;

	if (!TAKE(c, ip6))
		return 0;
	ip_proto = ip6->nexthdr;
	if (ip_proto == NEXTHDR_ROUTING) {
		struct srh *srh;

		if (!TAKE(c, srh) || srh->length > (MRC_SRH_MAX - 8) / 8)
			return 0;
		c->at += srh->length * 8;
		ip_proto = srh->next_header;
	}
	if (ip_proto != IPPROTO_UDP || !TAKE(c, udp) || udp->dest != bpf_htons(settings.udp_port) ||
	    !TAKE(c, mrc))
		return 0;
	*out = ip6;
	return mrc;
}

/* Whether the quoted packet was sent on this EV a moment ago. */
static __always_inline int is_recent(const struct mrc_hdr *mrc, const struct mrc_ev *ev, __u64 now)
{
	__u32 seq = bpf_ntohl(mrc->seq), newest = ev->tx_packets;

	if (mrc->type == MRC_PROBE_REQUEST)
		newest = ev->probe_seq + 1;
	else if (mrc->type != MRC_DATA)
		return 0;
	return newest - seq - 1 < ICMP_FRESH_PACKETS && now - bpf_be64_to_cpu(mrc->tx_ns) < ICMP_FRESH_NS;
}

/* `c` stands behind an IPv6 header, `outer`, that is addressed to this host on `plane`. */
static __always_inline void handle_icmp(struct cursor *c, const struct ipv6hdr *outer, const struct mrc_plane *plane,
				      __u32 plane_number)
{
	__u32 host_id, number, state;
	struct mrc_reports *reports;
	struct mrc_peer *peer;
	struct icmp6 *icmp;
	struct mrc_hdr *mrc;
	struct ipv6hdr *ip6;
	struct mrc_ev *ev;
	__u64 now;

	if (!TAKE(c, icmp) || icmp->type < ICMP6_UNREACHABLE || icmp->type > ICMP6_TIME_EXCEEDED ||
	    (icmp->type == ICMP6_UNREACHABLE && icmp->code == ICMP6_PORT)) /* what arrived there */
		return;
	mrc = quoted_header(c, &ip6);
	if (!mrc || mrc->version != MRC_WIRE_VERSION || mrc->flags & MRC_FLAG_DIAGNOSTIC ||
	    mrc->sender != bpf_htons(settings.host_id) ||
	    !same_address(&ip6->saddr, plane->address))
		return;
	host_id = bpf_ntohs(mrc->receiver);
	number = bpf_ntohs(mrc->ev);
	if (number >= settings.evs_per_peer || number / settings.evs_per_plane != plane_number)
		return;
	peer = peer_at(host_id);
	reports = reports_at(host_id);
	ev = ev_at(ev_index(host_id, number));
	if (!peer || !peer->configured || !reports || !ev || !ev->configured)
		return;
	/* The peer's own word: it got there. Without mrc_pop its kernel knows no way on. */
	if (same_address(&outer->saddr, peer->address[plane_number & (MRC_MAX_PLANES - 1)]))
		return;
	now = bpf_ktime_get_ns();
	state = ev->state;
	/* A peer that is down answers nothing, and its T0 says so of every EV: none is to blame. */
	if (is_report_window_full(reports))
		return;
	if ((state != MRC_EV_GOOD && state != MRC_EV_SKIP) || !aged(now, reports->icmp_ns, ICMP_GAP_NS) ||
	    !is_recent(mrc, ev, now))
		return;
	reports->icmp_ns = now;
	if (transit(host_id, number, state, MRC_EV_ASSUMED_BAD, ICMP_REASON(icmp->type, icmp->code)))
		refresh_usable(peer, host_id);
}

#endif
