"""How long a lab waits for what should come at once: longer where the CPU is emulated (LAB_PATIENCE, a factor)."""

import os

FACTOR = float(os.environ.get("LAB_PATIENCE", "1"))
EMULATED = FACTOR > 5  # no machine that is only busy is as slow


def patience(seconds: float) -> float:
    """The deadline on this machine of what a machine of its own has in `seconds`."""
    return seconds * FACTOR
