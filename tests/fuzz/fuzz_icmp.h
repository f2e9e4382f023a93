/* SPDX-License-Identifier: BSD-2-Clause */
/* Fuzzes ICMPv6 errors: the input is all that follows the outer IPv6 header. Bits of conditions.target: 1 = write the
 * fields of the quoted MRC header that name a recent packet of this host; 2 = tag it.
 */

#define QUOTED_MRC (sizeof(struct icmp6) + sizeof(struct ipv6hdr) + sizeof(struct udphdr)) /* without an SRH */

static void fuzz_icmp(const __u8 *bytes, __u32 length)
{
	static __u8 frame[LENGTH_MAX];
	__u8 *content = frame + OUTER_L3;
	__u32 plane = !!(given.skb & ON_PLANE_1), at = QUOTED_MRC;
	struct ethhdr *eth = (void *)frame;
	struct ipv6hdr *ip6 = (void *)(frame + ETH_HLEN);
	static struct mrc_ev before[PEERS * EVS];
	int counted, is_authentic = !(given.host & AUTH_IS_REQUIRED) || given.target & 2;

	memset(frame, 0, OUTER_L3);
	eth->h_proto = bpf_htons(ETH_P_IPV6);
	ip6->version = 6;
	ip6->nexthdr = IPPROTO_ICMPV6;
	ip6->payload_len = bpf_htons(length);
	memcpy(&ip6->daddr, plane_at(plane)->address, 16);
	memcpy(content, bytes, length);
	if (length > QUOTED_MRC && content[sizeof(struct icmp6) + 6] == NEXTHDR_ROUTING)
		at += 8 + content[sizeof(struct icmp6) + sizeof(struct ipv6hdr) + 1] * 8;
	if (given.target & 1 && length >= at + sizeof(struct mrc_hdr)) {
		struct mrc_hdr *mrc = (void *)(content + at);
		struct udphdr *udp = (void *)(content + at - sizeof(struct udphdr));

		memcpy(content + sizeof(struct icmp6) + offsetof(struct ipv6hdr, saddr), plane_at(plane)->address, 16);
		udp->dest = bpf_htons(settings.udp_port);
		mrc->version = MRC_WIRE_VERSION;
		mrc->sender = bpf_htons(settings.host_id);
		mrc->seq = bpf_htonl(mrc->type == MRC_DATA ? 99 : 50);
		mrc->tx_ns = bpf_cpu_to_be64(host.now - MS);
		/* As if older reports had returned: errors count only then. */
		for (__u32 i = 0; i < PEERS; i++)
			reports_at(i)->applied_seq = reports_at(i)->report_seq;
		if (given.target & 2)
			tag((void *)mrc, length - at);
	}
	if (given.more & 8) { /* the peer itself reports the error */
		memcpy(&ip6->saddr, peers()[2].address[plane], 16);
	}
	memcpy(before, evs(), sizeof(before));
	make_skb(frame, OUTER_L3 + length, 1);
	require(run(mrc_pop, &counted) == TC_ACT_UNSPEC && !counted);
	require(whole_length() == OUTER_L3 + length);
	require(is_authentic || !memcmp(before, evs(), sizeof(before)));
}
