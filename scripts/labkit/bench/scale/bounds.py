# SPDX-License-Identifier: BSD-2-Clause
"""States the requirements with 1,048,576 EVs."""

LOOK_S = 0.05  # a check of all peers, with a tick
DAEMON_BYTES = 300e6  # the daemon's own memory, see probe.memory
KERNEL_BYTES = 320e6
START_S = 10.0
IDLE_RATIO = 0.01  # share of a core while idle
SCRAPE_S = 1.0
PATHS_S = 0.15  # mrcctl paths --peer, with the start of mrcctl
