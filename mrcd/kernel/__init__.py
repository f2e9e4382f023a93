# SPDX-License-Identifier: BSD-2-Clause
"""Loads, pins, attaches and replaces the eBPF programs, and maps their tables as numpy arrays.

Of bcc only the libbpf that it links is used. Nothing is compiled at run time. clang compiles the eBPF object ahead of
time (`make build`).
"""
