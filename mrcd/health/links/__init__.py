# SPDX-License-Identifier: BSD-2-Clause
"""Watches this host's own links by link probes: paces them, judges their counts, and logs changes.

verdicts.py decides (pure); watch.py keeps what the counts were, and logs events. bpf/link_probe.h sends and counts.
"""
