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
from dataclasses import dataclass, fields, replace
from pathlib import Path

from labkit.faults.targets import Hook
from labkit.faults.tc_hook import attach as attach_at
from labkit.faults.tc_hook import remove
from labkit.places import lab_object
from mrcd.errors import MachineError
from mrcd.kernel import libbpf

OBJECT = lab_object("fault")
PROGRAM = "lab_fault"
ALWAYS = 1 << 32  # probabilities are in parts of 2^32
RATIOS = ("drop", "ce", "damage")
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
    first_drop_ns: int | None = None  # CLOCK_MONOTONIC


_COUNTERS = struct.Struct(f"={len(fields(Counters))}Q")


def attach(pins: Path, places: Iterable[tuple[str, str, Hook]]) -> None:
    """Attaches the program at each (namespace, interface, hook), inactive. Raises MachineError."""
    if not OBJECT.exists():
        raise MachineError(f"{OBJECT} is missing: the lab's fault program is not compiled", hint="make build")
    pins.mkdir(parents=True)
    obj = libbpf.open_object(OBJECT)
    try:
        libbpf.load_object(obj)
        program = libbpf.program_fd(obj, PROGRAM)
        for namespace, interface, hook in places:
            place = pins / "_".join((namespace, interface, hook))
            link = attach_at(program, namespace, interface, hook, pins.name)
            if link is None:
                place.mkdir()
                continue
            try:
                libbpf.pin(link, place)
            finally:
                os.close(link)
        maps = libbpf.maps_of(obj)
        for name in ("counters", "settings"):  # settings last: `attached` tests for them
            libbpf.pin(libbpf.map_fd(maps[name]), pins / name)
    finally:
        libbpf.close_object(obj)


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
    found = Counters(*_COUNTERS.unpack(raw or bytes(_COUNTERS.size)))
    return replace(found, first_drop_ns=found.first_drop_ns or None)


def detach(pins: Path) -> None:
    """Detaches the program from every port. No error if it was on none."""
    if pins.exists():
        for place in pins.iterdir():
            if place.is_dir():
                namespace, interface, hook = place.name.rsplit("_", 2)
                remove(namespace, interface, "ingress" if hook == "ingress" else "egress", pins.name)
        shutil.rmtree(pins)
