# SPDX-License-Identifier: BSD-2-Clause
"""Renders the documents of `mrcctl fabric`: a plan, the configuration of switches, and what a check found. Pure."""

from mrcd.ctl.terminal.render import Column, Document, facts, fold, percent, table

_PARTS = {
    "nic": "NICs of one host",
    "t0": "T0s of one host",
    "t1": "T1s",
    "link": "links of a T0 to T1s",
    "plane": "planes",
}


def plan_lines(doc: Document, *, width: int | None = None) -> list[str]:
    """Return a plan: sizes, uSIDs, and what failures leave."""
    used, cables = doc["ports_used"], doc["cables"]
    over = doc["oversubscription_ratio"]
    pairs = [
        ("hosts", f"{doc['hosts']} with {doc['planes']} NICs each: {doc['nics']} NICs"),
        (
            "each plane",
            f"{doc['t0s']} T0s of {doc['hosts_per_t0']} hosts, {doc['t1s']} T1s; each T0 has a link to each T1",
        ),
        ("switches", f"{doc['switches']} of {doc['radix']} ports; used: {used['t0']} of a T0, {used['t1']} of a T1"),
        ("cables", f"{cables['host_t0']} between hosts and T0s, {cables['t0_t1']} between T0s and T1s"),
        ("T0 uplinks", f"{over:.3g} hosts per uplink" + (" (oversubscribed)" if over > 1 else "")),
        ("paths", f"{doc['paths_per_peer']} to a peer under another T0, of which {doc['evs_per_peer']} are its EVs"),
    ]
    lines = facts(pairs, width)
    kinds = ("T0", "T1", "HOST") if doc["t1s"] else ("T0", "HOST")
    rows = [
        [plane, *(f"{ends[2 * i]} to {ends[2 * i + 1]}" for i in range(len(kinds)))]
        for plane, ends in doc["usids"].items()
    ]
    lines += [
        "",
        "uSIDs:",
        *table(
            [Column("PLANE", True), *(Column(kind, rank=i) for i, kind in enumerate(kinds))],
            rows,
            colour=False,
            width=width,
        ),
    ]
    return [*lines, *_failure_lines(doc, width), *_files(doc, width)]


def _failure_lines(doc: Document, width: int | None) -> list[str]:
    failures = doc["failures"]
    evs, planes = doc["evs_per_peer"], doc["planes"]
    rows = [
        [
            str(o["failed"]),
            _PARTS[o["part"]],
            str(o["of"]),
            f"{o['evs']} of {evs}",
            f"{o['planes']} of {planes}",
            str(o["hosts"]),
            percent(o["capacity"]),
        ]
        for o in failures["outcomes"]
    ]
    columns = [
        Column("FAILED", True),
        Column("OF A KIND"),
        Column("IN ALL", True, rank=4),
        Column("EVS LEFT", True),
        Column("PLANES LEFT", True, rank=1),
        Column("HOSTS HIT", True, rank=2),
        Column("CORE LEFT %", True, rank=3),
    ]
    limits = [
        f"{_PARTS[limit['part']]}: fewer than {failures['floor']} EVs (ev_min_active) with {limit['below_floor']}, "
        f"none with {limit['separated']}"
        for limit in failures["limits"]
    ]
    return [
        "",
        *fold("What failures in the worst places leave to two hosts under different T0s:", width),
        *table(columns, rows, colour=False, width=width),
        "",
        "Two hosts have:",
        *(line for limit in limits for line in fold(limit, width)),
    ]


def _files(doc: Document, width: int | None) -> list[str]:
    written = [f"{key} written to {doc[name]}" for key, name in _FILES.items() if doc[name]]
    return ["", *(line for w in written for line in fold(w, width))] if written else []


_FILES = {"cluster file": "output", "cables": "cables_file"}


def written_lines(doc: Document) -> list[str]:
    """Return the configuration of a switch as it is, or where those of all were written."""
    if "text" in doc:
        return [str(doc["text"]).removesuffix("\n")]
    return [f"{len(doc['files'])} files in {doc['directory']}: {doc['files'][0]} to {doc['files'][-1]}"]


def check_lines(doc: Document, *, width: int | None = None) -> list[str]:
    """Return what a check of switches' configurations found."""
    followed = f"{doc['followed']} packets through {doc['switches']} switches ({doc['format']})"
    if doc["correct"]:
        return fold(f"{followed}: no mistake", width)
    rows = [[str(m["count"]), m["mistake"], m["example"]] for m in doc["mistakes"]]
    return [
        *fold(f"{followed}:", width),
        *table([Column("COUNT", True), Column("MISTAKE"), Column("FOR EXAMPLE")], rows, colour=False, width=width),
    ]
