# SPDX-License-Identifier: BSD-2-Clause
"""Loads, pins, attaches and replaces the eBPF programs."""
