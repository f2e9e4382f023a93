"""Documents of the daemon → text for people. Pure, as render.py, whose numbers and tables these are made of."""

from collections.abc import Mapping, Sequence
from typing import Any

from mrcd.ctl.terminal.render import (
    NOTHING,
    Column,
    Document,
    count,
    duration,
    facts,
    microseconds,
    paint,
    percent,
    table,
    text,
    where,
)

_DENIALS_SHOWN = 4  # in `status`
_STATES = ("GOOD", "SKIP", "ASSUMED_BAD", "DENIED", "UNKNOWN")


# ---- status ----------------------------------------------------------------------------------


def status(doc: Document, *, colour: bool, room: int | None = None) -> list[str]:
    """GET /v1/status: a few sentences, then the planes."""
    peers, push = doc.get("peers") or {}, doc.get("push") or {}
    state = paint("attached" if doc.get("attached") else "detached", colour)
    pairs = [
        ("host", f"{text(doc.get('host'))} (id {text(doc.get('host_id'))}) of cluster {text(doc.get('cluster'))}"),
        ("daemon", _daemon(doc)),
        (
            "data plane",
            f"{state}, encapsulation {text(doc.get('encapsulation'))}, granularity {text(doc.get('granularity'))}, "
            f"inner MTU {text(doc.get('inner_mtu'))} bytes",
        ),
        ("push", _hook(push.get("hook"), push.get("how"), push.get("reason"))),
        *([("receive", _receive(doc["receive"]))] if doc.get("receive") else []),
        ("peers", _peers(peers)),
        ("EVs", _states(doc.get("evs") or {}, doc.get("usable_evs"), colour)),
        *([("denied", _denied(doc["denials"]))] if doc.get("denials") else []),
        ("drops", ", ".join(f"{k} {count(v)}" for k, v in (doc.get("drops") or {}).items()) or "none"),
    ]
    if doc.get("probing"):
        pairs.append(("probes", _probing(doc["probing"])))
    if doc.get("other_programs"):
        pairs.append(("not ours", _other_programs(doc["other_programs"])))
    pairs += [("kernel", f"lacks {words}") for words in doc.get("kernel_lacks") or ()]
    if (doc.get("pins") or {}).get("lost"):
        pairs.append(("pins", f"{doc['pins']['lost']}: see `mrcctl doctor`"))
    alone = doc.get("forwarding_without_daemon") or {}
    if alone:
        pairs.insert(3, ("", f"forwarding without the daemon: {text(alone.get('works'))} ({text(alone.get('how'))})"))
    if doc.get("tables"):
        pairs.append(("tables", _fill(doc["tables"])))
    if doc.get("last_transition"):
        pairs.append(("last change", _transition(doc["last_transition"])))
    if doc.get("last_event"):
        pairs.append(("last event", sentence(doc["last_event"])))
    lines = facts(pairs, room)
    planes = doc.get("planes") or []
    if planes:
        lines += ["", *_planes(planes, colour, room), *facts(_reasons(planes), room)]
    return lines


def brief(doc: Document, *, colour: bool, room: int | None = None) -> list[str]:
    """The same in one line."""
    daemon, peers, planes = doc.get("daemon") or {}, doc.get("peers") or {}, doc.get("planes") or []
    alone = doc.get("forwarding_without_daemon") or {}
    bad = {k: v for k, v in (doc.get("evs") or {}).items() if v and k != "GOOD"}
    evs = sum((doc.get("evs") or {}).values())
    dropped = sum((doc.get("drops") or {}).values())
    parts = [
        text(doc.get("host")),
        paint("attached" if doc.get("attached") else "detached", colour),
        f"mrcd {paint('up' if daemon.get('running') else 'down', colour)}",
        f"peers {text(peers.get('reachable'))}/{text(peers.get('total'))}",
        f"EVs {text(doc.get('usable_evs'))}/{evs}" + (f" ({plain_states(bad)})" if bad else ""),
        f"planes {sum(bool(p.get('up')) for p in planes)}/{len(planes)}",
        f"drops {count(dropped)}",
    ]
    if alone and not alone.get("works"):
        parts.append("needs the daemon to forward")
    if (doc.get("pins") or {}).get("lost"):
        parts.append("pins lost")
    if doc.get("other_programs"):
        parts.append(f"other programs {len(doc['other_programs'])}")
    fallbacks = sum(bool(p.get("fallback")) for p in planes)
    if fallbacks:
        parts.append(f"fallback hooks {fallbacks}")
    return ["  ".join(parts)]


