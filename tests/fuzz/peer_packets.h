/* SPDX-License-Identifier: BSD-2-Clause */
/* Makes an input's bytes packets of a peer: writes their outer headers and tags. */
#ifndef FUZZ_PEER_PACKETS_H
#define FUZZ_PEER_PACKETS_H

#include "host.h"

#pragma clang attribute push(__attribute__((no_sanitize("coverage"))), apply_to = function) /* as in helpers.h */

/* Tag the probe or data packet whose MRC header and probe begin here, as its sender would. */
static void tag(__u8 *at, __u32 length)
{
	struct mrc_scratch *scratch = (void *)mrc_scratch.host.memory;
	struct mrc_hdr mrc;
	__u32 zero = 0;

	bpf_map_lookup_elem(&mrc_scratch, &zero);
	if (length < sizeof(mrc))
		return;
	memcpy(&mrc, at, sizeof(mrc));
	mrc.key_id = 1;
	scratch->control.mrc = mrc;
	if (mrc.type == MRC_DATA) {
		mrc.auth = data_tag(keys[0], &mrc);
	} else if (length >= sizeof(struct control)) {
		struct control *c = &scratch->control;

		memcpy(&c->probe, at + sizeof(mrc), sizeof(c->probe));
		if (mrc.type == MRC_PROBE_REQUEST) {
			mrc.auth = probe_tag(keys[0], c);
		} else if (counts_bytes(c) && length >= sizeof(*c) + MRC_BALLAST + counts_bytes(c)) {
			memcpy(scratch->count, at + sizeof(*c) + MRC_BALLAST, counts_bytes(c));
			mrc.auth = reply_tag(keys[0], scratch);
		} else if (!c->probe.counts) {
			mrc.auth = reply_tag(keys[0], scratch);
		}
	}
	memcpy(at, &mrc, sizeof(mrc));
}

/* Write the outer headers of a packet of a peer to this host on a plane. Returns their length. */
static __u32 write_outer_headers(__u8 *frame, __u32 host_id, __u32 plane, __u32 payload)
{
	const struct mrc_plane *p = plane_at(plane);
	struct ethhdr *eth = (void *)frame;
	struct ipv6hdr *ip6 = (void *)(frame + ETH_HLEN);
	struct udphdr *udp = (void *)(frame + OUTER_L3);

	memset(frame, 0, OUTER_L3 + sizeof(*udp));
	memcpy(eth->h_dest, p->smac, ETH_ALEN);
	memcpy(eth->h_source, p->dmac, ETH_ALEN);
	eth->h_proto = bpf_htons(ETH_P_IPV6);
	ip6->version = 6;
	ip6->nexthdr = IPPROTO_UDP;
	ip6->hop_limit = 61;
	ip6->payload_len = bpf_htons(sizeof(*udp) + payload);
	memcpy(&ip6->saddr, peers()[host_id].address[plane], 16);
	memcpy(&ip6->daddr, p->sid, 16);
	udp->source = bpf_htons(MRC_SPORT_BASE);
	udp->dest = bpf_htons(settings.udp_port);
	udp->len = bpf_htons(sizeof(*udp) + payload);
	return OUTER_L3 + sizeof(*udp);
}

#pragma clang attribute pop

#endif
