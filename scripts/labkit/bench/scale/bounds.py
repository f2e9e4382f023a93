"""What is allowed with 1,048,576 EVs."""

LOOK_S = 0.05  # at all peers, a tick with it
DAEMON_BYTES = 400e6  # of its own, see probe.memory
KERNEL_BYTES = 300e6
START_S = 20.0
IDLE_RATIO = 0.02  # of a core
