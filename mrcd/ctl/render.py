"""Documents of the daemon → text for people. Pure: nothing here prints, asks the terminal or the clock.

Numbers are rounded here and only here; whoever needs them exactly takes `--json`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# A document of the API: what json.loads gives.
Document = Mapping[str, Any]

# ANSI colours of whole cells, by their text.
_GREEN, _RED, _YELLOW, _FAINT = "32", "31", "33", "2"
_COLOURS = {
    "GOOD": _GREEN,
    "SKIP": _YELLOW,
    "ASSUMED_BAD": _RED,
    "DENIED": _YELLOW,
    "UNKNOWN": _FAINT,
    "attached": _GREEN,
    "detached": _YELLOW,
    "up": _GREEN,
    "down": _RED,
    "unreachable": _RED,
}
_STATES = ("GOOD", "SKIP", "ASSUMED_BAD", "DENIED", "UNKNOWN")
_NOTHING = "-"
# Of the paths that a deny or allow was about.
_PATHS_SHOWN = 16
_DENIALS_SHOWN = 4  # in `status`


# ---- numbers ---------------------------------------------------------------------------------


def count(value: float | None) -> str:
    """1234 → 1234, 123456 → 123k, 1234567 → 1.23M."""
    if value is None:
        return _NOTHING
    if abs(value) < 10_000:
        return text(value)
    for unit in "kMGT":
        value /= 1000
        # 999.5 and up would be rounded to four digits: the next unit says it in three.
        if abs(value) < 999.5:
            return f"{value:.3g}{unit}"
    return f"{value:.0f}T"


def percent(ratio: float | None) -> str:
    """A ratio in percent, with what matters of it: 0, 0.002, 12.3."""
    if ratio is None:
        return _NOTHING
    return "0" if ratio == 0 else f"{100 * ratio:.3g}" if ratio < 0.9995 else "100"


def microseconds(ns: float | None) -> str:
    """Nanoseconds in µs, one decimal; a path that was never measured has no round-trip time."""
    return f"{ns / 1000:.1f}" if ns else _NOTHING


def duration(seconds: float | None) -> str:
    """Seconds in the unit that suits them: 0.3 s, 42 s, 5 min, 3.2 h, 12 d."""
    if seconds is None:
        return _NOTHING
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for unit, size, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < limit:
            return f"{seconds / size:.1f} h" if unit == "h" else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def text(value: object) -> str:
    """Any other value of a document as one cell."""
    if value is None or value == "" or value == []:
        return _NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(str(v) for v in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- tables ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A heading with the unit in it; numbers stand to the right. `width` is the least, in characters."""

    heading: str
    right: bool = False
    width: int = 0


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], *, colour: bool, heading: bool = True) -> list[str]:
    """Aligned lines. The last column is not padded, so long texts there cost no room above."""
    cells = [list(row) for row in rows]
    widths = [max(c.width, len(c.heading), *(len(r[i]) for r in cells), 0) for i, c in enumerate(columns)]
    lines = [[c.heading for c in columns], *cells] if heading else cells
    out = []
    for n, line in enumerate(lines):
        padded = []
        for column, width, cell in zip(columns, widths, line, strict=True):
            room = " " * (width - len(cell))
            painted = cell if heading and n == 0 else paint(cell, colour)
            padded.append(room + painted if column.right else painted + room)
        out.append("  ".join(padded).rstrip())
    return out


def paint(cell: str, colour: bool) -> str:
    """A cell in the colour of its text, if it has one."""
    code = _COLOURS.get(cell)
    return f"\033[{code}m{cell}\033[0m" if colour and code else cell


# ---- documents -------------------------------------------------------------------------------


