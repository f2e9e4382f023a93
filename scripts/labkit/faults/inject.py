# SPDX-License-Identifier: BSD-2-Clause
"""Makes faults, and heals them.

A fault has one or more effects: packets dropped, damaged, trimmed or marked (the fault program, on switch ports), a
rate (tbf on the sending ends of each link), a delay (a relay there), a smaller MTU (of switch ports), and the link
down, which excludes the others. All but the last two may be limited to one direction (targets.py). The state of each
port follows from the whole set of active faults, so faults on different targets may overlap; a second fault on the same
target replaces the first.
"""

import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labkit.cluster import netns, render
from labkit.cluster.fabric import Fabric, Link, PortRef
from labkit.cluster.state import State, write_whole
from labkit.faults import delay, fault_program, targets
from labkit.faults.fault_program import RATIOS
from labkit.faults.targets import DIRECTIONS, Direction, Target
from mrcd.errors import MrcdError, UsageError

_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmg]?)bit", re.IGNORECASE)
_UNIT = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%?")
MIN_RATE = 100_000
MAX_DELAY_S = 10.0
MIN_MTU = 1280  # with less the kernel has no IPv6 there
SETTLE_S = 3.0


def parse_rate(text: str) -> int:
    """Parses `50mbit` → bits per second. Raises UsageError."""
    match = _RATE.fullmatch(text)
    bits = round(float(match[1]) * _UNIT[match[2].lower()]) if match else 0
    if bits < MIN_RATE:
        raise UsageError(f"{text!r} is not a link rate", hint="e.g. 50mbit, 2.5gbit; at least 100kbit")
    return bits


def parse_time(text: str) -> float:
    """Parses `5ms` → seconds. Raises UsageError."""
    match = _TIME.fullmatch(text)
    if not match:
        raise UsageError(f"{text!r} is not a time", hint="e.g. 5ms, 500us, 0.1s")
    return float(match[1]) * _SECONDS[match[2]]


def parse_percent(text: str) -> float:
    """Parses `20%` → 0.2. Raises UsageError."""
    match = _PERCENT.fullmatch(text)
    if not match or float(match[1]) > 100:
        raise UsageError(f"{text!r} is not a share of the packets", hint="e.g. 20% or 0.1%, at most 100%")
    return float(match[1]) / 100


@dataclass(frozen=True)
class Fault:
    """The effects of a fault at a target. Ratios are 0 to 1."""

    drop: float = 0.0
    ce: float = 0.0
    rate_bits_per_s: int | None = None
    down: bool = False
    direction: Direction = "both"
    delay_s: float = 0.0
    damage: float = 0.0
    mtu: int | None = None
    trim: float = 0.0

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            raise UsageError(f"{self.direction!r} is not a direction", hint=f"one of {', '.join(DIRECTIONS)}")
        for name, ratio in zip(RATIOS, self.ratios, strict=True):
            if not 0 <= ratio <= 1:
                raise UsageError(f"{name} = {ratio} is out of range", hint="a ratio from 0 to 1; 0.2 is 20 %")
        if not 0 <= self.delay_s <= MAX_DELAY_S:
            raise UsageError(f"a delay of {self.delay_s:g} s is out of range", hint=f"at most {MAX_DELAY_S:g} s")
        if self.mtu is not None and self.mtu < MIN_MTU:
            raise UsageError(f"an MTU of {self.mtu} is out of range", hint=f"at least {MIN_MTU}, for IPv6")
        if not (self.needs_program or self.rate_bits_per_s or self.down or self.delay_s or self.mtu):
            hint = f"give one of {', '.join(f'--{name}' for name in (*RATIOS, 'down', 'rate', 'delay', 'mtu'))}"
            raise UsageError("the fault has no effect", hint=hint)
        if self.down and (self.needs_program or self.rate_bits_per_s or self.delay_s or self.mtu):
            raise UsageError("a link that is down carries no packets for another effect", hint="give --down alone")
        if self.down and self.direction != "both":
            raise UsageError("a link loses its carrier in both directions", hint="give --drop for one of them")
        if self.mtu and self.direction != "both":
            raise UsageError("a port has one MTU for both directions", hint="leave --direction out")

    @property
    def ratios(self) -> tuple[float, ...]:
        """Returns its RATIOS, in their order."""
        return tuple(getattr(self, name) for name in RATIOS)

    @property
    def needs_program(self) -> bool:
        """Returns whether it needs the fault program."""
        return any(self.ratios)

    @property
    def what(self) -> str:
        """Returns a description."""
        parts = [f"{name} {ratio * 100:g}%" for name, ratio in zip(RATIOS, self.ratios, strict=True) if ratio]
        parts += [f"rate {self.rate_bits_per_s / 1e6:g} Mbit/s" if self.rate_bits_per_s else ""]
        parts += [f"delay {self.delay_s * 1000:g} ms" if self.delay_s else ""]
        parts += [f"MTU {self.mtu}" if self.mtu else ""]
        parts += ["link down" if self.down else ""]
        one_way = "" if self.direction == "both" else f" ({self.direction} only)"
        return ", ".join(p for p in parts if p) + one_way


