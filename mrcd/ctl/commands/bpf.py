# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl bpf` (maps, progs, dump), which reads the pinned maps and programs without the daemon."""

import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mrcd.ctl.base import Commands, Options, colours, common, emit, terminal_width
from mrcd.ctl.offline import envelope, pins
from mrcd.ctl.options import complete_peer, wide_option
from mrcd.ctl.sampling import SECONDS
from mrcd.ctl.terminal.render import Column, Document, count, duration, table, text
from mrcd.errors import UsageError

if TYPE_CHECKING:
    from mrcd.tables.pinned import Tables


@click.group(cls=Commands, short_help="Show maps, programs and records in the kernel.")
@common
def bpf() -> None:
    """Show pinned maps, programs and records of the kernel. Works without mrcd."""


@bpf.command(name="maps")
@wide_option
@common
@click.pass_obj
def maps_(options: Options, wide: bool) -> None:
    """List the pinned maps with sizes, memory and use."""
    from mrcd.bpf import info

    directory, _ = pins(options.run_dir)
    used = fill_of_maps(directory)
    rows = [{**m, "used": used.get(m["map"])} for m in info.maps(directory)]
    emit(options, envelope("maps", rows, "tables"), _maps, colour=colours(), width=terminal_width(wide))


def fill_of_maps(directory: Path) -> dict[str, int]:
    """Return the number of entries in use, by the name of the map."""
    tables = pinned_tables(directory)
    fill = tables.fill()
    tables.close()
    names = {"peers": "mrc_peers", "evs": "mrc_evs", "prefixes": "mrc_prefixes", "events": "mrc_events"}
    return {name: fill[key][0] for key, name in names.items()}


def _maps(document: Document, *, colour: bool, width: int | None) -> list[str]:
    columns = [
        Column("MAP"),
        Column("ID", True, rank=6),
        Column("TYPE", rank=2),
        Column("KEY bytes", True, rank=5),
        Column("VALUE bytes", True, rank=4),
        Column("ENTRIES", True),
        Column("USED", True, rank=1),
        Column("MEMORY bytes", True, rank=3),
        Column("PIN", rank=7),
    ]
    keys = ("map", "id", "type", "key_bytes", "value_bytes", "entries", "used")
    rows = [[*(text(m[k]) for k in keys), count(m["memory_bytes"]), m["pin"]] for m in document["maps"]]
    return table(columns, rows, colour=colour, width=width)


@bpf.command(short_help="List the loaded programs and their hooks.")
@click.option(
    "--interval", "-i", type=SECONDS, metavar="SECONDS", help="Runs and CPU time over this time, instead of counters."
)
@wide_option
@common
@click.pass_obj
def progs(options: Options, interval: float | None, wide: bool) -> None:
    """List the loaded programs that use the pinned maps, and their hooks.

    RUNS and ns/RUN count while `sysctl kernel.bpf_stats_enabled=1`; with --interval SECONDS they are those of that
    time. mrcd itself runs a program without a hook, or a dead mrcd left it.
    """
    from mrcd.bpf import info

    directory, _ = pins(options.run_dir)
    rows, began_s = info.programs(directory), time.monotonic()
    moved: dict[str, Any] = {}
    if interval is not None:
        time.sleep(interval)
        before, rows = rows, info.programs(directory)
        moved = {"interval_s": round(time.monotonic() - began_s, 3)}
        rows = _moved(before, rows, moved["interval_s"])
        if not any(p["recent_runs"] for p in rows):
            click.echo(
                "mrcctl: no program has run, or is counted: `sysctl kernel.bpf_stats_enabled=1` counts", err=True
            )
    document = moved | envelope("programs", rows, "tables") | {"links": info.links(directory)}
    emit(options, document, _programs, colour=colours(), width=terminal_width(wide))


def _moved(before: Sequence[Document], after: Sequence[Document], interval_s: float) -> list[dict[str, Any]]:
    """Return the programs of `after` with `recent_runs`, `runs_per_s` and `recent_run_time_ns`; None for new ones."""
    known = {p["id"]: p for p in before}
    rows = []
    for p in after:
        old = known.get(p["id"])
        runs = p["runs"] - old["runs"] if old else None
        rows.append(
            {
                **p,
                "recent_runs": runs,
                "runs_per_s": None if runs is None else round(runs / interval_s, 3),
                "recent_run_time_ns": p["run_time_ns"] - old["run_time_ns"] if old else None,
            }
        )
    return rows


def _programs(document: Document, *, colour: bool, width: int | None) -> list[str]:
    interval_s = document.get("interval_s")
    headings = ("RUNS", "ns/RUN") if interval_s is None else ("RUNS/s", "ns/RUN now")
    columns = [
        Column("PROGRAM"),
        Column("ID", True, rank=6),
        Column("TYPE", rank=7),
        Column("TAG", rank=9),
        Column("LOADED", True, rank=5),
        *(Column(h, True, rank=r) for h, r in (("INSNS", 8), ("JITED bytes", 10))),
        *(Column(h, True, rank=r) for h, r in zip(headings, (3, 4), strict=True)),
        Column("HOOKS"),
    ]
    rows = [
        [
            *(text(p[k]) for k in ("program", "id", "type", "tag")),
            duration(p["loaded_s"]),
            text(p["verified_instructions"]),
            text(p["jited_bytes"]),
            *_runs(p, is_recent=interval_s is not None),
            _hooks(p["hooks"]),
        ]
        for p in document["programs"]
    ]
    head = [] if interval_s is None else [f"over {duration(interval_s)}"]
    return [*head, *table(columns, rows, colour=colour, width=width)]