def status(doc: Document, *, colour: bool) -> list[str]:
    """GET /v1/status: a few sentences, then the planes."""
    daemon = doc.get("daemon") or {}
    if daemon.get("running"):
        running = f"mrcd {text(daemon.get('version'))} running for {duration(daemon.get('uptime_s'))}"
        running += f" (pid {text(daemon.get('pid'))})"
    else:
        running = "mrcd not running"
    peers, push = doc.get("peers") or {}, doc.get("push") or {}
    attached = paint("attached" if doc.get("attached") else "detached", colour)
    facts = [
        ("host", f"{text(doc.get('host'))} (id {text(doc.get('host_id'))}) of cluster {text(doc.get('cluster'))}"),
        ("daemon", running),
        (
            "data plane",
            f"{attached}, steering {text(doc.get('steering'))}, granularity {text(doc.get('granularity'))}, "
            f"inner MTU {text(doc.get('inner_mtu'))} bytes",
        ),
        ("push", _with_reason(push.get("hook"), push.get("reason"))),
        (
            "peers",
            f"{text(peers.get('total'))}: "
            + ", ".join(f"{text(peers.get(k))} {k}" for k in ("reachable", "unreachable", "detached")),
        ),
        ("EVs", _states(doc.get("evs") or {}, doc.get("usable_evs"), colour)),
        *([("denied", _denied(doc["denials"]))] if doc.get("denials") else []),
        ("drops", ", ".join(f"{k} {count(v)}" for k, v in (doc.get("drops") or {}).items()) or "none"),
    ]
    if doc.get("last_event"):
        facts.append(("last event", _sentence(doc["last_event"])))
    lines = [f"{name:<12}{value}" for name, value in facts]
    columns = [Column("PLANE", True), *map(Column, ("INTERFACE", "LINK", "GATEWAY", "ADDRESS", "SID", "POP"))]
    rows = [
        [
            text(p.get("plane")),
            text(p.get("interface")),
            "up" if p.get("up") else "down",
            text(p.get("gateway_mac")),
            text(p.get("address")),
            text(p.get("sid")),
            _with_reason(p.get("hook"), p.get("hook_reason")),
        ]
        for p in doc.get("planes") or []
    ]
    return [*lines, "", *table(columns, rows, colour=colour)] if rows else lines


def peers(docs: Sequence[Document], *, colour: bool) -> list[str]:
    """GET /v1/peers."""
    if not docs:
        return ["no peers"]
    columns = [
        Column("PEER"),
        Column("ID", True),
        Column("STATUS"),
        Column("EVS USABLE", True),
        *map(Column, ("STATES", "PLANES UP")),
        *(Column(h, True) for h in ("TX pkts", "RX pkts", "LOST pkts", "LOSS %", "RTT µs", "HEARD")),
        Column("PREFIXES"),
    ]
    return table(
        columns,
        [
            [
                text(p.get("peer")),
                text(p.get("host_id")),
                text(p.get("status")) if p.get("reachable") else "unreachable",
                f"{text(p.get('usable_evs'))}/{text(p.get('evs'))}",
                _plain_states(p.get("states") or {}),
                text(p.get("ports")),
                count(p.get("tx_packets")),
                count(p.get("rx_packets")),
                count(p.get("lost_packets")),
                percent(p.get("loss_ratio")),
                microseconds(p.get("rtt_ns")),
                duration(p.get("heard_s")),
                text(p.get("prefixes")),
            ]
            for p in docs
        ],
        colour=colour,
    )


