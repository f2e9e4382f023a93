/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Handles ICMPv6 errors of the fabric (RFC 4443 §3) that quote a packet of this host: they count against the packet's
 * EV. Anybody can forge such an error. So the quoted packet must be a recent one, and bear the tag that this host made.
 */
#ifndef MRC_ICMP_H
#define MRC_ICMP_H

#include "maps.h"
#include "send_probe.h"

#define ICMP_FRESH_NS 1000000000ULL /* age of the quoted packet, at most */
#define ICMP_FRESH_PACKETS 65536 /* at most: packets on the EV since the quoted one, or requests to the peer */
/* Per peer, least time between two errors that change a state: limits what a forged burst can do. */
#define ICMP_GAP_NS 1000000ULL

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

/* Parse the quoted packet up to the MRC header. Returns that header and sets `out` to the IPv6 header, or NULL. */
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

/* Return 1 if the quoted packet was sent on this EV lately. */
static __always_inline int is_recent(const struct mrc_hdr *mrc, const struct mrc_ev *ev, __u64 now)
{
	const struct mrc_auth *auth = auth_at(bpf_ntohs(mrc->receiver));
	__u32 seq = bpf_ntohl(mrc->seq), newest = ev->tx_packets;

	if (mrc->type == MRC_DATA && mrc->flags & MRC_FLAG_CRITICAL)
		newest = critical_number(bpf_ntohs(mrc->receiver));
	else if (mrc->type == MRC_PROBE_REQUEST && auth)
		newest = auth->sent + 1;
	else if (mrc->type != MRC_DATA)
		return 0;
	return newest - seq - 1 < ICMP_FRESH_PACKETS && now - bpf_be64_to_cpu(mrc->tx_ns) < ICMP_FRESH_NS;
}

/* Return 1 if this host tagged the quoted packet, or tags none. `c` is behind the quoted MRC header. */
static __always_inline int is_own(struct cursor *c, const struct mrc_hdr *quoted, __u32 host_id)
{
	const struct mrc_auth *auth = auth_at(host_id);
	__u32 zero = 0;
	struct mrc_scratch *scratch = bpf_map_lookup_elem(&mrc_scratch, &zero);
	struct mrc_probe *probe;
	const __u64 *key;

	if (!auth || !scratch)
		return 0;
	if (auth->mode == MRC_AUTH_OFF)
		return 1;
	key = key_of(auth->tx_id, auth->tx_key, quoted->key_id);
	if (!key)
		return 0;
	scratch->control.mrc = *quoted;
	if (quoted->type == MRC_DATA)
		return data_tag(key, &scratch->control.mrc) == scratch->control.mrc.auth;
	if (!TAKE(c, probe))
		return 0;
	scratch->control.probe = *probe;
	return probe_tag(key[0], key[1], &scratch->control) == scratch->control.mrc.auth;
}

/* Handle an ICMPv6 message. `c` is behind the IPv6 header `outer`, which is addressed to this host on `plane`. */
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
	    /* No listener: the packet reached its host. */
	    (icmp->type == ICMP6_UNREACHABLE && icmp->code == ICMP6_PORT))
		return;
	mrc = quoted_header(c, &ip6);
	if (!mrc || !is_right_version(mrc) || mrc->flags & MRC_FLAG_DIAGNOSTIC ||
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
	/* The peer itself sent the error, so the path works. Without mrc_pop its kernel has no route for the packet. */
	if (same_address(&outer->saddr, peer->address[plane_number & (MRC_MAX_PLANES - 1)]))
		return;
	now = now_ns();
	state = ev->state;
	/* A peer that is down answers nothing, and its T0 sends errors for every EV. No path has failed then. */
	if (is_report_window_full(reports))
		return;
	if ((state != MRC_EV_GOOD && state != MRC_EV_SKIP) || !aged(now, reports->icmp_ns, ICMP_GAP_NS) ||
	    !is_recent(mrc, ev, now) || !is_own(c, mrc, host_id))
		return;
	reports->icmp_ns = now;
	if (transit(host_id, number, state, MRC_EV_ASSUMED_BAD, ICMP_REASON(icmp->type, icmp->code)))
		refresh_usable(peer, host_id);
}

#endif