def _daemon(doc: Document) -> str:
    daemon = doc.get("daemon") or {}
    if not daemon.get("running"):
        return "mrcd not running" + (f" (tables: ABI {doc['abi_version']})" if doc.get("abi_version") else "")
    abi = f" (ABI {doc['abi_version']})" if doc.get("abi_version") else ""
    return (
        f"mrcd {text(daemon.get('version'))}{abi} running for {duration(daemon.get('uptime_s'))} "
        f"(pid {text(daemon.get('pid'))})"
    )


def _receive(receive: Document) -> str:
    """mrc0, a flow on one of the CPUs 0-1 (RPS), TCP's segments merged (GRO)"""
    if not receive.get("interface"):
        return "the planes' NICs"
    cpus = receive.get("rps_cpus")
    parts = [text(receive["interface"]), *([f"a flow on one of the CPUs {text(cpus)} (RPS)"] if cpus else [])]
    return ", ".join([*parts, *(["TCP's segments merged (GRO)"] if receive.get("merging") else [])])


def _hook(hook: object, how: object, why: object) -> str:
    if not hook:
        return "not attached"
    return text(hook) + (f" by {how}" if how else "") + (f" ({why})" if why else "")


def _peers(peers: Document) -> str:
    others = [f"{peers[k]} {k}" for k in ("unreachable", "detached") if peers.get(k)]
    known = f"{text(peers.get('reachable'))} of {text(peers.get('total'))} reachable"
    return ", ".join([known, *others])


def _probing(probing: Document) -> str:
    """sent 1.2M traffic, 30 suspicion, 4 retry, 5k idle; the daemon runs the tick; budget 4000/s, 2000 left"""
    sent = ", ".join(f"{count(n)} {kind}" for kind, n in (probing.get("sent_probes") or {}).items())
    by = probing.get("tick_by")
    who = f"the {by} runs the tick" if by else "nothing runs the tick until there is traffic"
    budget = f"budget {text(probing.get('budget_probes_per_s'))}/s, {text(probing.get('budget_left_probes'))} left"
    return f"{who}; sent: {sent or 'none'}; {budget}"


def _fill(tables: Document) -> str:
    """How full the tables are: {"evs": {"used": 48, "size": 1024}, …}; sizes of events are bytes."""
    words = {"evs": "EVs", "events": "unread events"}
    parts = []
    for name, fill in tables.items():
        unit = " bytes" if name == "events" else ""
        parts.append(f"{words.get(name, name)} {text(fill.get('used'))} of {text(fill.get('size'))}{unit}")
    return ", ".join(parts)


def _other_programs(docs: Sequence[Document]) -> str:
    """Programs of others, those in front of ours first."""
    parts = []
    for f in sorted(docs, key=lambda f: f["position"] != "before"):
        where = {"before": "IN FRONT OF OURS", "after": "behind ours"}.get(f["position"], "ours is not there")
        name = f["program"] or f"program {text(f['program_id'])}"
        parts.append(f"{name} at {f['point']} of {f['interface']} ({where})")
    return "; ".join(parts)


def _transition(doc: Document) -> str:
    return f"{duration(doc.get('since_s'))} ago: {where(doc)} → {text(doc.get('state'))}, {text(doc.get('reason'))}"


def _planes(planes: Sequence[Document], colour: bool, room: int | None) -> list[str]:
    columns = [
        Column("PLANE", True),
        *map(Column, ("INTERFACE", "LINK", "POP")),
        Column("GATEWAY", rank=1),
        Column("ADDRESS", rank=2),
        Column("SID", rank=3),
    ]
    rows = [
        [
            text(p.get("plane")),
            text(p.get("interface")),
            "up" if p.get("up") else "down",
            text(p.get("hook")),
            text(p.get("gateway_mac")),
            text(p.get("address")),
            text(p.get("sid")),
        ]
        for p in planes
    ]
    return table(columns, rows, colour=colour, room=room)


_CUT = {"nic": "the NIC cuts them", "cpu": "THE CPU CUTS THEM", "whole": "sent whole", "unknown": "not known"}


def _reasons(planes: Sequence[Document]) -> list[tuple[str, str]]:
    """Why pop is where it is, who cuts bursts, and what was not sent: once for all planes of which the same is true."""
    pop: dict[str, list[str]] = {}  # words → planes
    cut: dict[str, list[str]] = {}
    unsent: dict[str, list[str]] = {}
    for p in planes:
        if p.get("unsent_packets"):
            n = count(p["unsent_packets"])
            words = f"{n} packets dropped by this host's queueing discipline, not held against paths"
            unsent.setdefault(words, []).append(text(p.get("plane")))
        if p.get("hook_reason"):
            words = "FALLBACK: " * bool(p.get("fallback")) + str(p["hook_reason"])
            pop.setdefault(words, []).append(text(p.get("plane")))
        if p.get("bursts"):
            words = f"{_CUT.get(str(p['bursts']), p['bursts'])}: {text(p.get('bursts_reason'))}"
            cut.setdefault(words, []).append(text(p.get("plane")))
    return [
        (name, f"plane{'s' * (len(numbers) > 1)} {', '.join(numbers)}: {words}")
        for name, found in (("pop", pop), ("bursts", cut), ("unsent", unsent))
        for words, numbers in found.items()
    ]


