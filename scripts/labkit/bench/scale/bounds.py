"""What is allowed with 1,048,576 EVs."""

LOOK_S = 0.05  # at all peers, a tick with it
DAEMON_BYTES = 300e6  # of its own, see probe.memory
KERNEL_BYTES = 320e6
START_S = 10.0
IDLE_RATIO = 0.01  # of a core
SCRAPE_S = 1.0
PATHS_S = 0.15  # mrcctl paths --peer, the start of mrcctl included
