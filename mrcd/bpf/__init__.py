# SPDX-License-Identifier: BSD-2-Clause
"""Calls libbpf and bpf(2): loads objects, reads BTF, pins, ring buffers and the kernel's data on programs and maps.

bcc is used as the binding to libbpf only: `bcc.libbcc.lib` is a handle of the libbpf that bcc links. Nothing is
compiled at run time. clang compiles the eBPF object ahead of time (`make build`).
"""
