/* SPDX-License-Identifier: BSD-2-Clause */
/* Fuzzes mrc_push on arbitrary inner packets. Two low bits of conditions.target: further pushes of the same packet. */

/* Check the outer headers around a pushed packet, which was `inner` of `length` bytes. */
static void check_pushed(const __u8 *inner, __u32 length)
{
	static __u8 after[LENGTH_MAX];
	struct outer o = {};
	struct cursor c = { (void *)(long)skb.data, (void *)(long)skb.data_end };
	__u8 *srh = (__u8 *)c.at + OUTER_L3;

	require(skb.len > length && (__u8 *)c.end - (__u8 *)c.at >= (long)(OUTER_L3 + sizeof(struct outer_l4)));
	if (((struct ipv6hdr *)((__u8 *)c.at + ETH_HLEN))->nexthdr == NEXTHDR_ROUTING)
		srh[offsetof(struct srh, segments_left)] = 0; /* parse_outer() wants the last hop's packet */
	require(parse_outer(&c, &o, settings.udp_port) == PARSED_OURS);
	require(o.length + length == skb.len);
	require(o.mrc->version == MRC_WIRE_VERSION && o.mrc->type == MRC_DATA);
	require(lengths_agree(&o, skb.len, skb.gso_size));
	require(!bpf_skb_load_bytes(&skb, ETH_HLEN + o.length, after, length - ETH_HLEN));
	require(!memcmp(after, inner + ETH_HLEN, length - ETH_HLEN));
}

/* Return the data packets counted as sent, on all EVs. */
static __u64 sent_packets(void)
{
	__u64 sum = 0;

	for (__u32 i = 0; i < PEERS * EVS; i++)
		sum += evs()[i].tx_packets;
	return sum;
}

static void fuzz_push(const __u8 *bytes, __u32 length)
{
	__u64 before, after;
	int counted, verdict;

	if (length < ETH_HLEN)
		return;
	for (__u32 i = 0; i <= (given.target & 3u); i++) {
		make_skb(bytes, length, 0);
		skb.ifindex = given.target & 4 ? OVERLAY_IFINDEX : PROBE_IFINDEX;
		before = sent_packets();
		verdict = run(mrc_push, &counted);
		after = sent_packets();
		/* At most a packet per byte, or as many as the kernel says; and an ACK copy. */
		require(after - before <= length + given.gso_segs + 1);
		if (verdict == TC_ACT_REDIRECT)
			check_pushed(bytes, length);
		else if (verdict == TC_ACT_UNSPEC) /* a burst that mrc0 segments first */
			require(skb.gso_size && whole_length() == length);
		else
			require(counted);
		host.now += given.target & 8 ? 10 * MS : MS;
		unpoison();
	}
}
