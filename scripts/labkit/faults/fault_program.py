# SPDX-License-Identifier: BSD-2-Clause
"""Controls the fault program (bpf/lab/fault.bpf.c): attach it inactive, start it at one instant, count, detach it.

A fault's pins live in one directory of the lab's bpffs: `settings` and `counters`, and per port one TCX
link, or a directory of its name where it is a clsact filter. All ports share the maps, so one map write
starts, changes or ends the fault everywhere.
"""

import os
import shutil
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from labkit.faults import tc_hook
from labkit.faults.targets import Hook
from labkit.places import lab_object
from mrcd.kernel import libbpf

OBJECT = lab_object("fault")
PROGRAM = "lab_fault"
ALWAYS = 1 << 32  # probabilities are in parts of 2^32
RATIOS = ("drop", "ce", "damage", "trim")
"""Effects that the program has on a ratio of the packets: the members of struct fault_settings, in its order.

Each is a field of inject.Fault, an argument of Lab.fail, and an option of `scripts/lab fail`.
"""
_SETTINGS = struct.Struct(f"={len(RATIOS)}Q")
_ONLY = struct.pack("=I", 0)


@dataclass(frozen=True)
class Counters:
    """Counts of a fault since it began, as struct fault_counters. The unit is an skb: a GSO burst is one."""

    passed_skbs: int = 0
    dropped_skbs: int = 0
    marked_skbs: int = 0
    damaged_skbs: int = 0
    trimmed_skbs: int = 0
    first_drop_ns: int | None = None  # CLOCK_MONOTONIC
    first_data_drops_ns: dict[int, int] = field(default_factory=dict)  # the same of hosts' data packets, by host id


_SENDERS = 256
_COUNTERS = struct.Struct(f"={len(fields(Counters)) - 1 + _SENDERS}Q")


def attach(pins: Path, places: Iterable[tuple[str, str, Hook]]) -> None:
    """Attaches the program at each (namespace, interface, hook), inactive. Raises MachineError."""
    with tc_hook.loaded("fault") as obj:
        pins.mkdir(parents=True)
        program = libbpf.program_fd(obj, PROGRAM)
        for namespace, interface, hook in places:
            place = pins / "_".join((namespace, interface, hook))
            link = tc_hook.attach(program, namespace, interface, hook, pins.name)
            if link is None:
                place.mkdir()
                continue
            try:
                libbpf.pin(link, place)
            finally:
                os.close(link)
        for name in ("counters", "settings"):  # settings last: `attached` tests for them
            libbpf.pin(tc_hook.map_fd(obj, name), pins / name)


def attached(pins: Path) -> bool:
    """Returns whether the program is on every port of that fault."""
    return (pins / "settings").exists()


def set_off(pins: Path, ratios: Sequence[float]) -> None:
    """Starts the fault on all ports, with the probabilities (0 to 1) of RATIOS, and counters at zero."""
    with libbpf.opened(pins / "counters") as fd:
        libbpf.update_elem(fd, _ONLY, bytes(_COUNTERS.size))
    _set(pins, ratios)


def disarm(pins: Path) -> None:
    """Lets all packets pass again; the counters stay."""
    _set(pins, [0] * len(RATIOS))


def _set(pins: Path, ratios: Sequence[float]) -> None:
    with libbpf.opened(pins / "settings") as fd:
        libbpf.update_elem(fd, _ONLY, _SETTINGS.pack(*(round(r * ALWAYS) for r in ratios)))


def read(pins: Path) -> Counters:
    """Returns the counters; zeros if nothing is attached there."""
    if not attached(pins):
        return Counters()
    with libbpf.opened(pins / "counters") as fd:
        raw = libbpf.lookup_elem(fd, _ONLY, _COUNTERS.size)
    numbers = _COUNTERS.unpack(raw or bytes(_COUNTERS.size))
    *counts, first_ns = numbers[:-_SENDERS]
    by_host = {number: ns for number, ns in enumerate(numbers[-_SENDERS:]) if ns}
    return Counters(*(*counts, first_ns or None, by_host))


def detach(pins: Path) -> None:
    """Detaches the program from every port. No error if it was on none."""
    if pins.exists():
        for place in pins.iterdir():
            if place.is_dir():
                namespace, interface, hook = place.name.rsplit("_", 2)
                tc_hook.remove(namespace, interface, "ingress" if hook == "ingress" else "egress", pins.name)
        shutil.rmtree(pins)
