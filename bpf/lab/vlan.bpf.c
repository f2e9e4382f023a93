/* The lab's VLAN: a switch port that sends and takes frames of one VLAN with its tag, for kernels without 8021q.
 *
 * Attached by scripts/kernels at a veth between a switch and a virtual machine's tap: what comes from the switch gets the
 * tag, and what goes to it loses its tag. What the machine has sent without one is dropped, as a switch would.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define VLAN 100 /* labkit.kernels.pair.VLAN */
#define VLAN_VID_MASK 0x0fff

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* At ingress: from the switch. */
SEC("tc")
int lab_tag(struct __sk_buff *skb)
{
	return bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), VLAN) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* At egress: to the switch. */
SEC("tc")
int lab_untag(struct __sk_buff *skb)
{
	if (!skb->vlan_present || (skb->vlan_tci & VLAN_VID_MASK) != VLAN)
		return TC_ACT_SHOT;
	return bpf_skb_vlan_pop(skb) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}
