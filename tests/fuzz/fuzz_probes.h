/* SPDX-License-Identifier: BSD-2-Clause */
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
			mrc->version = MRC_WIRE_VERSION;
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
