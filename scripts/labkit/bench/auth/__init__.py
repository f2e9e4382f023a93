# SPDX-License-Identifier: BSD-2-Clause
"""Attacks a flow with forged and recorded packets, changes its secrets, and measures the cost of the tags."""
