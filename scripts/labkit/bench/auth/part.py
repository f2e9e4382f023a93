# SPDX-License-Identifier: BSD-2-Clause
"""Measures authentication: what attacks do to a flow, what a change of secrets loses, and what tags cost.

Attacks: 10,000 packets per second of each kind, from the hosts beside the two ends of a TCP flow, for windows that take
turns with windows without an attack. The same attacks with mode "off" show that they work.
"""

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from statistics import median

from labkit.bench import candidates, packet_sender, pairs
from labkit.bench.auth import attacks
from labkit.bench.auth.attacks import Attack, Side
from labkit.bench.part import SOURCE, TARGET, Options, Part, requirement
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.entry import progress
from labkit.measure import goodput, progstats
from labkit.traffic.flow import Flow
from labkit.traffic.stream import Stream
from mrcd.auth import secrets_file
from mrcd.config.cluster_file import Granularity
from mrcd.ctl.terminal.render import Column, percent, table
from mrcd.kernel.enums import AuthMode
from mrcd.kernel.pinned import Tables

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


def measure(lab: Lab, options: Options) -> Document:
    """Runs all three."""
    found: Document = {"rate_per_s": RATE, "attacks": []}
    for mode, seconds in (("off", OFF_S), ("required", options.seconds or SECONDS)):
        lab.up(auth=mode, source_filters=False)
        observe.wait_until_good(lab, lab.fabric.hosts)
        found["attacks"] += [{"mode": mode} | row for row in _attack_all(lab, seconds)]
    found["rotation"] = _rotate(lab, SHORT_ROTATIONS if options.short else ROTATIONS)
    found["roll_out"] = _roll_out(lab)
    found["cost"] = [_cost(lab, granularity, options.pairs or COST_PAIRS) for granularity in LEAST_COST_RATIO]
    return found | {"requirements": _requirements(found)}


# ---- attacks ----


def _attack_all(lab: Lab, seconds: float) -> Iterator[Document]:
    sides = [Side(lab, *names) for names in _SIDES]
    with Flow(lab, candidates.overlay(lab, 4)) as flow:
        flow.poll(1.0)
        recorded = {side.sender: attacks.record(side, 0.5, flow.poll) for side in sides}
        flow.poll(0.6)  # what was recorded is no longer new
        planned = [a for side in sides for a in attacks.forged(side, recorded[side.sender])]
        planned += [attacks.replayed(side, recorded[side.sender]) for side in sides]
        for attack in planned:
            row = _attack(lab, flow, attack, seconds)
            progress(f"auth: {lab.fabric.parameters.auth}: {attack.name} by {attack.attacker}: {_said(row)}")
            yield row
            observe.wait_until_good(lab, (SOURCE, TARGET), 60.0)
        flow.finish()


def _attack(lab: Lab, flow: Flow, attack: Attack, seconds: float) -> Document:
    last = {h: max((e["id"] for e in observe.events(lab, h)), default=0) for h in (SOURCE, TARGET)}
    dropped = {h: attacks.read_drops(lab, h) for h in (SOURCE, TARGET)}
    ratios, sent = [], 0
    with _sender(lab, attack) as sender, _listening(lab) as delivered:
        left = seconds
        while left > 0:
            quiet = _window(flow, WINDOW_S, None)
            attacked, number = _window(flow, WINDOW_S, sender)
            ratios.append((quiet[0], attacked))
            sent, left = sent + number, left - WINDOW_S
        flow.poll(0.2)
        arrived = delivered()
    changes = [e for h in last for e in observe.events(lab, h, last[h]) if e["kind"] == "ev" and e["to"] != "GOOD"]
    return {
        "attack": attack.name,
        "attacker": attack.attacker,
        "packets": sent,
        "goodput_ratio": median(b / a if a else 0.0 for a, b in ratios),
        "changed_evs": len(changes),
        "delivered": arrived,
        "drops": {h: attacks.grown_drops(dropped[h], attacks.read_drops(lab, h)) for h in dropped},
        "works_when_off": attack.works_when_off,
    }


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


