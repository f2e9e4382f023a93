/* Probes: asking peers what has arrived (send_probe.h), answering them (answer_probe.h), judging by what they say
 * (apply_reply.h). Here is what these have in common.
 *
 * The sender counts data packets per EV, the receiver counts what came by it. A report brings the
 * receiver's counts of all EVs back: sent minus received is the loss on each path, whatever order
 * packets arrived in, and a path on which nothing arrives is seen without a probe on it. What was
 * sent too shortly before the report was asked for may be on its way yet: that is left out. (A probe per EV, each
 * in its turn, needs as many times more of them for the same delay as there are EVs.)
 */
#ifndef MRC_PROBE_H
#define MRC_PROBE_H

#include "headers.h"

#define REORDERED_NS 1000000000ULL /* older than this is not reordering but a restarted clock */

/* So many packets and bytes pay for a request that rides on them, and for a third of one more out of the host's budget: so
 * that requests are 2 % of the packets in the long run, and 1 % of the bytes.
 */
#define PACKETS_PER_PROBE 67
#define BYTES_PER_PROBE_BYTE 134
#define BUDGET_BYTES 512 /* longer requests take more than one from the host's budget */

/* Bytes behind the MRC header. Room for any SRH: a reply may need a longer one than its request. */
static __always_inline __u32 probe_length(__u32 counts)
{
	__u32 length = sizeof(struct mrc_probe) + (settings.srh ? MRC_SRH_MAX : 0);

	return counts ? length + MRC_BALLAST + counts * sizeof(struct mrc_count) : length;
}

/* What a request of this length on the wire takes from the host's budget. */
static __always_inline __u32 budget_cost(__u32 length)
{
	return 1 + length / BUDGET_BYTES;
}

/* The same of one that asks for a report of so many EVs, and carries nothing else. */
static __always_inline __u32 report_cost(__u32 counts)
{
	return budget_cost(OUTER_L3 + sizeof(struct outer_l4) + probe_length(counts));
}

/* Where a probe's content begins: behind the outer headers of its path. */
static __always_inline __u32 probe_at(const struct mrc_ev *path)
{
	return ETH_HLEN + outer_length(path);
}

/* Write headers and probe over whatever is in the skb, which has their length already. */
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

/* Bytes of the counts of a report, or 0 if there are too many. */
static __always_inline __u32 counts_bytes(const struct control *c)
{
	__u32 bytes = bpf_ntohs(c->probe.counts) * sizeof(struct mrc_count);

	OPAQUE(bytes);
	return bytes <= MRC_REPORT_EVS * sizeof(struct mrc_count) ? bytes : 0;
}

/* Whether what the peer said at `said` by its clock was overtaken by what it said at `told`. */
static __always_inline int is_overtaken(__u64 said, __u64 told)
{
	return said < told && told - said < REORDERED_NS;
}

static __always_inline __u32 report_chunks(void)
{
	return (settings.evs_per_peer + MRC_REPORT_EVS - 1) / MRC_REPORT_EVS ?: 1;
}

/* Rounds that may be under way: as many as there are marks for. */
static __always_inline __u32 reports_kept(void)
{
	return MRC_REPORTS_KEPT * report_chunks();
}

/* EVs in the report of a round, from EV `first` on: chunks take turns. */
static __always_inline __u32 report_size(__u32 report_seq, __u32 *first)
{
	*first = report_seq % report_chunks() * MRC_REPORT_EVS;
	return settings.evs_per_peer - *first < MRC_REPORT_EVS ? settings.evs_per_peer - *first : MRC_REPORT_EVS;
}

#endif