def paths(docs: Sequence[Document], *, colour: bool) -> list[str]:
    """GET /v1/paths: one line per EV."""
    if not docs:
        return ["no paths"]
    columns = [
        Column("PEER"),
        *(Column(h, True) for h in ("EV", "PLANE", "T1")),
        *map(Column, ("STATE", "USABLE")),
        *(Column(h, True) for h in ("SINCE", "TX pkts", "TX bytes", "LOST pkts", "LOSS %", "CE pkts", "SKIPS")),
        *(Column(h, True) for h in ("RTT µs", "NEXT PROBE", "HOLD-DOWN")),
        *map(Column, ("CARRIER", "REASON")),
    ]
    return table(
        columns,
        [
            [
                text(p.get("peer")),
                text(p.get("ev")),
                text(p.get("plane")),
                text(p.get("label") if p.get("t1") is None else p["t1"]),
                text(p.get("state")),
                _share(p.get("usable"), p.get("weight")),
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
        ],
        colour=colour,
    )


def events(docs: Sequence[Document], *, colour: bool, heading: bool = True) -> list[str]:
    """Events of GET /v1/events. The widths hardly depend on the rows, so that batches line up when followed."""
    columns = [
        Column("TIME (UTC)", width=23),
        Column("KIND", width=6),
        Column("PEER", width=8),
        *(Column(h, True, 4) for h in ("EV", "PLANE", "T1")),
        Column("FROM", width=11),
        Column("TO", width=11),
        Column("REASON", width=24),
        Column("EVIDENCE"),
    ]
    rows = [
        [
            _time(e.get("time")),
            *(text(e.get(k)) for k in ("kind", "peer", "ev", "plane", "t1", "from", "to", "reason")),
            _evidence(e.get("evidence")),
        ]
        for e in docs
    ]
    return table(columns, rows, colour=colour, heading=heading)


def changed(doc: Document) -> list[str]:
    """POST /v1/deny and /v1/allow: the message, and the paths that it is about."""
    shown = list(doc.get("paths") or [])[:_PATHS_SHOWN]
    lines = [text(doc.get("message")), *(f"  {_where(p)}" for p in shown)]
    if len(doc.get("paths") or []) > len(shown):
        lines.append(f"  and {len(doc['paths']) - len(shown)} more (all with --json)")
    return lines


def plan(doc: Document) -> list[str]:
    """The summary of `config check`."""
    low, high = doc["evs"]["min"], doc["evs"]["max"]
    evs = text(low) if low == high else f"{low} to {high}"
    facts = [
        ("cluster", f"{doc['cluster']}: {doc['hosts']} hosts, {doc['planes']} planes"),
        ("fabric", f"in each plane {doc['t0s']} T0s, {doc['t1s']} T1s"),
        ("paths", f"{evs} EVs per peer (at most {doc['evs_per_peer']})"),
        ("data plane", f"steering {doc['steering']}, granularity {doc['granularity']}"),
        ("MTU", f"planes {doc['mtu']}, inner {doc['inner_mtu']} bytes"),
        ("seen from", f"{doc['host']}: {', '.join(doc['interfaces'])}"),
    ]
    return [f"{doc['file']}: valid", *(f"  {name:<12}{value}" for name, value in facts)]


def version(doc: Document) -> list[str]:
    """Both halves' versions."""
    daemon = doc.get("daemon")
    if not daemon:
        return [f"mrcctl {doc['mrcctl']}", "mrcd not running"]
    return [
        f"mrcctl {doc['mrcctl']}",
        f"mrcd {text(daemon.get('version'))} (ABI {text(daemon.get('abi_version'))}, "
        f"wire {text(daemon.get('wire_version'))}, schema {text(daemon.get('schema_version'))})",
    ]


# ---- parts -----------------------------------------------------------------------------------


def _with_reason(what: object, why: object) -> str:
    return f"{text(what)} ({why})" if why else text(what)


def _share(usable: object, weight: float | None) -> str:
    """Whether an EV takes its turns; of an EV that has just returned: how many of them."""
    return f"1/{1 / weight:.0f}" if usable and weight and weight < 1 else text(usable)


def _why(path: Document) -> str:
    """Why an EV is in its state; of a denied one, by which word."""
    return _denial(path["denial"]) if path.get("denial") else text(path.get("reason"))


def _denied(docs: Sequence[Document]) -> str:
    more = f"; and {len(docs) - _DENIALS_SHOWN} more: see denials" if len(docs) > _DENIALS_SHOWN else ""
    return "; ".join(map(_denial, docs[:_DENIALS_SHOWN])) + more


def _denial(doc: Document) -> str:
    """t1:1:2 for another 28 min (maintenance)."""
    left = f" for another {duration(doc['remaining_s'])}" if doc.get("remaining_s") is not None else ""
    return _with_reason(f"{doc['action']} {doc['target']}{left}", doc.get("reason"))


def _plain_states(counts: Document) -> str:
    return " ".join(f"{s} {counts[s]}" for s in _STATES if counts.get(s)) or _NOTHING


def _states(counts: Document, usable: object, colour: bool) -> str:
    by_state = ", ".join(f"{count(counts[s])} {paint(s, colour)}" for s in _STATES if counts.get(s))
    return f"{count(sum(counts.values()))}, {text(usable)} usable" + (f": {by_state}" if by_state else "")


def _evidence(evidence: object) -> str:
    if not isinstance(evidence, Mapping):
        return text(evidence)
    return " ".join(f"{k}={text(v)}" for k, v in evidence.items()) or _NOTHING


def _time(iso: object) -> str:
    """ISO 8601 in UTC; the heading says so."""
    return text(iso).removesuffix("Z").removesuffix("+00:00")


def _where(doc: Document) -> str:
    """What an event or a path is about: h2 EV 5 (plane 1, T1 1)."""
    where = [str(doc["peer"])] if doc.get("peer") is not None else []
    if doc.get("ev") is not None:
        where.append(f"EV {doc['ev']}")
    place = ", ".join(f"{name} {doc[k]}" for k, name in (("plane", "plane"), ("t1", "T1")) if doc.get(k) is not None)
    if place:
        where.append(f"({place})" if where else place)
    return " ".join(where)


def _target(event: Document) -> object:
    """What an event about a denial is about."""
    return (event.get("evidence") or {}).get("target") if event.get("kind") == "denial" else None


def _sentence(event: Document) -> str:
    """One event in a line: 2030-01-02T12:00:01.500 UTC h2 EV 5 (plane 1, T1 1): GOOD → ASSUMED_BAD, unanswered."""
    change = f"{text(event.get('from'))} → {text(event.get('to'))}, " if event.get("from") or event.get("to") else ""
    subject = _where(event) or f"{text(event.get('kind'))} {_target(event) or ''}".rstrip()
    return f"{_time(event.get('time'))} UTC {subject}: {change}{text(event.get('reason'))}"