@dataclass(frozen=True)
class PortState:
    """The desired state of a port."""

    down: bool = False
    rate_bits_per_s: int | None = None
    mtu: int | None = None


def desired(fabric: Fabric, active: dict[str, Fault]) -> dict[PortRef, PortState]:
    """Returns every port whose state is not the default: up, unlimited, with the MTU of the lab. Pure."""
    base = fabric.parameters.rate_bits_per_s
    states = {end: PortState(rate_bits_per_s=base) for k in fabric.links for end in (k.upper, k.lower)} if base else {}
    for text, fault in active.items():
        target = targets.parse(fabric, text, fault.direction)
        for end in target.closers if fault.down else ():
            states[end] = replace(states.get(end, PortState()), down=True)
        for end in target.ends if fault.rate_bits_per_s else ():
            old = states.get(end, PortState())
            rates = [r for r in (old.rate_bits_per_s, fault.rate_bits_per_s) if r]
            states[end] = replace(old, rate_bits_per_s=min(rates))
        for end in target.ends if fault.mtu else ():
            if end.node not in fabric.hosts:
                old = states.get(end, PortState())
                states[end] = replace(old, mtu=min(m for m in (old.mtu, fault.mtu) if m))
    return states


def apply_ports(fabric: Fabric, before: dict[PortRef, PortState], after: dict[PortRef, PortState]) -> None:
    """Changes the ports from one desired state to another. Raises MachineError."""
    changed = [e for e in {**before, **after} if before.get(e, PortState()) != after.get(e, PortState())]
    for node in dict.fromkeys(e.node for e in changed):
        old = {e.port: before.get(e, PortState()) for e in changed if e.node == node}
        new = {e.port: after.get(e, PortState()) for e in changed if e.node == node}
        namespace = fabric.namespace(node)
        closing = [p for p in new if new[p].down and not old[p].down]
        netns.batch_in(namespace, ("ip",), (f"link set dev {p} down" for p in closing))
        if any(old[p].down and not new[p].down for p in new):
            # Down removed the port's addresses, neighbours and routes: configure the node again.
            down = {e.port for e, s in after.items() if e.node == node and s.down}
            netns.batch_in(namespace, ("ip", "-6"), render.configure(fabric.nodes[node], down))
        shaping = (
            render.shape(p, new[p].rate_bits_per_s) for p in new if new[p].rate_bits_per_s != old[p].rate_bits_per_s
        )
        netns.batch_in(namespace, ("tc",), shaping)
        usual = fabric.parameters.mtu
        mtus = (f"link set dev {p} mtu {new[p].mtu or usual}" for p in new if new[p].mtu != old[p].mtu)
        netns.batch_in(namespace, ("ip",), mtus)
    closed = {e for e, s in after.items() if s.down}
    opened = {e for e, s in before.items() if s.down} - closed
    settle(fabric, (k for k in fabric.links if opened & {k.upper, k.lower} and not closed & {k.upper, k.lower}))


