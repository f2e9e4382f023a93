# SPDX-License-Identifier: BSD-2-Clause
"""Finds the compiled eBPF object, which is in the package mrcd."""

import os
from pathlib import Path

from mrcd.errors import MachineError

OVERRIDE = "MRCD_OBJECT"


def object_path() -> Path:
    """Returns the path of mrc.bpf.o, or $MRCD_OBJECT if that is set. Raises MachineError if the file does not exist."""
    other = os.environ.get(OVERRIDE)
    path = Path(other) if other else Path(__file__).parents[1] / "mrc.bpf.o"
    if not path.is_file():
        hint = f"unset {OVERRIDE}, or compile that object" if other else "run `make build`"
        raise MachineError(f"{path}: the eBPF object has not been compiled", hint=hint)
    return path
