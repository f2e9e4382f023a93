/* SPDX-License-Identifier: BSD-2-Clause */
/* Sets up the fuzzed host, runs the programs on a packet, and checks what must hold after each.
 *
 * An input begins with eight bytes of conditions (struct conditions). The rest belongs to the target.
 */
#ifndef FUZZ_HOST_H
#define FUZZ_HOST_H

#include "mrc.bpf.c"

#include "packet_helpers.h"

#include "tables.h"

#pragma clang attribute push(__attribute__((no_sanitize("coverage"))), apply_to = function) /* as in helpers.h */

#define PROBE_IFINDEX 30
#define TIMER_IFINDEX 31
#define OVERLAY_IFINDEX 32
#define MERGE_IFINDEX 33
#define OTHER_IFINDEX 34 /* of a NIC that is no plane */
#define VLAN 100
#define MS NS_PER_MS
#define SETS 2 /* of tables: by encapsulation */

/* Bits of conditions.host. */
enum {
	WITH_SRH = 0x1,
	AUTH_IS_REQUIRED = 0x2,
	SOURCE_CHECK = 0x4,
	OLD_KERNEL = 0x8, /* without the features of mrc_settings.kernel_has */
	WITH_VLAN = 0x10,
	SACK_HIDING = 0x20,
	MERGING = 0x40,
	RING_FULL = 0x80,
};

/* Bits of conditions.skb. */
enum {
	IN_PAGES = 0x1, /* only conditions.linear bytes are in the linear part */
	IS_BURST = 0x2,
	IS_ENCAPSULATED = 0x4,
	WITHOUT_META = 0x8,
	WITHOUT_ETHERNET = 0x10, /* as behind generic XDP */
	ON_PLANE_1 = 0x20,
	ON_OTHER_NIC = 0x40,
	WITH_SOCKET = 0x80,
};

struct conditions {
	__u8 host;
	__u8 skb;
	__u8 linear;
	__u8 random;
	__u8 gso_size;
	__u8 gso_segs;
	__u8 more; /* bits: 1 = no overlay, 2 = no generation, 4 = due, 8 = clean copies, 16 = classes */
	__u8 target; /* as the target says */
};

static struct conditions given;
static struct mrc_settings *set_up; /* `settings`, writable */
static struct {
	__u8 *memory[64];
} kept[SETS];
static int set_now = -1;
static struct sk_buff___kernel kernel_skb;
static __u64 keys[2][2]; /* of all peers */

void *host_kernel_skb(void)
{
	kernel_skb.encapsulation = packet.encapsulated;
	kernel_skb.data_len = packet.paged;
	kernel_skb.truesize = 0x10000;
	kernel_skb.network_header = given.target & 1;
	return &kernel_skb;
}

void *bpf_cast_to_kern_ctx(void *context)
{
	require(context == &skb);
	return host_kernel_skb();
}

/* A field of the kernel's sk_buff is read at its offset from the context. */
long host_read_kernel(void *to, __u32 length, const void *from)
{
	size_t at = (const char *)from - (const char *)&skb;

	require(at + length <= sizeof(kernel_skb));
	memcpy(to, (char *)host_kernel_skb() + at, length);
	return 0;
}

/* Return the link probes that have come back so far. */
static __u64 links_received(void)
{
	__u64 sum = 0;

	for (__u32 i = 0; i < LINKS; i++)
		sum += ((struct mrc_link *)mrc_links.host.memory)[i].received;
	return sum;
}

/* Return the packets dropped for a reason so far. */
static __u64 drops_now(void)
{
	__u64 sum = 0;

	for (__u32 i = MRC_DROP_NONE + 1; i < MRC_DROP_MAX; i++) /* the first is a mark: mark_own_drop() */
		sum += ((__u64 *)mrc_drops.host.memory)[i];
	return sum;
}

