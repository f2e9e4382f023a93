# SPDX-License-Identifier: BSD-2-Clause
"""Scales deadlines: LAB_PATIENCE is a factor for machines with an emulated CPU."""

import os

FACTOR = float(os.environ.get("LAB_PATIENCE", "1"))
EMULATED = FACTOR > 5  # a busy real machine never needs this factor


def patience(seconds: float) -> float:
    """Returns the deadline on this machine for what takes `seconds` on an idle real one."""
    return seconds * FACTOR
