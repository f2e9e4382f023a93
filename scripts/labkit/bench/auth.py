# SPDX-License-Identifier: BSD-2-Clause
"""Measures authentication: what attacks do to a flow, what a change of secrets loses, what tags cost, and a flood.

Attacks: 10,000 packets per second of each kind, from the hosts beside the two ends of a TCP flow, for windows that take
turns with windows without an attack. The same attacks with mode "off" show that they work.

Flood: a million packets per second that a host must refuse, on one CPU, beside a flow on another. The flow's ends, the
switches and the receiving host's stack are on one CPU, because each packet is handled on the CPU that sent it. The
flood reaches the receiver's XDP program on the other CPU, as packets from a NIC queue would.
"""

import contextlib
import itertools
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from statistics import median

from scapy.layers.l2 import Ether

from labkit.bench.frame import Bench, Bound, NewEvents, Options, Result, Table
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput, progstats
from labkit.measure.statistics import compare, words
from labkit.places import REPOSITORY, end_program
from labkit.tables import percent
from labkit.traffic import attacks, candidates, packet_sender
from labkit.traffic.attacks import Attack, Side
from labkit.traffic.candidates import SOURCE, TARGET
from labkit.traffic.flow import Flow
from labkit.traffic.stream import Stream
from labkit.traffic.wire import MRC
from mrcd.auth import secrets_file
from mrcd.config.cluster_file import Granularity
from mrcd.errors import MachineError
from mrcd.fabric import srv6
from mrcd.kernel import libbpf
from mrcd.kernel.enums import AuthMode
from mrcd.kernel.pinned import Tables
from mrcd.net.routes import with_function

RATE = 10_000  # packets per second of an attack
SECONDS = 30.0  # of each attack
OFF_S = 2.0  # of each attack with mode "off": long enough to see its harm
WINDOW_S = 1.5
BATCH = 100
ROTATIONS, SHORT_ROTATIONS = 60, 3
STREAM_RATE = 50_000
LEAST_GOODPUT = 0.95
COST_PAIRS, COST_WINDOW_S = 20, 0.4
LEAST_COST_RATIO: dict[Granularity, float] = {"burst": 0.98, "packet": 0.93}
MOST_NS = 80.0
_SIDES = ((SOURCE, TARGET, "h1"), (TARGET, SOURCE, "h3"))
_PLANE = 0

FLOOD_RATE = 1_000_000  # packets per second
FLOOD_PAIRS = 8  # windows with and without the flood, for each kind
FLOOD_WINDOW_S = 0.5
FLOOD_LEAST_GOODPUT = 0.90
FLOOD_LEAST_RATE = 0.95 * FLOOD_RATE  # for a measurement to count
FLOW_CPU, FLOOD_CPU = 0, 1
_DESTINATION = 38  # offset of the outer destination in a frame
_MOST_FRAMES = 16  # of a kind; the XDP program gets each 64 times in a row


def _with(mode: str, d: Document, what: str = "attacks") -> list[Document]:
    return [a for a in d[what] if a["mode"] == mode]


def _harmless(d: Document) -> int:
    """Returns the attacks that should do harm with mode off, and did none."""
    return sum(
        a["works_when_off"] and not (a["changed_evs"] or a["delivered"] or a["goodput_ratio"] < LEAST_GOODPUT)
        for a in _with("off", d)
    )


def _bounds(d: Document) -> list[Document]:
    attacks_of = _with("required", d)
    least = min(a["goodput_ratio"] for a in attacks_of)
    (critical,) = _with("required", d, "critical")
    lost = d["rotation"]["lost"] + d["roll_out"]["lost"]
    newest = d["rotation"]["newest_in_use"]
    return [
        Bound("states of EVs that attacks change", 0, "").judge(sum(a["changed_evs"] for a in attacks_of)),
        Bound("forged packets delivered", 0, "").judge(sum(a["delivered"] for a in attacks_of)),
        Bound("critical packets of the flow not delivered exactly once", 0, "").judge(critical["wrong"]),
        Bound("goodput under attack", LEAST_GOODPUT, "_ratio", is_least=True).judge(least),
        Bound("attacks that do no harm with mode off, and should", 0, "").judge(_harmless(d)),
        Bound("packets lost by new secrets or modes", 0, "").judge(lost),
        Bound("the newest secret is in use at the end", 1, "", is_least=True).judge(newest),
    ]