/* Return the copies of critical packets eliminated so far. */
static __u64 eliminated_now(void)
{
	__u64 sum = 0;

	for (__u32 i = 0; i < PEERS; i++)
		sum += ((struct mrc_copies *)mrc_copies.host.memory)[i].eliminated;
	return sum;
}

/* ---- the tables, filled as the daemon would --------------------------------------------- */

#define MAP(name, entries) make_map(&name.host, sizeof(*name.value), entries)
#define FIXED_MAP(name) MAP(name, sizeof(*name.max_entries))

static void make_maps(void)
{
	MAP(mrc_evs, PEERS * EVS);
	MAP(mrc_path_stats, PEERS * EVS);
	MAP(mrc_rxs, PEERS * EVS);
	MAP(mrc_srhs, PEERS * EVS);
	MAP(mrc_peers, PEERS);
	MAP(mrc_auths, PEERS);
	MAP(mrc_replays, PEERS);
	MAP(mrc_copies, PEERS);
	MAP(mrc_reports, PEERS);
	MAP(mrc_watches, PEERS);
	MAP(mrc_clock, 1);
	MAP(mrc_probes_sent, MRC_PROBE_KINDS);
	MAP(mrc_unsent_packets, MRC_MAX_PLANES);
	MAP(mrc_links, LINKS);
	MAP(mrc_planes, MRC_MAX_PLANES);
	MAP(mrc_node, 1);
	MAP(mrc_rotations, PEERS);
	MAP(mrc_drops, MRC_DROP_MAX);
	MAP(mrc_histograms, MRC_HISTOGRAM_MAX * MRC_BUCKETS);
	MAP(mrc_transitions, (MRC_EV_DENIED + 1) * MRC_REASON_MAX);
	MAP(mrc_prefixes, sizeof(made_hosts) / sizeof(made_hosts[0]));
	MAP(mrc_idle_timers, PEERS);
	FIXED_MAP(mrc_clone_jobs);
	MAP(mrc_dst_cache, MRC_DST_ENTRIES);
	MAP(mrc_paces, PEERS);
	MAP(mrc_plane_losses, PEERS);
	MAP(mrc_selections, PEERS);
	FIXED_MAP(mrc_paid);
	FIXED_MAP(mrc_t1_recorded);
	FIXED_MAP(mrc_timers);
	FIXED_MAP(mrc_classes);
	FIXED_MAP(mrc_flowlets);
	FIXED_MAP(mrc_acks);
	FIXED_MAP(mrc_copied);
	FIXED_MAP(mrc_sack_gaps);
	FIXED_MAP(mrc_scratch);
	FIXED_MAP(mrc_t1_failures);
	FIXED_MAP(mrc_t0_verdicts);
	mrc_idle_peers.host.value_size = sizeof(*mrc_idle_peers.value);
	mrc_prefixes.host.is_trie = 1;
}

static struct mrc_ev *evs(void)
{
	return (void *)mrc_evs.host.memory;
}

static struct mrc_peer *peers(void)
{
	return (void *)mrc_peers.host.memory;
}

static struct mrc_reports *all_reports(void)
{
	return (void *)mrc_reports.host.memory;
}

/* Request a report, as traffic would, without sending the request. */
static void request_a_report(__u32 host_id)
{
	struct mrc_reports *reports = reports_at(host_id);
	struct request r = { .now = host.now, .host_id = host_id };

	begin_report(reports, &r, reports->requested_ns);
}

