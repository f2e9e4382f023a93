# SPDX-License-Identifier: BSD-2-Clause
"""Names the largest sizes of a cluster: those of EV numbers, host ids and uSIDs (mrcd/fabric/srv6.py)."""

MAX_PLANES = 8
MAX_EVS_PER_PEER = 256
MAX_T0S = MAX_T1S = 512
MAX_PORTS = 1024
"""Ports of a T0 for hosts."""
MAX_HOST_ID = 65534