def plain_states(counts: Document) -> str:
    """15 GOOD, 1 ASSUMED_BAD."""
    return ", ".join(f"{counts[s]} {s}" for s in _STATES if counts.get(s)) or NOTHING


def _states(counts: Document, usable: object, colour: bool) -> str:
    by_state = ", ".join(f"{count(counts[s])} {paint(s, colour)}" for s in _STATES if counts.get(s))
    return f"{text(usable)} of {count(sum(counts.values()))} usable" + (f": {by_state}" if by_state else "")


# ---- peers and paths -------------------------------------------------------------------------


def peers(docs: Sequence[Document], *, colour: bool, room: int | None = None) -> list[str]:
    """GET /v1/peers."""
    if not docs:
        return ["no peers"]
    columns = [
        Column("PEER"),
        Column("ID", True, rank=8),
        Column("STATUS"),
        Column("EVS USABLE", True),
        Column("STATES", rank=4),
        Column("PLANES UP", rank=3),
        Column("TX pkts", True, rank=5),
        Column("RX pkts", True, rank=7),
        Column("LOST pkts", True, rank=2),
        Column("LOSS %", True),
        Column("RTT µs", True),
        Column("HEARD", True, rank=6),
        Column("PREFIXES", rank=9),
    ]
    rows = [
        [
            text(p.get("peer")),
            text(p.get("host_id")),
            text(p.get("status")) if p.get("reachable") else "unreachable",
            f"{text(p.get('usable_evs'))}/{text(p.get('evs'))}",
            plain_states(p.get("states") or {}),
            text(p.get("linked_planes")),
            count(p.get("tx_packets")),
            count(p.get("rx_packets")),
            count(p.get("lost_packets")),
            percent(p.get("loss_ratio")),
            microseconds(p.get("rtt_ns")),
            duration(p.get("heard_s")),
            text(p.get("prefixes")),
        ]
        for p in docs
    ]
    return table(columns, rows, colour=colour, room=room)


def paths(docs: Sequence[Document], *, colour: bool, room: int | None = None) -> list[str]:
    """GET /v1/paths: one line per EV."""
    if not docs:
        return ["no paths"]
    columns = [
        Column("PEER"),
        *(Column(h, True) for h in ("EV", "PLANE", "T1")),
        *map(Column, ("STATE", "USABLE")),
        Column("SINCE", True, rank=1),
        Column("TX pkts", True, rank=6),
        Column("TX bytes", True, rank=11),
        Column("LOST pkts", True, rank=5),
        Column("LOSS %", True),
        Column("CE pkts", True, rank=10),
        Column("SKIPS", True, rank=9),
        Column("RTT µs", True),
        Column("NEXT PROBE", True, rank=7),
        Column("HOLD-DOWN", True, rank=4),
        Column("CARRIER", rank=8),
        Column("REASON", rank=2),
    ]
    rows = [
        [
            text(p.get("peer")),
            text(p.get("ev")),
            text(p.get("plane")),
            text(p.get("label") if p.get("t1") is None else p["t1"]),
            text(p.get("state")),
            share(p.get("usable"), p.get("weight")),
            duration(p.get("since_s")),
            count(p.get("tx_packets")),
            count(p.get("tx_bytes")),
            count(p.get("lost_packets")),
            percent(p.get("loss_ratio")),
            count(p.get("ce_packets")),
            count(p.get("skips")),
            microseconds(p.get("rtt_ns")),
            duration(p.get("next_probe_s")),
            duration(p.get("hold_down_s")),
            text(p.get("carrier")),
            _why(p),
        ]
        for p in docs
    ]
    return table(columns, rows, colour=colour, room=room)


def decoded(docs: Sequence[Document], *, colour: bool, room: int | None = None) -> list[str]:
    """GET /v1/paths?decode=1: one line per EV, with what each uSID of its carrier means."""
    if not docs:
        return ["no paths"]
    columns = [
        Column("PEER"),
        *(Column(h, True) for h in ("EV", "PLANE")),
        Column("STATE"),
        Column("HOPS"),
        Column("CARRIER", rank=1),
    ]
    rows = [
        [
            *(text(p.get(k)) for k in ("peer", "ev", "plane", "state")),
            " → ".join(hop(h, p.get("plane")) for h in p.get("hops") or []),
            text(p.get("segments")),
        ]
        for p in docs
    ]
    return table(columns, rows, colour=colour, room=room)


