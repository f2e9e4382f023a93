/* SPDX-License-Identifier: BSD-2-Clause */
/* Fuzzes mrc_pop, and mrc_pop_xdp before it, on arbitrary frames. Bits of conditions.target: 2 = XDP first; 4 = write
 * the outer headers around the input, which begins with the MRC header; 8 = tag it; 16 = run twice.
 */

#define HEADER_EV 6 /* offset in struct mrc_hdr; its low byte follows */

static __u8 states_before[PEERS * EVS];

static void pop_once(const __u8 *frame, __u32 length)
{
	int counted, verdict, is_authentic = !(given.host & AUTH_IS_REQUIRED) || given.target & 8;

	for (__u32 i = 0; i < PEERS * EVS; i++)
		states_before[i] = evs()[i].state;
	if (given.target & 2) {
		__u64 before = drops_now();
		__u32 linear = given.skb & IN_PAGES ? given.linear : length;
		__u32 meta;

		memset(&skb, 0, sizeof(skb));
		xdp.ingress_ifindex = given.skb & ON_OTHER_NIC ? OTHER_IFINDEX :
								 FIRST_IFINDEX + !!(given.skb & ON_PLANE_1);
		packet.encapsulated = 0;
		set_packet(frame, length, linear < ETH_HLEN ? ETH_HLEN : linear);
		verdict = mrc_pop_xdp(&xdp);
		require(verdict == XDP_PASS || verdict == XDP_DROP);
		require(drops_now() == before + (verdict == XDP_DROP));
		check_tables();
		if (verdict == XDP_DROP)
			return;
		/* The packet as mrc_pop_xdp has left it becomes an skb. */
		static __u8 passed[LENGTH_MAX];
		__u8 mark[META_MAX];

		meta = packet.meta;
		require(meta == 0 || meta == sizeof(struct popped));
		memcpy(mark, data() - meta, meta);
		length = whole_length();
		require(!bpf_skb_load_bytes(&skb, 0, passed, length));
		if (length < ETH_HLEN)
			return;
		make_skb(passed, length, 1);
		unpoison();
		packet.meta = meta;
		memcpy(data() - meta, mark, meta);
		show();
	} else {
		make_skb(frame, length, 1);
		if (given.skb & WITHOUT_ETHERNET) {
			unpoison();
			packet.linear -= ETH_HLEN;
			show();
			if (packet.linear < IP6)
				return;
		}
	}
	verdict = run(mrc_pop, &counted);
	if (!is_authentic)
		for (__u32 i = 0; i < PEERS * EVS; i++)
			require(evs()[i].state == states_before[i]);
	(void)verdict;
}

static void fuzz_pop(const __u8 *bytes, __u32 length)
{
	static __u8 frame[LENGTH_MAX];
	__u32 at = 0, plane = !!(given.skb & ON_PLANE_1);

	if (given.target & 4) {
		at = write_outer_headers(frame, 1 + (length > 5 ? bytes[5] & 1 : 0), plane, length);
		memcpy(frame + at, bytes, length);
		if (length >= sizeof(struct mrc_hdr)) {
			struct mrc_hdr *mrc = (void *)(frame + at);

			mrc->version = MRC_WIRE_VERSION;
			mrc->receiver = bpf_htons(settings.host_id);
			mrc->sender = bpf_htons(1 + (bytes[5] & 1));
			mrc->ev = bpf_htons(plane * (EVS / PLANES) + (bytes[HEADER_EV + 1] & 3));
			if (given.target & 8)
				tag(frame + at, length);
		}
	} else {
		memcpy(frame, bytes, length);
	}
	length += at;
	if (length < ETH_HLEN)
		return;
	pop_once(frame, length);
	if (given.target & 16) {
		host.now += 3 * MS;
		pop_once(frame, length);
	}
}