def _runs(p: Document, *, is_recent: bool) -> list[str]:
    """Return the number of runs, or runs per second, and the mean time of one."""
    runs, ns = (p["recent_runs"], p["recent_run_time_ns"]) if is_recent else (p["runs"], p["run_time_ns"])
    rate = p["runs_per_s"] if is_recent else runs
    return [count(rate if rate is None else round(rate)), count(round(ns / runs) if runs else None)]


def _hooks(hooks: Sequence[Document]) -> str:
    """Return hooks with their interfaces: tcx ingress p0,p1; xdp p0."""
    by_point: dict[str, list[str]] = {}
    for hook in hooks:
        point = hook["type"] if hook["type"] == hook["point"] else f"{hook['type']} {hook['point']}"
        by_point.setdefault(point, []).append(text(hook["interface"]))
    return "; ".join(f"{point} {','.join(interfaces)}" for point, interfaces in by_point.items()) or "-"


# ---- records ---------------------------------------------------------------------------------


@bpf.command(short_help="Print records of this host, a peer or an EV.")
@click.argument("peer", required=False, shell_complete=complete_peer)
@click.argument("ev", required=False, type=click.IntRange(min=0))
@common
@click.pass_obj
def dump(options: Options, peer: str | None, ev: int | None) -> None:
    """Print records of the tables with field names and the meaning of numbers.

    With PEER (a name or a host id) the peer's records; with PEER and EV those of that path; without, this host's. Keys
    are never shown.
    bpf/mrc_abi.h explains each field.
    """
    directory, names = pins(options.run_dir)
    tables = pinned_tables(directory)
    if peer is None:
        rows = _host_records(tables)
    else:
        row = _row(peer, names, len(tables.peers))
        rows = _peer_records(tables, row, peer) if ev is None else _ev_records(tables, row, peer, ev)
    emit(options, envelope("records", rows, "tables"), _records, width=terminal_width())


def pinned_tables(directory: Path) -> "Tables":
    """Return the tables pinned in a directory, to read. Raises MachineError."""
    from mrcd.tables.pinned import Tables  # numpy

    return Tables(directory, writable=False)


def _row(peer: str, names: dict[str, int], size: int) -> int:
    row = names.get(peer, int(peer) if peer.isascii() and peer.isdigit() else None)
    if row is None or not 0 <= row < size:
        examples = ", ".join(list(names)[:10])
        raise UsageError(f"there is no peer {peer!r}", hint=f"peers: {examples}" if examples else "use its host id")
    return row


def _host_records(tables: "Tables") -> list[dict[str, Any]]:
    rows = [_record("mrc_node", 0, tables.node[()]), _record("mrc_clock", 0, tables.clock[()])]
    rows += [
        _record("mrc_planes", p, tables.planes[p]) for p in range(len(tables.planes)) if tables.planes[p]["ifindex"]
    ]
    drops = [{"field": k, "value": v, "meaning": ""} for k, v in tables.drops().items()]
    return [*rows, {"table": "mrc_drops", "index": None, "peer": None, "ev": None, "fields": drops}]


def _peer_records(tables: "Tables", row: int, peer: str) -> list[dict[str, Any]]:
    found = {
        "mrc_peers": tables.peers[row],
        "mrc_auths": tables.auths[row],
        "mrc_reports": tables.reports[row],
        "mrc_watches": tables.watches[row],
    }
    return [_record(name, row, record, peer) for name, record in found.items()]


def _ev_records(tables: "Tables", row: int, peer: str, ev: int) -> list[dict[str, Any]]:
    width = tables.evs.shape[1]
    if ev >= width:
        raise UsageError(f"there is no EV {ev}: the tables have {width} per peer", hint="`mrcctl paths` lists them")
    found = {"mrc_evs": tables.evs, "mrc_path_stats": tables.path_stats, "mrc_rxs": tables.rxs}
    rows = [_record(name, row * width + ev, records[row, ev], peer, ev) for name, records in found.items()]
    if tables.evs[row, ev]["srh_len"]:
        rows.append(_record("mrc_srhs", row * width + ev, tables.srhs[row * width + ev], peer, ev))
    return rows


def _record(name: str, index: int, record: Any, peer: str | None = None, ev: int | None = None) -> dict[str, Any]:
    from mrcd.tables.records import fields

    found = fields(record, time.monotonic_ns())
    return {"table": name, "index": index, "peer": peer, "ev": ev, "fields": found}


def _records(document: Document, *, width: int | None) -> list[str]:
    lines: list[str] = []
    for record in document["records"]:
        owner = f"  {record['peer']}" if record["peer"] is not None else ""
        owner += f" EV {record['ev']}" if record["ev"] is not None else ""
        index = "" if record["index"] is None else f"[{record['index']}]"
        lines += [f"{record['table']}{index}{owner}", *_fields(record["fields"], width), ""]
    return lines[:-1]


def _fields(fields: Sequence[Document], width: int | None) -> list[str]:
    lines = []
    for field in fields:
        shown, meaning = _shown(field["value"]), field["meaning"]
        # The meaning of a bitmap is readable, the bits are not. A key has no value here.
        if field["value"] is None or field["field"] in ("usable", "deadlines"):
            shown, meaning = meaning, ""
        line = f"  {field['field']:<16} {shown}" + (f"  ({meaning})" if meaning else "")
        lines += textwrap.wrap(line, width, subsequent_indent=" " * 6, break_on_hyphens=False) if width else [line]
    return lines


def _shown(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    used = len(value)
    while used > 1 and value[used - 1] in (0, "::"):
        used -= 1
    return ", ".join(str(v) for v in value[:used]) + (", …" if used < len(value) else "")
