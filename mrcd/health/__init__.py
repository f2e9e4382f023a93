# SPDX-License-Identifier: BSD-2-Clause
"""Logs events, watches peers, and detects grey loss. The eBPF programs make all decisions with a deadline."""
