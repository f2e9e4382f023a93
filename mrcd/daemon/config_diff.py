# SPDX-License-Identifier: BSD-2-Clause
"""Compares two cluster files for one host, and decides how a reload applies the difference. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mrcd.config.cluster_file import AGREED, Config, Host
from mrcd.config.devices import timer_of
from mrcd.errors import TakesRestart, UsageError
from mrcd.fabric.topology import Plan
from mrcd.kernel.settings import classes, health, settings, table_sizes
from mrcd.versions import SCHEMA_VERSION

_AT_ONCE = 64  # peers
_FIXED = ("overlay.interface", "overlay.rps_cpus", "metrics.address", "metrics.web_config")


@dataclass(frozen=True)
class Setting:
    """A key outside [[hosts]] and [[paths]]; values as in JSON."""

    key: str
    before: Any
    after: Any


@dataclass(frozen=True)
class PeerChange:
    """The number of EVs to a peer that are new, removed, or on another path."""

    peer: str
    added: int
    removed: int
    changed: int


@dataclass(frozen=True)
class Difference:
    """The changes of a reload. Hosts are names; `peers` are those that are in both files."""

    settings: tuple[Setting, ...]
    hosts_added: tuple[str, ...]
    hosts_removed: tuple[str, ...]
    hosts_changed: tuple[tuple[str, tuple[str, ...]], ...]  # name, keys
    peers: tuple[PeerChange, ...]
    labels: bool  # of paths to this host's peers
    health: bool  # must be written into the running programs
    programs: bool  # must be loaded again, and replaced in place
    tables: bool  # must be created again; then the programs too

    @property
    def anything(self) -> bool:
        """False if both files mean the same for this host."""
        return bool(
            self.settings
            or self.hosts_added
            or self.hosts_removed
            or self.hosts_changed
            or self.peers
            or self.labels
            or self.programs
        )

    @property
    def agreed(self) -> list[str]:
        """Changed keys that must be equal on all hosts."""
        return [s.key for s in self.settings if s.key.removeprefix("cluster.") in AGREED]

    def steps(self) -> list[str]:
        """Return the steps of a reload, as text."""
        found = []
        if self.programs:
            found.append("the programs are loaded anew with their settings, and replaced in place")
        if self.health and not self.programs:
            found.append("the settings of [health] are changed in the running programs")
        if self.tables:
            found.append("the tables are made anew: states of EVs are kept, counters start at zero")
        if self.labels:
            found.append("paths are shown with other labels")
        if self.agreed:
            found.append(f"{', '.join(self.agreed)} must be equal on all hosts: detach first, or use --force")
        found += [f"{s.key} takes a restart" for s in self.settings if s.key in _FIXED]
        return found

    def check(self, *, detached: bool, force: bool) -> None:
        """Raises UsageError if a running daemon must not load the new file: TakesRestart if a new one may."""
        if self.agreed and not (detached or force):
            raise UsageError(
                f"{', '.join(self.agreed)} must be equal on all hosts, and packets in flight would be lost; "
                "nothing was changed",
                hint="`mrcctl detach` on every host, then `mrcctl reload`, then `mrcctl attach`; or `mrcctl reload "
                "--force`, and packets are lost until all hosts have the new file",
            )
        for s in self.settings:
            if s.key in _FIXED:
                then = (
                    f", then `ip link del {s.before}; ip link del {timer_of(s.before)}`"
                    if s.key == "overlay.interface"
                    else ""
                )
                if s.key == "overlay.rps_cpus":
                    then = ", then `ip link del` the overlay's interface: mrcd makes it anew"
                raise TakesRestart(
                    f"{s.key} {_said(s.before)} → {_said(s.after)} takes a restart; nothing was changed",
                    hint=f"`systemctl restart mrcd`{then}",
                )

    def document(self) -> dict[str, Any]:
        """Return the document of `mrcctl config diff --json`."""
        return {
            "schema_version": SCHEMA_VERSION,
            "changed": self.anything,
            "settings": [{"key": s.key, "before": s.before, "after": s.after} for s in self.settings],
            "hosts": {
                "added": list(self.hosts_added),
                "removed": list(self.hosts_removed),
                "changed": [{"host": name, "keys": list(keys)} for name, keys in self.hosts_changed],
            },
            "evs": [{"peer": p.peer, "added": p.added, "removed": p.removed, "changed": p.changed} for p in self.peers],
            "programs": self.programs,
            "tables": self.tables,
            "all_hosts": self.agreed,
            "steps": self.steps(),
        }


def _said(value: object) -> str:
    return "unset" if value is None else str(value)


def compare(before: Plan, after: Plan) -> Difference:
    """Return the difference from the running plan to another one of the same host."""
    old, new = ({h.name: h for h in p.config.hosts} for p in (before, after))
    tables = (have := table_sizes(before)) != table_sizes(after, have["mrc_peers"])
    return Difference(
        settings=_settings(before.config, after.config),
        hosts_added=tuple(n for n in new if n not in old),
        hosts_removed=tuple(n for n in old if n not in new),
        hosts_changed=tuple((n, keys) for n in new if n in old and (keys := _keys(old[n], new[n]))),
        peers=tuple(c for c in _evs(before, after) if c.added or c.removed or c.changed),
        labels=_labels(before) != _labels(after),
        health=health(before).tobytes() != health(after).tobytes(),
        programs=tables or _constants(before, have["mrc_peers"]) != _constants(after, have["mrc_peers"]),
        tables=tables,
    )


def _constants(plan: Plan, rows: int) -> bytes:
    """Return the constants that the programs are loaded with, for peer tables of `rows` rows."""
    return settings(plan, peers=rows).tobytes() + classes(plan).tobytes()


def flat(config: Config) -> dict[str, Any]:
    """All keys outside [[hosts]] and [[paths]], "section.key", with values as in JSON; `classes` is one of them."""
    document = config.model_dump(mode="json", exclude={"hosts", "paths"})
    classes = document.pop("classes")
    found = {f"{section}.{key}": value for section, keys in document.items() for key, value in keys.items()}
    return found | {"classes": classes}


def _settings(before: Config, after: Config) -> tuple[Setting, ...]:
    old, new = flat(before), flat(after)
    return tuple(Setting(key, old.get(key), new[key]) for key in new if old.get(key) != new[key])


def _keys(before: Host, after: Host) -> tuple[str, ...]:
    return tuple(key for key in type(after).model_fields if getattr(before, key) != getattr(after, key))


def _labels(plan: Plan) -> dict[tuple[str, int], str]:
    """Return the labels of paths listed in the file, by peer and EV."""
    return {(e.peer, e.ev): e.label for p in plan.peers if p.explicit for e in p.evs if e.label}


def _evs(before: Plan, after: Plan) -> Iterator[PeerChange]:
    """Compares the EVs of the peers that both plans have, as arrays of _AT_ONCE peers."""
    if before.paths is after.paths:
        return
    old = {p.host.name: p.number for p in before.peers}
    both = [p for p in after.peers if p.host.name in old]
    width = max(p.config.cluster.evs_per_peer for p in (before, after))
    for first in range(0, len(both), _AT_ONCE):
        some = both[first : first + _AT_ONCE]
        was = before.paths.block(np.array([old[p.host.name] for p in some]), width)
        is_ = after.paths.block(np.array([p.number for p in some]), width)
        same = (was.plane == is_.plane) & (was.srh_len == is_.srh_len) & (was.dst == is_.dst).all(axis=2)
        if was.srh is not None and is_.srh is not None:
            same &= (was.srh == is_.srh).all(axis=2)
        added, removed = is_.configured & ~was.configured, was.configured & ~is_.configured
        counts = (which.sum(axis=1).tolist() for which in (added, removed, was.configured & is_.configured & ~same))
        for peer, *count in zip(some, *counts, strict=True):
            yield PeerChange(peer.host.name, *count)
