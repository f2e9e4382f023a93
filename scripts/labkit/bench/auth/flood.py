# SPDX-License-Identifier: BSD-2-Clause
"""Floods one CPU of a host with a million packets per second that it must refuse, beside a flow on another CPU.

The flow's ends, the switches and the receiving host's stack are on one CPU, because each packet is handled on the CPU
that sent it. The flood reaches the receiver's XDP program on the other CPU, as packets from a NIC queue would.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

from scapy.layers.l2 import Ether

from labkit.bench import candidates
from labkit.bench.auth import attacks
from labkit.bench.auth.attacks import Side
from labkit.bench.part import SOURCE, TARGET, Options, Part, requirement
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput, progstats
from labkit.places import REPOSITORY, end_program
from labkit.traffic.flow import Flow
from labkit.traffic.wire import MRC
from mrcd.ctl.terminal.render import Column, percent, table
from mrcd.errors import MachineError
from mrcd.fabric import srv6
from mrcd.kernel import libbpf
from mrcd.net.routes import with_function

RATE = 1_000_000  # packets per second
PAIRS = 8  # windows with and without the flood, for each kind
WINDOW_S = 0.5
LEAST_GOODPUT = 0.90
LEAST_RATE = 0.95  # of RATE, for a measurement to count
FLOW_CPU, FLOOD_CPU = 0, 1
_PLANE = 0
_DESTINATION = 38  # offset of the outer destination in a frame
_MOST = 16  # frames of a kind; the XDP program gets each 64 times in a row


def measure(lab: Lab, options: Options) -> Document:
    """Floods with each kind in turn."""
    if len(os.sched_getaffinity(0)) < 2:
        raise MachineError("the flood needs a CPU of its own, and this machine has one")
    lab.up(hook="xdp", overlay={"rps_cpus": "none"})
    observe.wait_until_good(lab, lab.fabric.hosts)
    found = []
    with _flow(lab) as flow, _flooder(lab) as flooder:
        flow.poll(1.0)
        for name, frames in _kinds(lab, flow).items():
            row = _flood(lab, flow, flooder, frames, options.pairs or PAIRS)
            found.append({"flood": name} | row)
            progress(f"flood: {name}: {row['rate_per_s'] / 1e6:.2f} M/s, goodput {percent(row['goodput_ratio'])} %")
            observe.wait_until_good(lab, (SOURCE, TARGET), 60.0)
        flow.finish()
    return {"rate_per_s": RATE, "floods": found, "requirements": _requirements(found)}


def _kinds(lab: Lab, flow: Flow) -> dict[str, list[bytes]]:
    """Returns the frames of each kind, as the receiver's NIC gets them: all segments but the last are behind them."""
    side, back = Side(lab, SOURCE, TARGET, "h1"), Side(lab, TARGET, SOURCE, "h3")
    recorded, answers = attacks.record(side, 0.5, flow.poll), attacks.record(back, 0.5, flow.poll)
    kinds = {a.name: list(a.frames) for a in attacks.forged(side, recorded)}
    data = kinds["forged data"]
    kinds["unknown host"] = [_changed(frame, sender=60_000) for frame in data]
    kinds["malformed"] = [frame[: len(frame) // 2] for frame in data]
    kinds["replay"] = list(attacks.replayed(side, recorded).frames)
    errors = [a for a in attacks.forged(back, answers) if a.name == "forged ICMPv6 error"]
    plan, port = side.plan(TARGET), lab.fabric.nodes[TARGET].ports[_PLANE]
    mac = bytes.fromhex(port.mac.replace(":", ""))
    sid = plan.sids[_PLANE]
    targets = dict.fromkeys(kinds, sid.packed)
    decapsulates = with_function(sid, srv6.UDT4)
    assert decapsulates is not None
    targets["plain SRv6"] = decapsulates.packed
    for error in errors:
        kinds[error.name], targets[error.name] = list(error.frames), plan.addresses[_PLANE].packed
    return {
        name: [mac + f[6:_DESTINATION] + targets[name] + f[_DESTINATION + 16 :] for f in frames[:_MOST]]
        for name, frames in kinds.items()
    }


def _changed(frame: bytes, **fields: int) -> bytes:
    packet = Ether(frame)
    for name, value in fields.items():
        setattr(packet[MRC], name, value)
    return bytes(packet)


@contextlib.contextmanager
def _flow(lab: Lab) -> Iterator[Flow]:
    """A flow whose ends run on FLOW_CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {FLOW_CPU})
    try:
        flow = Flow(lab, candidates.overlay(lab, 4))
        flow.__enter__()
    finally:
        os.sched_setaffinity(0, before)
    with contextlib.closing(contextlib.ExitStack()) as undo:
        undo.push(flow)
        yield flow


class _Flooder:
    """A running floodxdpend.py."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def begin(self, frames: list[bytes], seconds: float) -> None:
        """Starts a flood."""
        order = {"frames": [f.hex() for f in frames], "rate": RATE, "seconds": seconds}
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def end(self) -> Document:
        """Waits for its end; returns what it says. Raises MachineError."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise MachineError("the flood ended early; this kernel may have no BPF_F_TEST_XDP_LIVE_FRAMES (Linux 5.18)")
        return dict(json.loads(line))


@contextlib.contextmanager
def _flooder(lab: Lab) -> Iterator[_Flooder]:
    links = sorted((observe.pins(lab, TARGET) / "links").glob("pop-xdp*"))
    if not links:
        raise MachineError(f"{TARGET} has no XDP program", hint="bring the lab up with its default hook")
    with progstats.linked(links[0]) as program, lab.inside(TARGET):
        number = libbpf.program_id(program)
        ifindex = socket.if_nametoindex(lab.fabric.nodes[TARGET].ports[_PLANE].name)
    argv = [sys.executable, str(end_program("floodxdpend")), str(number), str(ifindex), str(FLOOD_CPU)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    pipe = subprocess.PIPE
    process = lab.popen(TARGET, argv, stdin=pipe, stdout=pipe, text=True, env=environment)
    try:
        yield _Flooder(process)
    finally:
        process.kill()
        process.wait()


def _flood(lab: Lab, flow: Flow, flooder: _Flooder, frames: list[bytes], number: int) -> Document:
    last = {h: max((e["id"] for e in observe.events(lab, h)), default=0) for h in (SOURCE, TARGET)}
    before = attacks.read_drops(lab, TARGET)
    ratios, fed, took, busy = [], 0, 0.0, 0.0
    for _ in range(number):
        quiet = _window(flow)
        flooder.begin(frames, WINDOW_S + 0.2)
        flow.poll(0.1)
        flooded = _window(flow)
        said = flooder.end()
        fed, took, busy = fed + said["fed"], took + said["took_s"], busy + said["busy_s"]
        ratios.append(flooded / quiet if quiet else 0.0)
    changes = [e for h in last for e in observe.events(lab, h, last[h]) if e["kind"] == "ev" and e["to"] != "GOOD"]
    return {
        "rate_per_s": fed / took,
        "ns_per_packet": busy / fed * 1e9,
        "goodput_ratio": median(ratios),
        "changed_evs": len(changes),
        "drops": attacks.grown_drops(before, attacks.read_drops(lab, TARGET)),
    }


def _window(flow: Flow) -> float:
    begin = time.monotonic_ns()
    flow.poll(WINDOW_S)
    return goodput.mean(flow.bins, begin, time.monotonic_ns() - 10**7) or 0.0


def _requirements(found: list[Document]) -> list[Document]:
    least = min(f["goodput_ratio"] for f in found)
    changes = sum(f["changed_evs"] for f in found)
    slowest = min(f["rate_per_s"] for f in found)
    return [
        requirement(
            f"a flood has at least {LEAST_RATE * RATE / 1e6:.2f} M packets per second",
            slowest >= LEAST_RATE * RATE,
            f"{slowest / 1e6:.2f} M",
        ),
        requirement(f"goodput beside a flood at least {LEAST_GOODPUT}", least >= LEAST_GOODPUT, f"{least:.3f}"),
        requirement("no flood changes the state of an EV", changes == 0, f"{changes} changes"),
    ]


def lines(found: Document) -> list[str]:
    """Returns the floods as a table."""
    columns = [
        Column("FLOOD"),
        Column("M PACKETS/S", True),
        Column("NS/PACKET", True),
        Column("GOODPUT %", True),
        Column("EVS CHANGED", True),
        Column("DROPPED"),
    ]
    rows = [
        [
            f["flood"],
            f"{f['rate_per_s'] / 1e6:.2f}",
            f"{f['ns_per_packet']:.0f}",
            percent(f["goodput_ratio"]),
            str(f["changed_evs"]),
            ", ".join(f"{n} {reason}" for reason, n in f["drops"].items()) or "none",
        ]
        for f in found["floods"]
    ]
    return table(columns, rows, colour=False)


PART = Part("flood", measure, lines)