/* Fill the tables as the daemon would. All paths work, and three reports are on their way from each peer. */
static void fill(__u32 set)
{
	struct mrc_node *self = (void *)mrc_node.host.memory;
	struct mrc_clock *clock = (void *)mrc_clock.host.memory;
	__u32 i;

	for (i = 0; i < map_count; i++)
		memset(maps[i]->memory, 0, (size_t)maps[i]->entries * maps[i]->value_size);
	memcpy(set_up, made_settings[set], sizeof(*set_up));
	memcpy((void *)&health, made_health[set], sizeof(health));
	memcpy(peers(), made_peers[set], sizeof(made_peers[set]));
	memcpy(evs(), made_evs[set], sizeof(made_evs[set]));
	memcpy(mrc_srhs.host.memory, made_srhs[set], sizeof(made_srhs[set]));
	memcpy(mrc_planes.host.memory, made_planes[set], sizeof(made_planes[set]));
	memcpy(mrc_links.host.memory, made_links[set], sizeof(made_links[set]));
	memcpy(self, made_node[set], sizeof(*self));
	self->generation = 7;
	self->plane_mask = (1 << PLANES) - 1;
	self->epoch = 1;
	self->probe_ifindex = PROBE_IFINDEX;
	self->timer_ifindex = TIMER_IFINDEX;
	self->overlay_ifindex = OVERLAY_IFINDEX;
	self->ticked_ns = START_NS;
	clock->budget = 1000;
	for (i = 0; i < mrc_prefixes.host.entries; i++) {
		memcpy(&trie_keys[i].length, made_prefixes[i], 4);
		memcpy(trie_keys[i].address, made_prefixes[i] + 4, 16);
		((__u32 *)mrc_prefixes.host.memory)[i] = made_hosts[i];
	}
	for (i = 0; i < PEERS; i++) {
		struct mrc_auth *auth = (struct mrc_auth *)mrc_auths.host.memory + i;

		auth->tx_id[0] = auth->rx_id[0] = 1;
		auth->tx_id[1] = auth->rx_id[1] = 2;
	}
	host.now = START_NS;
	for (i = 0; i < PEERS * EVS; i++) {
		evs()[i].state = evs()[i].configured ? MRC_EV_GOOD : MRC_EV_UNKNOWN;
		evs()[i].tx_packets = 100;
		evs()[i].probe_seq = 50;
		evs()[i].state_since_ns = evs()[i].last_tx_ns = START_NS - 1000 * MS;
	}
	for (i = 1; i < PEERS; i++) {
		auth_at(i)->sent = 50;
		refresh_usable(&peers()[i], i);
		for (int k = 0; k < 3; k++) {
			host.now += 6 * MS;
			request_a_report(i);
		}
	}
	require(settings.planes == PLANES && peers()[2].usable[0] == (1 << EVS) - 1);
	keep_maps();
}

/* ---- conditions of an input ------------------------------------------------------------- */

static void make_host(void)
{
	struct mrc_settings *writable = (void *)(uintptr_t)&settings;
	uintptr_t first = (uintptr_t)&settings & ~(uintptr_t)(PAGE - 1);
	uintptr_t last = ((uintptr_t)&settings + sizeof(settings) - 1) & ~(uintptr_t)(PAGE - 1);

	require(!mprotect((void *)first, last - first + PAGE, PROT_READ | PROT_WRITE));
	/* The compiler would drop all writes to an object that it knows to be constant. */
	OPAQUE(writable);
	set_up = writable;
	make_area();
	make_maps();
	for (__u32 set = 0; set < SETS; set++) {
		fill(set);
		for (__u32 i = 0; i < map_count; i++) {
			kept[set].memory[i] = maps[i]->pristine;
			maps[i]->pristine = calloc(maps[i]->entries, maps[i]->value_size);
		}
	}
}

/* Derive the keys from the whole input (FNV-1a). libFuzzer learns the tag that a comparison expects, and writes it into
 * the input; with other keys for each input, it cannot forge.
 */
static void make_keys(const __u8 *input, size_t length)
{
	__u64 hash = 0xcbf29ce484222325;

	for (size_t i = 0; i < length; i++)
		hash = (hash ^ input[i]) * 0x100000001b3;
	for (__u32 i = 0; i < 4; i++)
		keys[i / 2][i % 2] = hash + i;
}

