"""The fault program (bpf/lab/fault.bpf.c): attach it harmless, set it off at one instant, count, take it away.

A fault's pins live in one directory of the lab's bpffs: `settings` and `counters`, and per port one TCX
link, or a directory of its name where it is a clsact filter. All ports share the maps, so one map write
starts, changes or ends the fault everywhere.
"""

import os
import shutil
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from labkit.faults.hook import attach as attach_at
from labkit.faults.hook import remove
from labkit.faults.targets import Hook
from labkit.places import lab_object
from mrcd.bpf import libbpf
from mrcd.errors import MachineError

OBJECT = lab_object("fault")
PROGRAM = "lab_fault"
ALWAYS = 1 << 32  # probabilities are in parts of 2^32
SETTINGS = struct.Struct("=QQQ")  # struct fault_settings: drop, ce, damage
COUNTERS = struct.Struct("=QQQQQ")  # struct fault_counters: passed, dropped, marked, damaged, first_drop_ns
_ONLY = struct.pack("=I", 0)


@dataclass(frozen=True)
class Counters:
    """What a fault has done since it began. The unit is an skb: a GSO burst is one."""

    passed_skbs: int = 0
    dropped_skbs: int = 0
    marked_skbs: int = 0
    damaged_skbs: int = 0
    first_drop_ns: int | None = None  # CLOCK_MONOTONIC


def attach(pins: Path, places: Iterable[tuple[str, str, Hook]]) -> None:
    """Attach at each (namespace, interface, hook), doing nothing yet. Raises MachineError."""
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
        for name in ("counters", "settings"):  # the settings last: `attached` looks for them
            libbpf.pin(libbpf.map_fd(maps[name]), pins / name)
    finally:
        libbpf.close_object(obj)


def attached(pins: Path) -> bool:
    """Is the program on every port of that fault?"""
    return (pins / "settings").exists()


def set_off(pins: Path, drop: float, ce: float, damage: float) -> None:
    """From now on, on all ports: drop, mark and damage with these probabilities (0 to 1), counting from zero."""
    with libbpf.opened(pins / "counters") as fd:
        libbpf.update_elem(fd, _ONLY, bytes(COUNTERS.size))
    _set(pins, drop, ce, damage)


def disarm(pins: Path) -> None:
    """From now on let everything pass; the counters stay."""
    _set(pins, 0, 0, 0)


def _set(pins: Path, *ratios: float) -> None:
    with libbpf.opened(pins / "settings") as fd:
        libbpf.update_elem(fd, _ONLY, SETTINGS.pack(*(round(r * ALWAYS) for r in ratios)))


def read(pins: Path) -> Counters:
    """The counters; zeros if nothing is attached there."""
    if not attached(pins):
        return Counters()
    with libbpf.opened(pins / "counters") as fd:
        raw = libbpf.lookup_elem(fd, _ONLY, COUNTERS.size)
    passed, dropped, marked, damaged, first_drop_ns = COUNTERS.unpack(raw or bytes(COUNTERS.size))
    return Counters(passed, dropped, marked, damaged, first_drop_ns or None)


def detach(pins: Path) -> None:
    """Take the program off every port. No error if it was on none."""
    if pins.exists():
        for place in pins.iterdir():
            if place.is_dir():
                namespace, interface, hook = place.name.rsplit("_", 2)
                remove(namespace, interface, "ingress" if hook == "ingress" else "egress", pins.name)
        shutil.rmtree(pins)