def settle(fabric: Fabric, links: Iterable[Link]) -> None:
    """Waits until these links carry packets: the kernel starts a port's queues some time after its carrier."""
    waiting = {end for k in links for end in (k.upper, k.lower)}
    deadline = time.monotonic() + SETTLE_S
    while waiting and time.monotonic() < deadline:
        for end in list(waiting):
            with netns.inside(fabric.namespace(end.node)):
                if netns.running(end.port):
                    waiting.remove(end)
        if waiting:
            time.sleep(0.002)


def fail(state: State, fabric: Fabric, text: str, fault: Fault) -> dict[str, Any]:
    """Makes a fault. Returns its record: target, what, the ratios, and when it began."""
    target = targets.parse(fabric, text, fault.direction)
    if state.faults().get(text, {}).get("monotonic_ns", 0) is None:
        heal(state, fabric, [text])  # left by an earlier `fail` that was killed
    before = _active(state)
    after = {**before, text: fault}
    pins = state.pins / target.slug
    record = {"target": text, "what": fault.what, **asdict(fault), "monotonic_ns": None}
    write_whole(
        state.fault_file(target.slug), record
    )  # before the fault: if this process dies, `heal` finds the record
    try:
        elsewhere = text in before and before[text].direction != fault.direction
        if not (fault.needs_program and fault_program.attached(pins)) or elsewhere:
            fault_program.detach(pins)
        if fault.needs_program and not fault_program.attached(pins):
            fault_program.attach(pins, ((fabric.namespace(e.node), e.port, d) for e, d in target.taps))
        record["monotonic_ns"] = time.monotonic_ns()
        if fault.needs_program:
            fault_program.set_off(pins, fault.ratios)
        apply_ports(fabric, desired(fabric, before), desired(fabric, after))
        delay.stop(*_relay(state, target))
        if fault.delay_s:
            delay.start(
                *_relay(state, target), [(fabric.namespace(e.node), e.port) for e in target.ends], fault.delay_s
            )
    except MrcdError:
        delay.stop(*_relay(state, target))
        fault_program.detach(pins)
        apply_ports(fabric, desired(fabric, after), desired(fabric, {k: v for k, v in before.items() if k != text}))
        state.fault_file(target.slug).unlink()
        raise
    write_whole(state.fault_file(target.slug), record)
    return record


def _relay(state: State, target: Target) -> tuple[Path, Path]:
    """Returns the record of a delay's process, and the directory of its pins."""
    return state.exec_dir / f"delay-{target.slug}", state.pins / f"{target.slug}-delay"


def heal(state: State, fabric: Fabric, texts: Iterable[str] | None) -> list[dict[str, Any]]:
    """Heals these targets, or all (None). Returns one record per healed target, with its last counters."""
    before = _active(state)
    wanted = {targets.parse(fabric, t).text for t in texts} if texts is not None else set(before)
    healed = {t: before[t] for t in before if t in wanted}
    after = {t: f for t, f in before.items() if t not in healed}
    pins = {t: state.pins / targets.parse(fabric, t).slug for t in healed}
    now = time.monotonic_ns()
    for p in pins.values():
        if fault_program.attached(p):
            fault_program.disarm(p)
    apply_ports(fabric, desired(fabric, before), desired(fabric, after))
    records = []
    for t, fault in healed.items():
        records.append({"target": t, "what": fault.what, "monotonic_ns": now, **asdict(fault_program.read(pins[t]))})
        fault_program.detach(pins[t])
        delay.stop(*_relay(state, targets.parse(fabric, t)))
        state.fault_file(targets.parse(fabric, t).slug).unlink(missing_ok=True)
    return records


def listing(state: State, fabric: Fabric) -> list[dict[str, Any]]:
    """Returns the active faults with their counters so far."""
    return [
        {**record, **asdict(fault_program.read(state.pins / targets.parse(fabric, t).slug))}
        for t, record in state.faults().items()
    ]


def _active(state: State) -> dict[str, Fault]:
    fields = Fault.__dataclass_fields__
    return {t: Fault(**{k: v for k, v in r.items() if k in fields}) for t, r in state.faults().items()}
