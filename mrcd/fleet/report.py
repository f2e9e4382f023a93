# SPDX-License-Identifier: BSD-2-Clause
"""Makes the report of a host, and from the reports of all hosts the documents of `mrcctl fleet`. Pure."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mrcd import __version__
from mrcd.config.hosts import Host
from mrcd.denials import record
from mrcd.denials.record import Denial
from mrcd.fleet.keys import FleetFile, Wanted
from mrcd.fleet.source import FileSource
from mrcd.versions import SCHEMA_VERSION

Document = dict[str, Any]

_MOST_NAMES = 16
_COUNTED = ("evs", "in_flight_packets", "unreported_evs")


def file_part(source: FileSource) -> Document:
    """Return which cluster file a host runs, and which one it refuses. `generation` is None for the host's own file."""
    file = source.running.file if source.running else None
    refusal = source.refusal
    return {
        "generation": file.generation if file else None,
        "sha256": source.sha256,
        "refused": {"generation": refusal.file.generation, "why": refusal.why} if refusal else None,
    }


def document(
    host: str,
    source: FileSource,
    denials: Sequence[Document],
    refused: Mapping[Denial, str],
    lost_peers: Sequence[str],
    *,
    is_pending: bool,
) -> Document:
    """Return the report of a host: its version, its file, and what it makes of the fleet-wide denials.

    `lost_peers`: those that it reached before it tried a file. `is_pending`: its tables lag behind the denials.
    """
    return {
        "host": host,
        "version": __version__,
        "file": file_part(source),
        "pending": is_pending,
        "lost_peers": list(lost_peers[:_MOST_NAMES]),
        "denials": list(denials),
        "refused_denials": [{"target": str(d.target), "since": d.since, "why": why} for d, why in refused.items()],
    }


def fleet(wanted: Wanted, reports: Mapping[str, Document], hosts: Iterable[str], now: float) -> Document:
    """Return the document of GET /v1/fleet.

    `hosts` are those of the cluster file. A host without a report is away: it is down, or does not reach etcd. A
    report of a host that the file does not name is shown too.
    """
    names = dict.fromkeys([*hosts, *sorted(reports)])
    file, trial = wanted.file, wanted.trial
    states = []
    for name in names:
        own = wanted.trial_on(name) or file
        states.append(_host(name, reports.get(name), own.generation if own else None))
    return {
        "schema_version": SCHEMA_VERSION,
        "file": _brief(file) if file else None,
        "trial": _brief(trial.file) | {"hosts": list(trial.hosts)} if trial else None,
        "hosts": states,
        "denials": [_denial(d, reports, names, now) for d in wanted.denials.values() if d.left_s(now)],
        "unreadable": [{"key": key, "why": why} for key, why in wanted.unreadable.items()],
    }


def first_hosts(hosts: Iterable[Host], reports: Mapping[str, Document], most: int) -> list[str]:
    """Return hosts to try a file on, under different T0s if possible: at most half of those that refuse nothing."""
    by_t0: dict[int, list[str]] = {}
    for h in hosts:
        if h.name in reports and not reports[h.name]["file"]["refused"]:
            by_t0.setdefault(h.t0, []).append(h.name)
    turns = itertools.zip_longest(*by_t0.values())
    names = [name for turn in turns for name in turn if name is not None]
    return names[: min(most, len(names) // 2)]


def _brief(file: FleetFile) -> Document:
    return {"generation": file.generation, "sha256": file.sha256}


def _host(name: str, report: Document | None, generation: int | None) -> Document:
    if report is None:
        part: Document = {"generation": None, "sha256": None, "refused": None}
        unknown = {"pending": False, "lost_peers": [], "denials": []}
        return {"host": name, "state": "away", "version": None, **part, **unknown}
    part = report["file"]
    refused = part["refused"]
    if generation is None or part["generation"] == generation:
        state = "current"
    else:
        state = "refuses" if refused and refused["generation"] == generation else "behind"
    denied = [d["target"] for d in report["denials"]]
    known = {"pending": report["pending"], "lost_peers": report["lost_peers"], "denials": denied}
    return {"host": name, "state": state, "version": report["version"], **part, **known}


def _denial(d: Denial, reports: Mapping[str, Document], names: Iterable[str], now: float) -> Document:
    """Return a fleet-wide denial with what the hosts say about it, and not about an earlier one of its target."""
    this = str(d.target), d.since
    settled = [(name, r) for name, r in reports.items() if not r["pending"]]
    found = {name: e for name, r in settled for e in r["denials"] if (e["target"], e["since"]) == this}
    refused = {
        name: e["why"] for name, r in reports.items() for e in r["refused_denials"] if (e["target"], e["since"]) == this
    }
    totals = {key: sum(entry[key] for entry in found.values()) for key in _COUNTED}
    lost = [entry["lost_packets"] for entry in found.values()]
    return record.brief(d, d.left_s(now)) | {
        "hosts": len(list(names)),
        "denied_hosts": len(found),
        "drained_hosts": sum(entry["empty"] for entry in found.values()),
        "waiting_hosts": [name for name in names if name not in found and name in reports and name not in refused],
        "not_empty_hosts": [name for name, entry in found.items() if not entry["empty"]],
        "away_hosts": [name for name in names if name not in reports],
        "refused": [{"host": name, "why": why} for name, why in refused.items()],
        **totals,
        "lost_packets": None if None in lost else sum(lost),  # None: a daemon has restarted since
    }
