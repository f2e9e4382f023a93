/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Defines what all probe code shares: sending (send_probe.h, piggyback.h), answering (answer_probe.h) and applying
 * replies (apply_reply.h).
 *
 * The sender counts data packets per EV, and the receiver counts arrivals per EV. A report returns the receiver's
 * counts of all EVs. Sent minus received is the loss on each path, in whatever order packets arrived. A path without
 * arrivals shows without a probe on it. Packets sent too shortly before the request may still be in flight, and are
 * left out. Single probes per EV would take as many more probes for the same delay as there are EVs.
 */
#ifndef MRC_PROBE_H
#define MRC_PROBE_H

#include "headers.h"

#define REORDERED_NS 1000000000ULL /* an older timestamp is no reordering: the peer's clock has restarted */

/* Traffic pays for a piggybacked request by so many packets and bytes. It also adds a third of a request to the host's
 * budget. So requests are 2 % of the packets in the long run, and 1 % of the bytes.
 */
#define PACKETS_PER_PROBE 67
#define BYTES_PER_PROBE_BYTE 134

#define BUDGET_BYTES 512 /* a longer request costs the budget more than one */

/* Return the part of the host's budget that is reserved for more urgent probes: an eighth. */
static __always_inline __u32 budget_reserve(void)
{
	return health.idle_probes / 8;
}

/* Return the bytes after the MRC header. They include room for an SRH, because a reply may need a longer one than its
 * request.
 */
static __always_inline __u32 probe_length(__u32 counts)
{
	__u32 length = sizeof(struct mrc_probe) + (settings.srh ? MRC_SRH_MAX : 0);

	return counts ? length + MRC_BALLAST + counts * sizeof(struct mrc_count) : length;
}

/* Return what a request of this length on the wire costs the host's budget. */
static __always_inline __u32 budget_cost(__u32 length)
{
	return 1 + length / BUDGET_BYTES;
}

/* Return the cost of a request for a report of `counts` EVs that carries nothing else. */
static __always_inline __u32 report_cost(__u32 counts)
{
	return budget_cost(OUTER_L3 + sizeof(struct outer_l4) + probe_length(counts));
}

/* Return the offset of a probe: behind the outer headers of its path. */
static __always_inline __u32 probe_at(const struct mrc_ev *path)
{
	return ETH_HLEN + outer_length(path);
}

/* Write headers and probe over the skb's contents; the skb has their length already. */
static __always_inline int write_control(struct __sk_buff *skb, struct push *p, const struct control *c)
{
	__u32 at = probe_at(p->ev);

	if (skb->len < at + sizeof(c->probe) || bpf_skb_pull_data(skb, at + sizeof(c->probe)))
		return -1;
	p->payload = skb->len - at;
	if (write_outer(skb, p, &c->mrc))
		return -1;
	return bpf_skb_store_bytes(skb, at, &c->probe, sizeof(c->probe), 0);
}

/* Return the bytes of a report's counts, or 0 if there are too many. */
static __always_inline __u32 counts_bytes(const struct control *c)
{
	__u32 bytes = bpf_ntohs(c->probe.counts) * sizeof(struct mrc_count);

	OPAQUE(bytes);
	return bytes <= MRC_REPORT_EVS * sizeof(struct mrc_count) ? bytes : 0;
}

/* Return 1 if a packet sent at `sent_ns` was overtaken by one sent at `newest_ns`, both by the peer's clock. */
static __always_inline int is_overtaken(__u64 sent_ns, __u64 newest_ns)
{
	return sent_ns < newest_ns && newest_ns - sent_ns < REORDERED_NS;
}

/* Return how many reports cover all EVs. */
static __always_inline __u32 report_parts(void)
{
	return (settings.evs_per_peer + MRC_REPORT_EVS - 1) / MRC_REPORT_EVS ?: 1;
}

/* Return how many reports can be in flight: as many as there are marks for. */
static __always_inline __u32 reports_kept(void)
{
	return MRC_REPORTS_KEPT * report_parts();
}

/* Return the EVs in a report, and set `first` to the first of them: the parts of the EVs take turns. */
static __always_inline __u32 report_size(__u32 report_seq, __u32 *first)
{
	*first = report_seq % report_parts() * MRC_REPORT_EVS;
	return settings.evs_per_peer - *first < MRC_REPORT_EVS ? settings.evs_per_peer - *first : MRC_REPORT_EVS;
}

#endif
