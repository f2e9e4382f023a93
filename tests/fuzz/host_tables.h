/* SPDX-License-Identifier: BSD-2-Clause */
/* Makes the tables of the fuzzed host, and fills them as the daemon would. Part of host.h. */
#ifndef FUZZ_HOST_TABLES_H
#define FUZZ_HOST_TABLES_H

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
	FIXED_MAP(mrc_dup_ack_times);
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

#endif