def _cost_bounds(granularity: Granularity, cost: Document) -> list[Document]:
    """Returns the bounds of the cost of tags. That of goodput is missed only if the whole interval is below it."""
    ratio = cost["goodput_ratio"]
    high = ratio["median"] if ratio["high"] is None else ratio["high"]
    words = f"{granularity}: upper end of the interval of goodput with tags / without"
    least = Bound(words, LEAST_COST_RATIO[granularity], "_ratio", is_least=True).judge(high)
    return [least, Bound(f"{granularity}: ns that push and pop take more", MOST_NS, "_ns").judge(cost["more_ns"])]


def _flood_bounds(floods: Sequence[Document]) -> list[Document]:
    slowest, least = (min(f[k] for f in floods) for k in ("rate_per_s", "goodput_ratio"))
    return [
        Bound("packets per second of a flood", FLOOD_LEAST_RATE, "_per_s", is_least=True).judge(slowest),
        Bound("goodput beside a flood", FLOOD_LEAST_GOODPUT, "_ratio", is_least=True).judge(least),
        Bound("states of EVs that a flood changes", 0, "").judge(sum(f["changed_evs"] for f in floods)),
    ]


def measure(lab: Lab, options: Options) -> Result:
    """Runs attacks, changes of secrets and modes, and the cost of tags."""
    d: Document = {"attacks": [], "critical": []}
    for mode, seconds in (("off", OFF_S), ("required", options.seconds or SECONDS)):
        lab.up(auth=mode, source_filters=False)
        observe.wait_until_good(lab, lab.fabric.hosts)
        sides = [Side(lab, *names) for names in _SIDES]
        before = _undelivered(sides)
        d["attacks"] += [{"mode": mode} | row for row in _attack_all(lab, sides, seconds)]
        wrong = sum(abs(a - b) for a, b in zip(_undelivered(sides), before, strict=True))
        d["critical"].append({"mode": mode, "sent": sum(map(attacks.critical_sent, sides)), "wrong": wrong})
    d["rotation"] = _rotate(lab, SHORT_ROTATIONS if options.short else ROTATIONS)
    d["roll_out"] = _roll_out(lab)
    d["cost"] = {granularity: _cost(lab, granularity, options.pairs or COST_PAIRS) for granularity in LEAST_COST_RATIO}
    shown = [{k: _drops(v) if k == "drops" else v for k, v in a.items() if k != "works_when_off"} for a in d["attacks"]]
    costs = [
        {"granularity": g, "more_ns": c["more_ns"], "goodput_with_by_without": words(c["goodput_ratio"])}
        for g, c in d["cost"].items()
    ]
    counted = Table("Critical packets, from before the attacks to after them", d["critical"])
    tables = [Table(f"Attacks of {RATE:,} packets/s", shown), counted, Table("Cost of tags in one flow", costs)]
    bounds = _bounds(d) + [b for granularity, cost in d["cost"].items() for b in _cost_bounds(granularity, cost)]
    return Result(tables, bounds, detail=d)


def _drops(drops: Document) -> str:
    return ", ".join(f"{h}: {n} {reason}" for h, of in drops.items() for reason, n in of.items()) or "none"


# ---- attacks ----


