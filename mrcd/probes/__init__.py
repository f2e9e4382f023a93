# SPDX-License-Identifier: BSD-2-Clause
"""Sends diagnostic probes: packets that peers answer, and that neither end counts."""