/* Put the host into the state in which this input begins, under its conditions. */
static void begin(const struct conditions *conditions, const __u8 *input, size_t length)
{
	struct mrc_node *self = (void *)mrc_node.host.memory;
	__u32 i, set = conditions->host & WITH_SRH ? 1 : 0;

	given = *conditions;
	make_keys(input, length);
	for (i = 0; i < map_count; i++)
		maps[i]->pristine = kept[set].memory[i];
	if (set_now != (int)set) {
		for (i = 0; i < map_count; i++)
			memcpy(maps[i]->memory, maps[i]->pristine, (size_t)maps[i]->entries * maps[i]->value_size);
		for (i = 0; i < touched_count; i++)
			touched[i].map->touched[touched[i].index] = 0;
		touched_count = 0;
		set_now = set;
	}
	restore_maps();
	queued = 0;
	timer_started = 0;
	memset(&host, 0, sizeof(host));
	host.now = START_NS + 40 * MS;
	host.random = given.random;
	host.probe_ifindex = PROBE_IFINDEX;
	host.ring_full = !!(given.host & RING_FULL);
	memcpy(set_up, made_settings[set], sizeof(*set_up));
	memcpy((void *)&health, made_health[set], sizeof(health));
	set_up->kernel_has = given.host & OLD_KERNEL ? 0 : MRC_KERNEL_HAS_KERN_CTX | MRC_KERNEL_HAS_DECAP_L3;
	set_up->source_check = !!(given.host & SOURCE_CHECK);
	for (i = 0; i < 2; i++) /* another one: what a peer has tagged must not pass for a link probe */
		set_up->link_key[i] = ~keys[0][i];
	set_up->classes = !!(given.more & 16);
	health.loss_any = !!(given.more & 32);
	health.skip_delay_us = given.more & 64 ? 100 : 0;
	node(); /* restored after this input */
	self->overlay_ifindex = given.more & 1 ? 0 : OVERLAY_IFINDEX;
	self->merge_ifindex = given.host & MERGING ? MERGE_IFINDEX : 0;
	self->merge_xdp = self->merge_ifindex;
	self->generation = given.more & 2 ? 0 : 7;
	for (i = 0; i < PLANES; i++)
		plane_at(i)->vlan = given.host & WITH_VLAN ? VLAN : 0;
	for (i = 0; i < PEERS; i++) {
		memcpy(auth_at(i)->tx_key, keys, sizeof(keys));
		memcpy(auth_at(i)->rx_key, keys, sizeof(keys));
		auth_at(i)->mode = given.host & AUTH_IS_REQUIRED ? MRC_AUTH_REQUIRED : MRC_AUTH_OFF;
		peer_at(i)->plane_skew_ns = given.host & SACK_HIDING ? 4 * MS : 0;
		if (given.more & 4) {
			struct mrc_rotation *rotation = bpf_map_lookup_elem(&mrc_rotations, &i);

			rotation->unprobed = 1000;
			rotation->unprobed_bytes = 1000000;
		}
	}
	if (given.more & 16) {
		struct mrc_classes *classes = (void *)mrc_classes.host.memory;

		for (i = 0; i < 64; i++)
			classes->dscp[i] = i & 3;
		i = 0;
		bpf_map_lookup_elem(&mrc_classes, &i);
	}
	memset(&skb, 0, sizeof(skb));
	packet.can_meta = !(given.skb & WITHOUT_META);
}

