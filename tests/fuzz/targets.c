/* SPDX-License-Identifier: BSD-2-Clause */
/* All fuzz targets in one program, because bpf/ then compiles once. The name of the program selects the target. */
#include "host.h"

/* ---- parse_outer(), which calls what the programs inline -------------------------------- */

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
	arrival_plane(o.ip6, plane_of_ev(&o), FIRST_IFINDEX, o.vlan ? bpf_ntohs(o.vlan->tci) & VLAN_VID_MASK : 0);
	is_diagnostic_reply(&o);
	lengths_agree(&o, 0);
	is_trimmed(&o, c.end, length, length - ETH_HLEN - o.length);
	is_udp(o.mrc + 1, c.end);
}

#pragma clang attribute push(__attribute__((no_sanitize("coverage"))), apply_to = function) /* as in helpers.h */

/* ---- packets of a peer ------------------------------------------------------------------ */

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
			mrc.auth = probe_tag(keys[0][0], keys[0][1], c);
		} else if (counts_bytes(c) && length >= sizeof(*c) + MRC_BALLAST + counts_bytes(c)) {
			memcpy(scratch->count, at + sizeof(*c) + MRC_BALLAST, counts_bytes(c));
			mrc.auth = reply_tag(keys[0][0], keys[0][1], scratch);
		} else if (!c->probe.counts) {
			mrc.auth = reply_tag(keys[0][0], keys[0][1], scratch);
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

/* ---- probes ----------------------------------------------------------------------------- */

/* Fuzzes probes and reports: an input is a sequence of packets from the MRC header on, and what this host does between
 * them. The outer headers are right. Each packet has a head of four bytes: actions, time, traffic, length.
 */

enum {
	NAME_PEER = 0x01, /* make it a packet of a peer to this host */
	ANSWER = 0x02, /* make it the reply to the newest request */
	TAG = 0x04,
	COUNT = 0x08, /* make its counts those of a receiver that lost up to three packets per EV */
	REQUEST = 0x10, /* request another report first */
	TICK = 0x20, /* run the tick afterwards */
	SEND = 0x40, /* count data packets as sent first */
	RESPOND_LATE = 0x80, /* to the second newest request */
};

#define RECORDS_MAX 12
#define LINK_PROBE 0x80 /* in the traffic of a packet with NAME_PEER: make it a link probe of this host instead */

/* Make a packet a link probe of this host, with a right tag if `tagged`. */
static void make_link_probe(__u8 *at, __u32 time, int tagged)
{
	struct control *c = (void *)at;

	c->mrc.type = MRC_PROBE_REQUEST;
	c->mrc.sender = c->mrc.receiver = bpf_htons(settings.host_id);
	c->mrc.ev = bpf_htons(bpf_ntohs(c->mrc.ev) % (4 * MRC_MAX_PLANES));
	c->mrc.tx_ns = bpf_cpu_to_be64(host.now - time);
	if (tagged)
		c->mrc.auth = link_probe_tag(c);
}

/* Make a packet the reply of a peer to a request for a report. */
static void answer(__u8 *at, __u32 length, __u8 actions, __u8 traffic)
{
	struct mrc_hdr *mrc = (void *)at;
	struct mrc_probe *probe = (void *)(mrc + 1);
	struct mrc_count *counts = (void *)((__u8 *)(probe + 1) + MRC_BALLAST);
	__u32 host_id = bpf_ntohs(mrc->sender), number = bpf_ntohs(mrc->ev) % EVS;
	const struct mrc_reports *reports = reports_at(host_id);
	__u32 report_seq = reports->report_seq - !!(actions & RESPOND_LATE);
	const struct mrc_ev *ev = ev_at(ev_index(host_id, number));

	mrc->type = MRC_PROBE_REPLY;
	mrc->flags = 0;
	mrc->tx_ns = bpf_cpu_to_be64(host.now + 10 * NS_PER_S);
	mrc->seq = bpf_htonl(auth_at(host_id)->sent);
	probe->seq = bpf_htonl(ev->probe_seq);
	probe->report_seq = bpf_htonl(report_seq);
	probe->tx_ns = bpf_cpu_to_be64(reports->sent_ns[report_seq & (MRC_REPORT_SLOTS - 1)]);
	if (!(actions & COUNT) || length < sizeof(struct control) + MRC_BALLAST + EVS * sizeof(*counts))
		return;
	probe->first = 0;
	probe->counts = bpf_htons(EVS);
	for (__u32 i = 0; i < EVS; i++) {
		ev = ev_at(ev_index(host_id, i));
		counts[i].packets = bpf_htonl(ev->tx_packets - (traffic >> (i & 3) * 2 & 3));
		counts[i].probes = bpf_htons(ev->probe_seq - (traffic & 1));
	}
}

static void fuzz_probes(const __u8 *bytes, __u32 length)
{
	static __u8 frame[LENGTH_MAX];
	static __u8 states[PEERS * EVS];
	__u32 size, at, host_id, plane;
	int counted, i, is_authentic, is_link;
	__u64 received = links_received(), before;

	for (__u32 n = 0; n < RECORDS_MAX && length >= 4; n++) {
		__u8 actions = bytes[0], traffic = bytes[2];
		__u64 time = (1ULL << (bytes[1] & 15)) * 100 * NS_PER_US;
		struct mrc_hdr *mrc;

		is_link = 0;
		size = bytes[3];
		bytes += 4;
		length -= 4;
		if (size > length)
			size = length;
		host_id = size > 5 ? 1 + (bytes[5] & 1) : 1;
		plane = size > 7 ? bytes[7] / (EVS / PLANES) % PLANES : 0;
		host.now += time;
		if (actions & SEND)
			for (i = 0; i < EVS; i++) {
				struct mrc_ev *ev = ev_at(ev_index(host_id, i));

				ev->tx_packets += traffic & 31;
				ev->last_tx_ns = host.now;
			}
		if (actions & REQUEST) {
			host.now += time;
			request_a_report(host_id);
			host.now += MS;
		}
		at = write_outer_headers(frame, host_id, plane, size);
		memcpy(frame + at, bytes, size);
		mrc = (void *)(frame + at);
		if (size >= sizeof(struct control)) {
			mrc->version = MRC_PROBE_VERSION;
			if (actions & (NAME_PEER | ANSWER)) {
				mrc->sender = bpf_htons(host_id);
				mrc->receiver = bpf_htons(settings.host_id);
				mrc->ev = bpf_htons(bpf_ntohs(mrc->ev) % EVS);
			}
			if (actions & ANSWER)
				answer(frame + at, size, actions, traffic);
			if (actions & TAG)
				tag(frame + at, size);
			is_link = actions & NAME_PEER && !(actions & ANSWER) && traffic & LINK_PROBE;
			if (is_link)
				make_link_probe(frame + at, time, !!(actions & TAG));
		}
		is_authentic = !(given.host & AUTH_IS_REQUIRED) || (actions & TAG && size >= sizeof(struct control));
		for (i = 0; !is_authentic && i < PEERS * EVS; i++)
			states[i] = evs()[i].state;
		given.skb = plane ? given.skb | ON_PLANE_1 : given.skb & ~ON_PLANE_1;
		make_skb(frame, at + size, 1);
		if (given.host & WITH_VLAN) {
			skb.vlan_present = 1;
			skb.vlan_tci = VLAN;
		}
		run(mrc_pop, &counted);
		before = received;
		received = links_received();
		require(received == before || (is_link && actions & TAG && received == before + 1));
		for (i = 0; !is_authentic && i < PEERS * EVS; i++)
			require(evs()[i].state == states[i]);
		if (actions & TICK)
			run_tick();
		bytes += size;
		length -= size;
	}
	require(links_received() == received);
}

/* ---- icmp ------------------------------------------------------------------------------- */

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
		mrc->version = mrc->type == MRC_DATA ? MRC_WIRE_VERSION : MRC_PROBE_VERSION;
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

/* ---- push ------------------------------------------------------------------------------- */

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
	require(lengths_agree(&o, skb.gso_size) && (skb.gso_size || is_whole(&o, skb.len)));
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
		/* At most a packet per byte, or as many as the kernel says; and a copy. */
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

/* ---- pop -------------------------------------------------------------------------------- */

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
		__u64 before = drops_now() + eliminated_now();
		__u32 linear = given.skb & IN_PAGES ? given.linear : length;
		__u32 meta;

		memset(&skb, 0, sizeof(skb));
		xdp.ingress_ifindex = given.skb & ON_OTHER_NIC ? OTHER_IFINDEX :
								 FIRST_IFINDEX + !!(given.skb & ON_PLANE_1);
		packet.encapsulated = 0;
		set_packet(frame, length, linear < ETH_HLEN ? ETH_HLEN : linear);
		verdict = mrc_pop_xdp(&xdp);
		require(verdict == XDP_PASS || verdict == XDP_DROP);
		require(drops_now() + eliminated_now() == before + (verdict == XDP_DROP));
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

			mrc->version = mrc->type == MRC_DATA ? MRC_WIRE_VERSION : MRC_PROBE_VERSION;
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

/* ---- copies ----------------------------------------------------------------------------- */

/* Fuzzes is_first_copy() on sequences of numbers, beside a model that knows all that arrived. An input is the first number
 * (four bytes), then steps of two bytes: from how far before or behind the newest number on, and how many numbers in a
 * row arrive; or that the sender has new tables.
 */

#define NUMBERS (1u << 18) /* more than an input can span */
#define KNOWN (32 * MRC_REPLAY_WORDS - 32) /* so many numbers up to the newest are told from new ones in any case */
#define NEW_TABLES 255
#define STEP_BACK 64
#define COPIES_MAX 64 /* bytes of an input that are used */

static __u64 packets_checked;

__attribute__((destructor)) static void print_packets(void)
{
	if (packets_checked)
		fprintf(stderr, "stat::packets: %llu\n", (unsigned long long)packets_checked);
}

static void arrive(__u32 first, __u32 at, __u32 generation, __u8 *seen, __u32 *newest)
{
	const struct mrc_copies *copies = copies_at(1);
	__u64 unchecked = copies->unchecked, eliminated = copies->eliminated;
	int is_first = is_first_copy(1, generation, first + at), is_old = *newest - at < NUMBERS && *newest - at >= KNOWN;

	packets_checked++;
	unchecked = copies->unchecked - unchecked;
	require(is_first || copies->eliminated == eliminated + 1);
	require(is_first || seen[at]); /* nothing that has not arrived is eliminated */
	require(!(is_first && seen[at]) || (is_old && unchecked)); /* nothing is delivered twice, but if it is too old */
	require(is_old || !unchecked);
	seen[at] = 1;
	if (*newest - at >= NUMBERS)
		*newest = at;
}

static void fuzz_copies(const __u8 *bytes, __u32 length)
{
	static __u8 seen[NUMBERS];
	__u32 first, generation = 7, newest = NUMBERS / 2, lowest = newest, highest = newest, at, from;

	if (length < sizeof(first))
		return;
	memcpy(&first, bytes, sizeof(first));
	for (__u32 i = sizeof(first); i + 1 < length && i < COPIES_MAX; i += 2) {
		__u32 count = 1 + (bytes[i + 1] & 63), twice = bytes[i + 1] >> 6;

		if (bytes[i] == NEW_TABLES) {
			generation++;
			memset(seen + lowest, 0, highest - lowest + 1);
			lowest = highest = newest = NUMBERS / 2;
			continue;
		}
		from = bytes[i] < 128 ? newest + 1 + bytes[i] * (twice + 1) : newest - (bytes[i] - 127) * STEP_BACK;
		for (at = from; at < from + count && at < NUMBERS; at++) {
			lowest = at < lowest ? at : lowest;
			highest = at > highest ? at : highest;
			for (__u32 copy = 0; copy <= !!twice; copy++)
				arrive(first, at, generation, seen, &newest);
		}
	}
	memset(seen + lowest, 0, highest - lowest + 1);
}

#pragma clang attribute pop

static const struct target {
	const char *name;
	void (*fuzz)(const __u8 *bytes, __u32 length);
} targets[] = {
	{ "outer", fuzz_outer }, { "probes", fuzz_probes }, { "icmp", fuzz_icmp },
	{ "push", fuzz_push },	 { "pop", fuzz_pop },	    { "copies", fuzz_copies },
};

static const struct target *target;

const char *__asan_default_options(void)
{
	return "detect_leaks=0"; /* the tables live as long as the process */
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	const char *slash = strrchr(**argv, '/');

	for (__u32 i = 0; i < sizeof(targets) / sizeof(targets[0]); i++)
		if (!strcmp(slash ? slash + 1 : **argv, targets[i].name))
			target = &targets[i];
	if (!target) {
		fprintf(stderr, "fuzz: no target has the name of this program\n");
		exit(1);
	}
	make_host();
	return 0;
}

int LLVMFuzzerTestOneInput(const __u8 *bytes, size_t length)
{
	struct conditions conditions;

	if (length < sizeof(conditions) || length > 4096)
		return -1;
	memcpy(&conditions, bytes, sizeof(conditions));
	begin(&conditions, bytes, length);
	target->fuzz(bytes + sizeof(conditions), length - sizeof(conditions));
	expire_timer();
	return 0;
}
