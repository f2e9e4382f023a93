# SPDX-License-Identifier: BSD-2-Clause
"""Sends, captures and decodes mrcd's packets: probe, trace, capture, and the probes of doctor."""