/* Make the skb of a frame. `received`: the kernel has taken a VLAN tag off, as it does before tc ingress. */
static void make_skb(const __u8 *frame, __u32 length, int received)
{
	static __u8 without_tag[LENGTH_MAX];
	__u32 linear = given.skb & IN_PAGES ? given.linear : length;
	__be16 eth_type;

	memset(&skb, 0, sizeof(skb));
	memcpy(&eth_type, frame + 12, 2);
	if (received && eth_type == bpf_htons(ETH_P_8021Q) && length >= ETH_HLEN + 4) {
		__be16 tci;

		memcpy(&tci, frame + ETH_HLEN, 2);
		memcpy(without_tag, frame, 12);
		memcpy(without_tag + 12, frame + 16, length - 16);
		frame = without_tag;
		length -= 4;
		skb.vlan_present = 1;
		skb.vlan_tci = bpf_ntohs(tci);
		memcpy(&eth_type, frame + 12, 2);
	}
	skb.protocol = eth_type;
	skb.ifindex = given.skb & ON_OTHER_NIC ? OTHER_IFINDEX : FIRST_IFINDEX + !!(given.skb & ON_PLANE_1);
	if (given.skb & IS_BURST) {
		skb.gso_size = given.gso_size * 8 + 1;
		skb.gso_segs = given.gso_segs;
	}
	if (given.skb & WITH_SOCKET) {
		memset(&full_sock, 0, sizeof(full_sock));
		full_sock.protocol = IPPROTO_TCP;
		full_sock.state = BPF_TCP_ESTABLISHED;
		skb.sk = &sock;
	}
	packet.encapsulated = !!(given.skb & IS_ENCAPSULATED);
	packet.is_xdp = 0;
	set_packet(frame, length, linear < ETH_HLEN ? ETH_HLEN : linear);
}

/* Check what must hold after each program. */
static void check_tables(void)
{
	for (__u32 host_id = 0; host_id < PEERS; host_id++) {
		const struct mrc_peer *peer = &peers()[host_id];

		require(!peer->busy);
		require(!all_reports()[host_id].busy);
		require(!(peer->usable_planes >> PLANES));
		for (__u32 i = 1; i < MRC_EV_WORDS; i++)
			require(!peer->usable[i]);
		require(!(peer->usable[0] >> EVS));
		for (__u32 i = 0; i < EVS; i++) {
			const struct mrc_ev *ev = &evs()[host_id * EVS + i];

			require(ev->state <= MRC_EV_DENIED);
			require(ev->weight <= MRC_WEIGHT_FULL);
			require(ev->reason < MRC_REASON_MAX && ev->skip_reason < MRC_REASON_MAX);
			require(ev->configured || (ev->state == MRC_EV_UNKNOWN && !is_usable(peer, i)));
		}
	}
	require(!((struct mrc_clock *)mrc_clock.host.memory)->busy);
	require(!((struct mrc_clone_job *)mrc_clone_jobs.host.memory)->job);
	require(skb.data <= skb.data_end);
}

/* Run a tc program. Returns its verdict; `counted` is 1 if it dropped the packet for a reason. */
static int run(int (*program)(struct __sk_buff *), int *counted)
{
	__u64 before = drops_now();
	int verdict;

	host.nested_drops = 0;
	verdict = program(&skb);
	before += host.nested_drops;
	require(drops_now() == before || drops_now() == before + 1);
	*counted = drops_now() != before;
	require(verdict == TC_ACT_UNSPEC || verdict == TC_ACT_SHOT || verdict == TC_ACT_REDIRECT);
	require(!*counted || verdict == TC_ACT_SHOT);
	check_tables();
	return verdict;
}

/* Run the callback of a timer that the program has started. */
static void expire_timer(void)
{
	struct mrc_idle_timer *timer = (void *)timer_started;
	__u32 host_id;

	if (!timer)
		return;
	host_id = timer - (struct mrc_idle_timer *)mrc_idle_timers.host.memory;
	timer_started = 0;
	host.now += 5 * MS;
	host_timer_callback(&mrc_idle_timers, &host_id, timer);
	check_tables();
}

/* Run the daemon's tick on a packet of its own, and have the first links probed. */
static void run_tick(void)
{
	static const __u8 nothing[256];

	make_skb(nothing, sizeof(nothing), 0);
	packet.encapsulated = 0;
	skb.cb[1] = 2 * MRC_MAX_PLANES;
	mrc_probe_links(&skb);
	make_skb(nothing, sizeof(nothing), 0);
	packet.encapsulated = 0;
	host.now += 5 * MS;
	mrc_tick(&skb);
	check_tables();
}

#pragma clang attribute pop

#endif
