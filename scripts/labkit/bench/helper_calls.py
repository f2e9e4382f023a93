# SPDX-License-Identifier: BSD-2-Clause
"""Counts helper calls per packet, in the programs themselves.

build/counted.bpf.o is built from the same source, with every call of a helper counted in a global variable
(counted.h). No tool outside can count them: the verifier replaces the call of an array look-up by code.
"""

import struct
from collections.abc import Callable

from labkit.bench.bare_host import BareHost
from labkit.cluster.observe import Document
from labkit.places import REPOSITORY
from mrcd.errors import MachineError
from mrcd.kernel import libbpf

OBJECT = REPOSITORY / "build/counted.bpf.o"
COUNTED = (
    "lookups",
    "times",
    "stores",
    "loads",
    "adjusts",
    "clones",
    "redirects",
    "pulls",
    "loops",
    "hashes",
)  # in the order of counted.h
_KEY = struct.pack("I", 0)


def require() -> None:
    """Raises MachineError if the object is not compiled."""
    if not OBJECT.exists():
        raise MachineError(f"{OBJECT} is missing: the programs that count their calls", hint="make build")


def per_packet(bare: BareHost, send: Callable[[int], object], packets: int) -> Document:
    """Returns the mean calls per packet of all attached programs, while `packets` packets are sent."""
    fd = bare.dataplane.global_data()
    before = _read(fd)
    send(packets)
    after = _read(fd)
    return {word: (now - then) / packets for word, then, now in zip(COUNTED, before, after, strict=True)}


def _read(fd: int) -> tuple[int, ...]:
    raw = libbpf.lookup_elem(fd, _KEY, 8 * len(COUNTED))
    if raw is None:
        raise MachineError("the programs that count their calls have no counters", hint="make clean, make build")
    return struct.unpack(f"{len(COUNTED)}Q", raw)
