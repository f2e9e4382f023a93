# SPDX-License-Identifier: BSD-2-Clause
"""Names the largest sizes of a cluster (EV numbers, host ids, uSIDs: see mrcd/fabric/srv6.py) and of packets."""

MAX_PLANES = 16
MAX_EVS_PER_PEER = 256
MAX_T0S = MAX_T1S = 512
MAX_PORTS = 1024
"""Ports of a T0 for hosts."""
MAX_HOST_ID = 65534
MAX_PREFIXES = 65536  # of hosts and classes together: entries of mrc_prefixes
SRH_MAX = 88  # bytes; MRC_SRH_MAX
BALLAST = 64  # bytes before the counts of a probe; MRC_BALLAST
KEY_IDS = 2  # secrets of a pair of hosts; MRC_KEY_IDS
SPORT_BASE = 0xC000  # UDP source port of EV 0; MRC_SPORT_BASE
