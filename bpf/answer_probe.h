/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Answers a peer's probes: the reply carries this host's receive counts and its status. */
#ifndef MRC_ANSWER_PROBE_H
#define MRC_ANSWER_PROBE_H

#include "maps.h"
#include "probe.h"
#include "kernel_sids.h"
#include "spray.h"

/* Read the sender's status from a probe: links, status bits, generation, cluster file. An older probe that a newer one overtook on
 * another path must not undo the newer one's news.
 */
static __always_inline void learn_status(struct mrc_peer *peer, __u32 host_id, const struct control *control)
{
	__u64 sent = bpf_be64_to_cpu(control->mrc.tx_ns), now = now_ns();
	__u32 plane_mask = bpf_ntohs(control->probe.plane_mask), status = bpf_ntohs(control->probe.status);

	if (is_unheard(peer, now) || status & (MRC_STATUS_DETACHED | MRC_STATUS_PLAIN))
		peer->plain_ns = now;
	peer->heard_ns = now;
	if (is_overtaken(sent, peer->plane_mask_ns))
		return;
	peer->plane_mask_ns = sent;
	if (peer->status != status || peer->plane_mask != plane_mask ||
	    peer->key_ids[0] != control->probe.key_ids[0] || peer->key_ids[1] != control->probe.key_ids[1])
		end_calm(host_id); /* the daemon has to know */
	peer->generation = bpf_ntohl(control->probe.generation);
	peer->key_ids[0] = control->probe.key_ids[0];
	peer->key_ids[1] = control->probe.key_ids[1];
	peer->fingerprint = bpf_ntohs(control->probe.fingerprint);
	if (peer->status != status) /* conditional, because every packet reads this cache line */
		peer->status = status;
	if (peer->plane_mask == plane_mask)
		return;
	peer->plane_mask = plane_mask;
	refresh_usable(peer, host_id);
}

/* Return the EV for the reply: a usable EV of the same plane, another one for each probe, so that a failure on one
 * reverse path is not charged to one forward path. Without a usable EV there, the plane may be dead in this direction
 * only: a usable EV of another plane. A tool's reply stays on the plane that the tool measures, and listens to. Without
 * any usable EV: the EV that mirrors the request's path.
 */
static __always_inline __u32 reply_ev(struct mrc_peer *peer, const struct control *request, __u32 plane, __u32 number)
{
	__u32 cursor = bpf_ntohl(request->probe.seq) + number;
	__u32 slot = usable_slot(peer, plane, cursor % peer->slots), other;

	if (slot != NO_SLOT)
		return plane * settings.evs_per_plane + slot;
	other = request->mrc.flags & MRC_FLAG_DIAGNOSTIC ? NO_SLOT : any_usable(peer, ~0u, cursor);
	return other == NO_SLOT ? number : other;
}

/* Counts being written for a report. */
struct counting {
	struct mrc_scratch *scratch;
	__u32 index;
};

/* Copy the receive counts of an EV. */
static long count_ev(__u64 i, void *context)
{
	struct counting *c = context;
	__u32 index = c->index + i;
	struct mrc_rx *rx = bpf_map_lookup_elem(&mrc_rxs, &index);
	struct mrc_count *count = &c->scratch->count[i & (MRC_REPORT_EVS - 1)];

	if (!rx)
		return 1;
	count->packets = bpf_htonl(rx->packets);
	count->probes = bpf_htons(rx->probes);
	count->ce = bpf_htons(rx->ce);
	return 0;
}

/* Return 1 if the EVs of the requested report exist, and a packet of `length` bytes has room for their counts behind a
 * probe at offset `at`.
 */
static __always_inline int report_fits(const struct control *c, __u32 length, __u32 at)
{
	__u32 first = bpf_ntohs(c->probe.first), counts = bpf_ntohs(c->probe.counts);

	return counts <= MRC_REPORT_EVS && first + counts <= settings.evs_per_peer &&
	       length >= at + sizeof(c->probe) + MRC_BALLAST + counts * sizeof(struct mrc_count);
}

/* Write the report's counts into `scratch`. */
static __always_inline void make_report(const struct control *c, struct mrc_scratch *scratch, __u32 host_id)
{
	struct counting counting = { .index = ev_index(host_id, bpf_ntohs(c->probe.first)), .scratch = scratch };

	bpf_loop(counts_bytes(c) / sizeof(struct mrc_count), count_ev, &counting, 0);
}

/* Write the report's counts into the reply, at offset `at`. Returns 0 or an error. */
static __always_inline int write_counts(struct __sk_buff *skb, const struct control *c,
					const struct mrc_scratch *scratch, __u32 at)
{
	__u32 bytes = counts_bytes(c);

	OPAQUE(bytes);
	if (bytes < sizeof(struct mrc_count) || bytes > sizeof(scratch->count))
		return -1;
	OPAQUE(bytes);
	return bpf_skb_store_bytes(skb, at, scratch->count, bytes, 0);
}

/* Turn a request into its reply and send it. The request arrived on EV `number` of `plane`, with this traffic class. */
static __always_inline int answer_probe(struct __sk_buff *skb, struct mrc_scratch *scratch, struct mrc_peer *peer,
					__u32 host_id, __u32 number, __u32 plane, __u8 class)
{
	__u32 index = ev_index(host_id, number), at;
	struct control *c = &scratch->control;
	struct mrc_rx *rx = bpf_map_lookup_elem(&mrc_rxs, &index);
	struct mrc_auth *auth = auth_at(host_id);
	struct mrc_node *self = node();
	struct push p = {};

	if (!rx || !auth || !self || push_by(&p, host_id, reply_ev(peer, c, plane, number)))
		return drop_skb(MRC_DROP_REPLY_FAILED);
	if (!(c->mrc.flags & MRC_FLAG_DIAGNOSTIC))
		__sync_fetch_and_add(&rx->probes, 1);
	/* Other NICs do not answer yet, or count in other tables: their packets would look lost. */
	if (!self->generation)
		return TC_ACT_SHOT;
	/* The request's queues, which may mark the reply but not drop it. */
	p.traffic_class = (class & ~ECN_MASK) | ECN_ECT0;
	c->mrc.type = MRC_PROBE_REPLY;
	c->mrc.sender = bpf_htons(settings.host_id);
	c->mrc.receiver = bpf_htons(host_id);
	c->mrc.tx_ns = bpf_cpu_to_be64(now_ns());
	announce(&c->probe, auth, self);
	at = probe_at(p.ev);
	if (c->probe.counts) {
		if (!report_fits(c, skb->len, at))
			return drop_skb(MRC_DROP_BAD_PROBE);
		make_report(c, scratch, host_id);
	}
	tag_reply(scratch, auth);
	if (write_control(skb, &p, c) ||
	    (c->probe.counts && write_counts(skb, c, scratch, at + sizeof(c->probe) + MRC_BALLAST)))
		return drop_skb(MRC_DROP_REPLY_FAILED);
	return send_skb(skb, p.plane);
}

#endif