def hop(doc: Document, plane: object) -> str:
    """One hop: T0 3. Its plane is said only where it is not the path's."""
    kind, number = doc.get("kind"), text(doc.get("number"))
    if kind == "address":
        return f"any way to {text(doc.get('destination'))}"
    if kind not in ("t0", "t1", "host"):
        return f"uSID {text(doc.get('usid'))}"
    words = f"host port {number}" if kind == "host" else f"{str(kind).upper()} {number}"
    return words if doc.get("plane") == plane else f"{words} (of plane {text(doc.get('plane'))})"


def _why(path: Document) -> str:
    """Why an EV is in its state; of a denied one, by which word."""
    return _denial(path["denial"]) if path.get("denial") else text(path.get("reason"))


def _denied(docs: Sequence[Document]) -> str:
    more = f"; and {len(docs) - _DENIALS_SHOWN} more: see denials" if len(docs) > _DENIALS_SHOWN else ""
    return "; ".join(map(_denial, docs[:_DENIALS_SHOWN])) + more


def _denial(doc: Document) -> str:
    """t1:1:2 for another 28 min (maintenance)."""
    left = f" for another {duration(doc['remaining_s'])}" if doc.get("remaining_s") is not None else ""
    why = f" ({doc['reason']})" if doc.get("reason") else ""
    return f"{doc['action']} {doc['target']}{left}{why}"


def share(usable: object, weight: float | None) -> str:
    """Whether an EV takes its turns; of an EV that has just returned: how many of them."""
    return f"1/{1 / weight:.0f}" if usable and weight and weight < 1 else text(usable)


# ---- events and versions ---------------------------------------------------------------------


def events(docs: Sequence[Document], *, colour: bool, heading: bool = True, room: int | None = None) -> list[str]:
    """Events of GET /v1/events. The widths hardly depend on the rows, so that batches line up when followed."""
    narrow = room is not None and room < 120
    columns = [
        Column("TIME (UTC)", width=23),
        Column("KIND", width=6, rank=3 * narrow),
        Column("PEER", width=8),
        Column("EV", True, 4),
        Column("PLANE", True, 4),
        Column("T1", True, 4, rank=2 * narrow),
        Column("FROM", width=11, rank=4 * narrow),
        Column("TO", width=11),
        Column("REASON", width=12 if narrow else 24),
        Column("EVIDENCE", rank=1 * narrow),
    ]
    rows = [
        [
            moment(e.get("time")),
            *(text(e.get(k)) for k in ("kind", "peer", "ev", "plane", "t1", "from", "to", "reason")),
            _evidence(e.get("evidence")),
        ]
        for e in docs
    ]
    return table(columns, rows, colour=colour, heading=heading, room=room)


def version(doc: Document) -> list[str]:
    """Both halves' versions."""
    ours = (
        f"mrcctl {doc['mrcctl']} (ABI {doc['abi_version']}, wire {doc['wire_version']}, schema {doc['schema_version']})"
    )
    daemon = doc.get("daemon")
    if not daemon:
        return [ours, f"mrcd not known: {doc['error']}" if doc.get("error") else "mrcd not running"]
    theirs = (
        f"mrcd {text(daemon.get('version'))} (ABI {text(daemon.get('abi_version'))}, "
        f"wire {text(daemon.get('wire_version'))}, schema {text(daemon.get('schema_version'))})"
    )
    differ = daemon.get("version") != doc["mrcctl"]
    return [ours, theirs, *(["they differ: `systemctl restart mrcd` runs the version that is installed"] * differ)]


def _evidence(evidence: object) -> str:
    if not isinstance(evidence, Mapping):
        return text(evidence)
    return " ".join(f"{k}={text(v)}" for k, v in evidence.items()) or NOTHING


def _target(event: Document) -> object:
    """What an event about a denial is about."""
    return (event.get("evidence") or {}).get("target") if event.get("kind") == "denial" else None


def moment(iso: object) -> str:
    """ISO 8601 in UTC; the heading says so."""
    return text(iso).removesuffix("Z").removesuffix("+00:00")


def sentence(event: Mapping[str, Any]) -> str:
    """One event in a line: 2030-01-02T12:00:01.500 UTC h2 EV 5 (plane 1, T1 1): GOOD → ASSUMED_BAD, overdue."""
    change = f"{text(event.get('from'))} → {text(event.get('to'))}, " if event.get("from") or event.get("to") else ""
    subject = where(event) or f"{text(event.get('kind'))} {_target(event) or ''}".rstrip()
    return f"{moment(event.get('time'))} UTC {subject}: {change}{text(event.get('reason'))}"
