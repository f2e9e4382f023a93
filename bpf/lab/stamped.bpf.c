/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Drops the packets that have a time stamp of a clock other than the time of day, at the egress of an interface: tests
 * tell by it which packets fq would hold.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("tc")
int lab_stamped(struct __sk_buff *skb)
{
	return skb->tstamp_type ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}