@contextlib.contextmanager
def _sender(lab: Lab, attack: Attack) -> Iterator[packet_sender.PacketSender]:
    with lab.inside(attack.attacker):
        frames = (attack.frames * (BATCH // len(attack.frames) + 1))[: max(BATCH, len(attack.frames))]
        sender = packet_sender.frames(lab.fabric.nodes[attack.attacker].ports[0].name, frames)
    try:
        yield sender
    finally:
        sender.close()


@contextlib.contextmanager
def _listening(lab: Lab) -> Iterator["_Count"]:
    """A block that counts forged datagrams that both ends deliver."""
    sockets = []
    for host in (SOURCE, TARGET):
        with lab.inside(host):
            receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            receiver.bind(("", attacks.PORT))
            receiver.setblocking(False)
            sockets.append(receiver)
    try:
        yield _Count(sockets)
    finally:
        for receiver in sockets:
            receiver.close()


class _Count:
    """Counts the datagrams in sockets."""

    def __init__(self, sockets: Sequence[socket.socket]) -> None:
        self._sockets = sockets

    def __call__(self) -> int:
        """Returns the datagrams that have arrived since the last call."""
        found = 0
        for receiver in self._sockets:
            with contextlib.suppress(BlockingIOError):
                while receiver.recv(2048):
                    found += 1
        return found


def _said(row: Document) -> str:
    return f"goodput {percent(row['goodput_ratio'])} %, {row['changed_evs']} EVs changed, {row['delivered']} delivered"


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
    return {
        "rotations": rotations,
        "sent": result.sent,
        "lost": result.lost(),
        "newest_in_use": in_use == held[-1].key_id,
    }


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
    return {"modes": modes, "sent": result.sent, "lost": result.lost()}


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
    ratio = pairs.compare([a / b for a, b in zip(bits[True], bits[False], strict=True) if b])
    more = median(a - b for a, b in zip(times[True], times[False], strict=True))
    progress(f"auth: {granularity}: goodput with / without tags {pairs.words(ratio)}; {more:+.0f} ns")
    return {"granularity": granularity, "goodput_ratio": ratio, "more_ns": more}


def _switch(tables: Sequence[Tables], on: bool) -> None:
    """Has both hosts make and check tags, or not."""
    for t in tables:
        known = t.auths["rx_id"][:, 0] > 0
        t.auths["tx_id"][known] = t.auths["rx_id"][known][:, :1] if on else 0
        t.auths["mode"][known] = AuthMode.PERMISSIVE if on else AuthMode.OFF


# ---- the document ----


def _requirements(found: Document) -> list[Document]:
    required = [a for a in found["attacks"] if a["mode"] == "required"]
    harm = {
        a["attack"]: a["changed_evs"] or a["delivered"] or a["goodput_ratio"] < LEAST_GOODPUT
        for a in found["attacks"]
        if a["mode"] == "off" and a["works_when_off"]
    }
    least = min(a["goodput_ratio"] for a in required)
    lost = found["rotation"]["lost"] + found["roll_out"]["lost"]
    rows = [
        requirement(
            "no attack changes the state of an EV",
            not any(a["changed_evs"] for a in required),
            f"{sum(a['changed_evs'] for a in required)} changes",
        ),
        requirement(
            "nothing forged is delivered",
            not any(a["delivered"] for a in required),
            f"{sum(a['delivered'] for a in required)} delivered",
        ),
        requirement(f"goodput under attack at least {LEAST_GOODPUT}", least >= LEAST_GOODPUT, f"{least:.3f}"),
        requirement(
            "the same attacks do harm with mode off",
            all(harm.values()),
            ", ".join(n for n, done in harm.items() if not done) or "all do",
        ),
        requirement("no packet is lost by new secrets or modes", lost == 0, f"{lost} lost"),
        requirement("the newest secret is in use at the end", found["rotation"]["newest_in_use"], ""),
    ]
    for cost in found["cost"]:
        bound = LEAST_COST_RATIO[cost["granularity"]]
        rows.append(
            requirement(
                f"{cost['granularity']}: goodput with tags at least {bound} of that without",
                not pairs.below(cost["goodput_ratio"], bound),
                pairs.words(cost["goodput_ratio"]),
            )
        )
        rows.append(
            requirement(
                f"{cost['granularity']}: push and pop take at most {MOST_NS:.0f} ns more",
                cost["more_ns"] <= MOST_NS,
                f"{cost['more_ns']:.0f} ns",
            )
        )
    return rows


def lines(found: Document) -> list[str]:
    """Returns the attacks as a table."""
    columns = [
        Column("MODE"),
        Column("ATTACK"),
        Column("BY"),
        Column("PACKETS", True),
        Column("GOODPUT %", True),
        Column("EVS CHANGED", True),
        Column("DELIVERED", True),
        Column("DROPPED"),
    ]
    rows = [
        [
            a["mode"],
            a["attack"],
            a["attacker"],
            str(a["packets"]),
            percent(a["goodput_ratio"]),
            str(a["changed_evs"]),
            str(a["delivered"]),
            ", ".join(f"{h}: {n} {reason}" for h, d in a["drops"].items() for reason, n in d.items()) or "none",
        ]
        for a in found["attacks"]
    ]
    return table(columns, rows, colour=False)


PART = Part("auth", measure, lines)
