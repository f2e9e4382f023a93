# SPDX-License-Identifier: BSD-2-Clause
"""Loads, pins, attaches and replaces the eBPF programs, and maps their tables as numpy arrays.

bcc is used as the binding to libbpf only: `bcc.libbcc.lib` is a handle of the libbpf that bcc links. Nothing is
compiled at run time. clang compiles the eBPF object ahead of time (`make build`).
"""
