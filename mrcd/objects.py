"""Where the compiled eBPF object is: beside this module, in a checkout as in an installed package."""

from pathlib import Path

from mrcd.errors import MachineError


def object_path() -> Path:
    """Path of mrc.bpf.o. Raises MachineError if it has not been built."""
    path = Path(__file__).with_name("mrc.bpf.o")
    if not path.is_file():
        raise MachineError(f"{path}: the eBPF object has not been compiled", hint="run `make build`")
    return path
