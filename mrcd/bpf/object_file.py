"""Where the compiled eBPF object is: in the package, in a checkout as in an installed package."""

import os
from pathlib import Path

from mrcd.errors import MachineError

OVERRIDE = "MRCD_OBJECT"


def object_path() -> Path:
    """Path of mrc.bpf.o; $MRCD_OBJECT, for trying another build. Raises MachineError if it is not there."""
    other = os.environ.get(OVERRIDE)
    path = Path(other) if other else Path(__file__).parents[1] / "mrc.bpf.o"
    if not path.is_file():
        hint = f"unset {OVERRIDE}, or build that object" if other else "run `make build`"
        raise MachineError(f"{path}: the eBPF object has not been compiled", hint=hint)
    return path
