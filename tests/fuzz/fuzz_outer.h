/* SPDX-License-Identifier: BSD-2-Clause */
/* Fuzzes parse_outer() on arbitrary frames. */

static void fuzz_outer(const __u8 *bytes, __u32 length)
{
	struct cursor c;
	struct outer o = {};
	enum parsed parsed;

	set_packet(bytes, length, length);
	c.at = (void *)(long)skb.data;
	c.end = (void *)(long)skb.data_end;
	parsed = parse_outer(&c, &o, settings.udp_port);
	require(parsed <= PARSED_BAD_SRH);
	if (parsed != PARSED_OURS)
		return;
	require((void *)(o.mrc + 1) <= c.end && c.at == (void *)(o.mrc + 1));
	require((__u8 *)o.ip6 + o.length == (__u8 *)(o.mrc + 1));
	require(o.udp->dest == bpf_htons(settings.udp_port));
	require(!o.srh || (!o.srh->segments_left && o.length <= IP6 + MRC_SRH_MAX + sizeof(struct outer_l4)));
	/* Fields of these headers that every caller reads. */
	arrival_plane(o.ip6, FIRST_IFINDEX, o.vlan ? bpf_ntohs(o.vlan->tci) & VLAN_VID_MASK : 0);
	is_diagnostic_reply(&o);
	lengths_agree(&o, length, 0);
	is_udp(o.mrc + 1, c.end);
}