def _attack_all(lab: Lab, sides: Sequence[Side], seconds: float) -> Iterator[Document]:
    with Flow(lab, candidates.overlay(lab, 4)) as flow:
        flow.poll(1.0)
        recorded = {side.sender: attacks.record(side, 0.5, flow.poll) for side in sides}
        flow.poll(0.6)  # what was recorded is no longer new
        planned = [a for side in sides for a in attacks.forged(side, recorded[side.sender])]
        planned += [attacks.replayed(side, recorded[side.sender]) for side in sides]
        numbered = (attacks.critical(side, recorded[side.sender]) for side in sides)  # each just before it is made
        for attack in itertools.chain(planned, numbered):
            row = _attack(lab, flow, attack, seconds)
            progress(f"auth: {attack.name} by {attack.attacker}: goodput {percent(row['goodput_ratio'])}")
            yield row
            observe.wait_until_good(lab, (SOURCE, TARGET), 60.0)
        flow.finish()


def _undelivered(sides: Sequence[Side]) -> list[int]:
    """Returns how many more critical packets were sent than delivered: each one is delivered once, by either copy."""
    time.sleep(0.2)  # some are on their way
    return [attacks.critical_sent(side) - attacks.critical_delivered(side) for side in sides]


def _attack(lab: Lab, flow: Flow, attack: Attack, seconds: float) -> Document:
    events = NewEvents(lab, (SOURCE, TARGET))
    dropped = {h: attacks.read_drops(lab, h) for h in (SOURCE, TARGET)}
    ratios, sent = [], 0
    with contextlib.ExitStack() as stack:
        with lab.inside(attack.attacker):
            frames = (attack.frames * (BATCH // len(attack.frames) + 1))[: max(BATCH, len(attack.frames))]
            sender = packet_sender.frames(lab.fabric.nodes[attack.attacker].ports[0].name, frames)
            stack.callback(sender.close)
        receivers = [stack.enter_context(_receiver(lab, host)) for host in (SOURCE, TARGET)]
        for _ in range(max(1, math.ceil(seconds / WINDOW_S))):
            quiet, _ = _window(flow, WINDOW_S, None)
            attacked, number = _window(flow, WINDOW_S, sender)
            ratios.append(attacked / quiet if quiet else 0.0)
            sent += number
        flow.poll(0.2)
        delivered = sum(map(_read_datagrams, receivers))
    return {
        "attack": attack.name,
        "attacker": attack.attacker,
        "packets": sent,
        "goodput_ratio": median(ratios),
        "changed_evs": sum(e["to"] != "GOOD" for e in events.read()),
        "delivered": delivered,
        "drops": {h: attacks.grown_drops(dropped[h], attacks.read_drops(lab, h)) for h in dropped},
        "works_when_off": attack.works_when_off,
    }


def _receiver(lab: Lab, host: str) -> socket.socket:
    """Returns a socket for the forged datagrams that a host delivers."""
    with lab.inside(host):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind(("", attacks.PORT))
        receiver.setblocking(False)
    return receiver


def _window(flow: Flow, seconds: float, sender: packet_sender.PacketSender | None) -> tuple[float, int]:
    """Returns the goodput of a window, bits per second, and the packets that the attacker sent in it."""
    begin, sent = time.monotonic_ns(), 0
    end = begin + int(seconds * 1e9)
    while (now := time.monotonic_ns()) < end:
        due = int((now - begin) * RATE / 1e9) if sender else 0
        if sender and due - sent >= BATCH:
            sent += sender.send(BATCH)
        flow.poll(0.002)
    return goodput.mean(flow.bins, begin + 10**8, end - 10**8) or 0.0, sent


def _read_datagrams(receiver: socket.socket) -> int:
    """Returns the datagrams that have arrived since the last call."""
    found = 0
    with contextlib.suppress(BlockingIOError):
        while receiver.recv(2048):
            found += 1
    return found


# ---- secrets ----


def _rotate(lab: Lab, rotations: int) -> Document:
    """Gives the cluster a new secret each second under a stream."""
    held = [secrets_file.read(lab.state.secrets)[-1]]
    with Stream(lab, candidates.overlay(lab, 4), rate=STREAM_RATE) as stream:
        begin = time.monotonic()
        for n in range(rotations):
            held = [held[-1], secrets_file.new(held[-1].key_id % 255 + 1)]
            secrets_file.write(lab.state.secrets, held)
            for host in lab.fabric.hosts:
                observe.reload(lab, host)
            time.sleep(max(0.0, begin + n + 1 - time.monotonic()))
        result = stream.finish()
    with contextlib.closing(Tables(observe.pins(lab, SOURCE), writable=False)) as tables:
        auth = tables.auths[lab.fabric.config.host(TARGET).id]
        in_use = int(auth["tx_id"][int(auth["tx_slot"])])
    progress(f"auth: {rotations} secrets, one per second: {result.lost()} of {result.sent} packets lost")
    return {"sent": result.sent, "lost": result.lost(), "newest_in_use": in_use == held[-1].key_id}


def _roll_out(lab: Lab) -> Document:
    """Goes from off to required and back by reloads of both ends, one after the other, under a stream."""
    text = lab.state.cluster_file.read_text()
    modes = ["permissive", "off", "permissive", "required", "permissive", "required"]
    with Stream(lab, candidates.overlay(lab, 4), rate=STREAM_RATE) as stream:
        for mode in modes:
            changed = text.replace('mode = "required"', f'mode = "{mode}"')
            lab.state.cluster_file.write_text(changed)
            for host in lab.fabric.hosts:
                observe.reload(lab, host)
                time.sleep(0.5)
        result = stream.finish()
    progress(f"auth: required → {' → '.join(modes)}: {result.lost()} of {result.sent} packets lost")
    return {"sent": result.sent, "lost": result.lost()}


# ---- cost ----


def _cost(lab: Lab, granularity: Granularity, number: int) -> Document:
    """Measures one flow with and without tags, by turns, and the time of both programs."""
    lab.up(granularity=granularity, direct=True, auth="permissive")
    observe.wait_until_good(lab, lab.fabric.hosts)
    ends = candidates.overlay(lab, 4)
    hosts = (ends.source, ends.target)
    # The programs that a data packet runs through: pins of the sender's and of the receiver's links begin so.
    passed = ((ends.source, "push"), (ends.target, "pop"), (ends.target, "xdp"))
    windows: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    times: dict[bool, list[float]] = {True: [], False: []}
    with contextlib.ExitStack() as undo:
        tables = [undo.enter_context(contextlib.closing(Tables(observe.pins(lab, h), writable=True))) for h in hosts]
        # One program is attached to several NICs, and counts the packets of all of them.
        programs = [
            undo.enter_context(progstats.linked(links[0]))
            for h, kind in passed
            if (links := sorted((observe.pins(lab, h) / "links").glob(f"{kind}*")))
        ]
        flow = undo.enter_context(Flow(lab, ends))
        undo.enter_context(progstats.counting())
        flow.poll(0.5)
        for n in range(2 * number):
            on = (n + 1) // 2 % 2 == 0
            _switch(tables, on)
            flow.poll(0.1)
            before, begin = [progstats.runs(p) for p in programs], time.monotonic_ns()
            flow.poll(COST_WINDOW_S)
            end = time.monotonic_ns()
            spent = [progstats.runs(p).since(b) for p, b in zip(programs, before, strict=True)]
            windows[on].append((begin, end))
            times[on].append(sum(s.mean_ns or 0.0 for s in spent))
        flow.finish()
        _switch(tables, True)
        bits = {on: [goodput.mean(flow.bins, *w) or 0.0 for w in found] for on, found in windows.items()}
    ratio = compare([a / b for a, b in zip(bits[True], bits[False], strict=True) if b])
    more = median(a - b for a, b in zip(times[True], times[False], strict=True))
    progress(f"auth: {granularity}: goodput with / without tags {words(ratio)}; {more:+.0f} ns")
    return {"goodput_ratio": ratio, "more_ns": more}


def _switch(tables: Sequence[Tables], on: bool) -> None:
    """Has both hosts make and check tags, or not."""
    for t in tables:
        known = t.auths["rx_id"][:, 0] > 0
        t.auths["tx_id"][known] = t.auths["rx_id"][known][:, :1] if on else 0
        t.auths["mode"][known] = AuthMode.PERMISSIVE if on else AuthMode.OFF


# ---- flood ----


def measure_flood(lab: Lab, options: Options) -> Result:
    """Floods with each kind in turn."""
    if len(os.sched_getaffinity(0)) < 2:
        raise MachineError("the flood needs a CPU of its own, and this machine has one")
    lab.up(hook="xdp", overlay={"rps_cpus": "none"})
    observe.wait_until_good(lab, lab.fabric.hosts)
    found: list[Document] = []
    with _pinned_flow(lab) as flow, _flooder(lab) as flooder:
        flow.poll(1.0)
        for name, frames in _kinds(lab, flow).items():
            row = _flood(lab, flow, flooder, frames, options.pairs or FLOOD_PAIRS)
            found.append({"flood": name} | row)
            progress(f"flood: {name}: {row['rate_per_s'] / 1e6:.2f} M/s, goodput {percent(row['goodput_ratio'])}")
            observe.wait_until_good(lab, (SOURCE, TARGET), 60.0)
        flow.finish()
    shown = [f | {"drops": ", ".join(f"{n} {reason}" for reason, n in f["drops"].items())} for f in found]
    return Result([Table("A flood beside a flow", shown)], _flood_bounds(found))


def _kinds(lab: Lab, flow: Flow) -> dict[str, list[bytes]]:
    """Returns the frames of each kind, as the receiver's NIC gets them: all segments but the last are behind them."""
    side, back = Side(lab, SOURCE, TARGET, "h1"), Side(lab, TARGET, SOURCE, "h3")
    recorded, answers = attacks.record(side, 0.5, flow.poll), attacks.record(back, 0.5, flow.poll)
    kinds = {a.name: list(a.frames) for a in attacks.forged(side, recorded)}
    data = kinds["forged data"]
    kinds["unknown host"] = [_from_unknown(frame) for frame in data]
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
        name: [mac + f[6:_DESTINATION] + targets[name] + f[_DESTINATION + 16 :] for f in frames[:_MOST_FRAMES]]
        for name, frames in kinds.items()
    }


def _from_unknown(frame: bytes) -> bytes:
    packet = Ether(frame)
    packet[MRC].sender = 60_000
    return bytes(packet)


@contextlib.contextmanager
def _pinned_flow(lab: Lab) -> Iterator[Flow]:
    """A flow whose ends run on FLOW_CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {FLOW_CPU})
    with contextlib.ExitStack() as undo:
        try:
            flow = undo.enter_context(Flow(lab, candidates.overlay(lab, 4)))
        finally:
            os.sched_setaffinity(0, before)
        yield flow


class _Flooder:
    """A running floodxdpend.py."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def begin(self, frames: list[bytes], seconds: float) -> None:
        """Starts a flood."""
        order = {"frames": [f.hex() for f in frames], "rate": FLOOD_RATE, "seconds": seconds}
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
    events = NewEvents(lab, (SOURCE, TARGET))
    before = attacks.read_drops(lab, TARGET)
    ratios, fed, took, busy = [], 0, 0.0, 0.0
    for _ in range(number):
        quiet = _flood_window(flow)
        flooder.begin(frames, FLOOD_WINDOW_S + 0.2)
        flow.poll(0.1)
        flooded = _flood_window(flow)
        said = flooder.end()
        fed, took, busy = fed + said["fed"], took + said["took_s"], busy + said["busy_s"]
        ratios.append(flooded / quiet if quiet else 0.0)
    return {
        "rate_per_s": fed / took,
        "ns_per_packet": busy / fed * 1e9,
        "goodput_ratio": median(ratios),
        "changed_evs": sum(e["to"] != "GOOD" for e in events.read()),
        "drops": attacks.grown_drops(before, attacks.read_drops(lab, TARGET)),
    }


def _flood_window(flow: Flow) -> float:
    begin = time.monotonic_ns()
    flow.poll(FLOOD_WINDOW_S)
    return goodput.mean(flow.bins, begin, time.monotonic_ns() - 10**7) or 0.0


BENCH = Bench("auth", measure)
FLOOD = Bench("flood", measure_flood)
