/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tags the frames of a switch port with one VLAN, for kernels without 8021q.
 *
 * scripts/kernels attaches it at a veth between a switch and a virtual machine's tap. Frames from the switch get the
 * tag; frames to the switch lose it. Untagged frames of the machine are dropped, as a switch would do.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define VLAN 100 /* as labkit.kernels.pair.VLAN */
#define VLAN_VID_MASK 0x0fff

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Tag a frame, at ingress: it comes from the switch. */
SEC("tc")
int lab_tag(struct __sk_buff *skb)
{
	return bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), VLAN) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* Untag a frame, at egress: it goes to the switch. */
SEC("tc")
int lab_untag(struct __sk_buff *skb)
{
	if (!skb->vlan_present || (skb->vlan_tci & VLAN_VID_MASK) != VLAN)
		return TC_ACT_SHOT;
	return bpf_skb_vlan_pop(skb) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}
