/* SPDX-License-Identifier: BSD-2-Clause */
/* Replaces libbpf's <bpf/bpf_core_read.h>: reads of the kernel's sk_buff go to `kernel_skb` of helpers.h. */
#ifndef FUZZ_BPF_CORE_READ_H
#define FUZZ_BPF_CORE_READ_H

void *host_kernel_skb(void);
long host_read_kernel(void *to, __u32 length, const void *from);

#define BPF_CORE_READ_BITFIELD(from, field) ((from)->field)
#define BPF_CORE_READ_BITFIELD_PROBED(from, field) (((typeof(from))host_kernel_skb())->field)
#define bpf_core_read(to, length, from) host_read_kernel(to, length, from)
#define bpf_probe_read_kernel(to, length, from) host_read_kernel(to, length, from)
#define BPF_CORE_READ(from, field)                                                                                \
	({                                                                                                         \
		typeof((from)->field + 0) value = 0;                                                               \
		host_read_kernel(&value, sizeof(value), &(from)->field);                                           \
		value;                                                                                             \
	})
#define bpf_core_field_offset(kind, field) offsetof(kind, field)
#define bpf_core_type_size(kind) sizeof(kind)
#define bpf_core_enum_value_exists(kind, name) 0
#define bpf_core_enum_value(kind, name) (name)

#endif
