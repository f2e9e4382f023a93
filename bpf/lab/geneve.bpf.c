/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Gives each packet of a Geneve device an option with an MRC header of its own: `scripts/kernels geneve` compares this
 * with mrcd's encapsulation. It is attached at the egress of the device, behind act_tunnel_key, which names the addresses.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../mrc_wire.h"

#define OPTION_CLASS 0xff00 /* for experiments (RFC 8926 §7) */

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct option {
	__be16 class;
	__u8 type;
	__u8 length; /* of what follows, in words of 4 bytes */
	struct mrc_hdr mrc;
} __attribute__((packed));
_Static_assert(sizeof(struct option) == 4 + sizeof(struct mrc_hdr), "the option has no padding");

__u32 sent; /* packets of the device: a GSO burst counts once, as in burst granularity */

SEC("tc")
int lab_geneve(struct __sk_buff *skb)
{
	struct option option = {
		.class = bpf_htons(OPTION_CLASS),
		.type = 1,
		.length = sizeof(struct mrc_hdr) / 4,
		.mrc = { .version = MRC_WIRE_VERSION, .type = MRC_DATA, .tx_ns = bpf_cpu_to_be64(bpf_ktime_get_ns()) },
	};
	struct bpf_tunnel_key key = {};
	__u32 there[4];

	if (bpf_skb_get_tunnel_key(skb, &key, sizeof(key), BPF_F_TUNINFO_IPV6))
		return TC_ACT_SHOT;
	/* The kernel reads the addresses as those of a received packet. */
	__builtin_memcpy(there, key.local_ipv6, sizeof(there));
	__builtin_memcpy(key.local_ipv6, key.remote_ipv6, sizeof(there));
	__builtin_memcpy(key.remote_ipv6, there, sizeof(there));
	option.mrc.seq = bpf_htonl(__sync_fetch_and_add(&sent, 1));
	if (bpf_skb_set_tunnel_key(skb, &key, sizeof(key), BPF_F_TUNINFO_IPV6 | BPF_F_ZERO_CSUM_TX) ||
	    bpf_skb_set_tunnel_opt(skb, &option, sizeof(option)))
		return TC_ACT_SHOT;
	return TC_ACT_UNSPEC;
}
