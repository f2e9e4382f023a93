# SPDX-License-Identifier: BSD-2-Clause
"""Tests denials of a host, of its fleet and by the API, over emulated tables and programs, with clocks of the test."""

import asyncio
import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from aiohttp import web

from mrcd import state_dir
from mrcd.api.server import Api
from mrcd.auth.keyring import Keyring
from mrcd.config import cluster_file
from mrcd.daemon import write_tables
from mrcd.daemon.reload import Reloader
from mrcd.denials import targets
from mrcd.denials.deny_and_allow import UNRECORDED_S, DenialControl, Document
from mrcd.denials.record import Denial
from mrcd.denials.table import LAST_PATHS_S
from mrcd.denials.targets import Target
from mrcd.errors import MachineError, UsageError
from mrcd.fabric import topology
from mrcd.fleet.member import FleetMember
from mrcd.health.monitor import Monitor
from mrcd.health.snapshot import Snapshot
from mrcd.kernel import abi, pinned
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.enums import EvState
from mrcd.net.messages import Link
from mrcd.versions import SCHEMA_VERSION
from mrcd.view.paths import in_flight
from tests.unit import simulated_time
from tests.unit.arrays import TEXT
from tests.unit.emulated_programs import Bench
from tests.unit.interfaces import link
from tests.unit.unix_api import asked

ALL = set(range(8))


class Host:
    """A host with its denials. `again` is what a restart makes of it: the tables stay."""

    def __init__(self, path: Path) -> None:
        self.bench = Bench()
        self.path = path
        self.wall, self.clock = 1e9, 500.0
        self.again()

    def again(self) -> None:
        self.control = DenialControl(self.path, self.bench.log, lambda: self.wall, lambda: self.clock)
        self.reload()

    def reload(self) -> None:
        self.run(self.control.use_paths(self.bench.plan, self.tables, self.bench.monitor))

    @property
    def tables(self) -> pinned.Tables:
        return cast(pinned.Tables, self.bench.arrays)

    def as_daemon(self, **more: Any) -> SimpleNamespace:
        """Returns what the API takes for a daemon: without secrets, and with all NICs."""

        async def links() -> dict[str, Link]:
            return {name: link(name) for name in plan.interfaces}

        plan, tables = self.bench.plan, self.tables
        parts: dict[str, Any] = {
            "denials": self.control,
            "plan": plan,
            "tables": tables,
            "detached": False,
            "keyring": Keyring(plan.host.id),
            "view": SimpleNamespace(snapshot=lambda: Snapshot(tables, plan)),
            "netlink": SimpleNamespace(links=links),
            "netlink_lock": contextlib.nullcontext(),
        }
        return SimpleNamespace(**parts | more)

    def run(self, what: Any) -> Any:
        return simulated_time.run(what)

    def deny(self, text: str, **how: Any) -> Document:
        found: Document = self.run(self.control.deny(targets.parse(text.split()), **how))
        return found

    def allow(self, text: str = "") -> Document:
        target = targets.parse(text.split()) if text else None
        found: Document = self.run(self.control.allow(target, 7))
        return found

    def later(self, seconds: float) -> None:
        self.wall += seconds
        self.clock += seconds
        self.run(self.control.update())

    def denied(self, row: int = 1) -> set[int]:
        evs = self.bench.arrays.evs[row]
        return set(np.flatnonzero((evs["state"] == EvState.DENIED) & (evs["configured"] != 0)).tolist())

    def told(self) -> list[str]:
        self.bench.monitor.log_events()
        return [e["reason"] for e in self.bench.said("denial")]

    @property
    def targets(self) -> list[str]:
        return [d["target"] for d in self.control.document()["denials"]]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / state_dir.DENIALS)


# ---- a host's own denials ----

# Steps: what is done, with what, what the answer has, and the EVs to h1 that are denied after it. "again" is a restart,
# "wall" sets the wall clock alone.
Step = tuple[str, Any, dict[str, Any], set[int]]
FOR_60 = {"for_s": 60}
PLANE_1 = {4, 5, 6, 7}
STORIES: dict[str, list[Step]] = {
    "deny and allow": [
        ("t1:1:2", {"reason": "fan", "uid": 1000}, {
            "changed": 2, "refused": 0, "target": "t1:1:2", "saved": True,
            "message": "t1:1:2 is denied: 2 EVs to 2 peers",
        }, {6}),
        ("brief", None, {"reason": "fan", "uid": 1000, "remaining_s": None, "action": "deny", "forced": False}, {6}),
        ("allow", "t1:1:2", {"changed": 2, "ended": ["t1:1:2"], "refused": 0}, set()),
    ],
    "deny again changes what is new": [
        ("plane:1", {"reason": "fan", "for_s": 1800}, {"changed": 4 + 1 + 4}, PLANE_1),
        ("later", 120, {}, PLANE_1),
        ("plane:1", {}, {"message": "plane:1 stays denied for another 28 min: 9 EVs to 3 peers"}, PLANE_1),
        ("brief", None, {"remaining_s": 1680, "reason": "fan"}, PLANE_1),
        ("plane:1", {"for_s": 120, "drain": True, "reason": "optics"}, {"changed": 0}, PLANE_1),
        ("brief", None, {"remaining_s": 120, "reason": "optics", "action": "drain"}, PLANE_1),
        ("plane:1", {"for_s": math.inf}, {"message": "plane:1 stays denied without an end: 9 EVs to 3 peers"}, PLANE_1),
        ("later", 1e6, {}, PLANE_1),
        ("brief", None, {"until": None}, PLANE_1),
    ],
    "allow of what is not denied": [
        ("allow", "t1:1:2", {"changed": 0, "message": "t1:1:2 is not denied: nothing to allow"}, set()),
        ("allow", "", {"message": "nothing is denied"}, set()),
        ("plane:1", {}, {}, PLANE_1),
        ("allow", "ev:h1:5", {
            "changed": 0, "refused": 1, "denied_by": ["plane:1"],
            "message": "no denial of this host has the target peer:h1 ev:5; other denials still cover 1 EV of peer:h1 "
            "ev:5: `mrcctl allow plane:1`",
        }, PLANE_1),
    ],
    "allow ends the denials within its target": [
        ("t1:1:2", {}, {}, {6}), ("ev:h1:5", {}, {}, {5, 6}), ("t1:0:0", {}, {}, {0, 5, 6}),
        ("allow", "plane:1", {"ended": ["t1:1:2", "peer:h1 ev:5"]}, {0}),
        ("t1:0:1", {}, {}, {0, 1}), ("allow", "", {"ended": ["t1:0:0", "t1:0:1"]}, set()),
    ],
    "an EV under two denials waits for both": [
        ("t1:1:2", {}, {}, {6}), ("ev:h1:6", {}, {"changed": 0}, {6}),
        ("allow", "t1:1:2", {"changed": 1, "denied_by": ["peer:h1 ev:6"]}, {6}), ("allow", "ev:h1:6", {}, set()),
    ],
    "below the floor of a peer all is refused": [
        ("peer:h1", {}, {
            "changed": 0, "refused": 8,
            "peers_below": [{"peer": "h1", "left_evs": 0, "evs": 8, "ev_min_active": 2}],
            "message": "peer:h1 is not denied: too few usable EVs would be left, for h1 with 0 of 8 (ev_min_active 2)",
        }, set()),
        ("again", None, {}, set()), ("peer:h1", {"force": True, "for_s": 3600}, {"changed": 8}, ALL),
        ("brief", None, {"forced": True}, ALL),
        ("again", None, {}, ALL),
    ],
    "the last path, on the floor of a peer, is denied for a time only": [
        ("peer:h1 plane:1", {}, {}, PLANE_1),
        ("peer:h1 plane:0", {"force": True}, {
            "changed": 0, "refused": 4,
            "message": "plane:0 peer:h1 is not denied: no usable EV would be left, for h1 with 0 of 8 (ev_min_active "
            "2): give it an end of 24 h at most (--for)",
        }, PLANE_1),
        ("peer:h1 plane:0", {"force": True, "for_s": 86_401}, {"refused": 4}, PLANE_1),
        ("peer:h1 plane:0", {"force": True, "for_s": 86_400}, {"changed": 4}, ALL),
        ("peer:h1 plane:0", {"force": True, "for_s": math.inf}, {"refused": 4}, ALL),
        ("peer:h1 plane:0", {"force": True, "reason": "fan"}, {"changed": 0, "refused": 0}, ALL),
        ("later", 86_401, {}, PLANE_1),
    ],
    "what a denial with an end covers is not denied for ever by others, on a floor": [
        ("peer:h1", {"force": True, "for_s": 3600}, {"changed": 8}, ALL),
        ("peer:h1 plane:0", {}, {"changed": 0, "refused": 0}, ALL),
        ("peer:h1 plane:1", {}, {"refused": 4}, ALL), ("peer:h1 plane:1", {"force": True}, {"refused": 4}, ALL),
        ("peer:h1 plane:1", {"for_s": 60}, {"refused": 0}, ALL),
        ("later", 3601, {}, {0, 1, 2, 3}),
    ],
    "a denial is prolonged whatever has failed meanwhile, on a floor": [
        ("peer:h1", {"force": True, "for_s": 60}, {"changed": 8}, ALL),
        ("peer:h1", {"for_s": 7200, "reason": "fan"}, {"changed": 0, "refused": 0}, ALL),
        ("peer:h1", {"for_s": math.inf}, {
            "refused": 8,
            "message": "peer:h1 stays denied as it is: no usable EV would be left, for h1 with 0 of 8 (ev_min_active "
            "2): give it an end of 24 h at most (--for)",
        }, ALL),
        ("later", 3600, {}, ALL), ("later", 3601, {}, set()),
    ],
    "no path uses it yet": [("t1:1:2 peer:h2", {}, {
        "changed": 0, "refused": 0,
        "message": "t1:1:2 peer:h2 is denied: no path of this host uses it now; later ones will be denied",
    }, set())],
    "it ends by itself": [
        ("t1:1:2", FOR_60, {}, {6}), ("t1:1:3", {}, {}, {6, 7}), ("later", 59, {}, {6, 7}), ("later", 2, {}, {7}),
        ("again", None, {}, {7}),
    ],
    "the wall clock does not change an end": [
        ("t1:1:2", FOR_60, {}, {6}), ("wall", 86_400, {}, {6}), ("later", 20, {}, {6}), ("wall", -864_000, {}, {6}),
        ("t1:1:2", {}, {}, {6}), ("brief", None, {"remaining_s": 40}, {6}), ("later", 39, {}, {6}),
        ("later", 2, {}, set()),
    ],
    "a restart keeps it, and its end": [
        ("t1:1:2", {"reason": "fan", "uid": 3, "for_s": 60}, {}, {6}), ("wall", 20, {}, {6}), ("again", None, {}, {6}),
        ("brief", None, {"remaining_s": 40, "reason": "fan", "uid": 3}, {6}), ("later", 41, {}, set()),
    ],
    "it ends while no daemon runs": [("t1:1:2", FOR_60, {}, {6}), ("wall", 61, {}, {6}), ("again", None, {}, set())],
}  # fmt: skip
TOLD = {
    "deny and allow": ["deny", "allow"],
    "below the floor of a peer all is refused": ["deny", "restored", "below_floor"],
    "the last path, on the floor of a peer, is denied for a time only": ["deny", "deny", "deny", "expired"],
    "what a denial with an end covers is not denied for ever by others, on a floor": [
        "deny",
        "deny",
        "deny",
        "expired",
        "expired",
    ],
    "a denial is prolonged whatever has failed meanwhile, on a floor": ["deny", "deny", "expired"],
    "it ends by itself": ["deny", "deny", "expired", "restored"],
    "it ends while no daemon runs": ["deny", "expired"],
}


@pytest.mark.parametrize("name", STORIES)
def test_denials_are_in_force_until_they_end(host: Host, name: str) -> None:
    host.bench.arrays.peers["floor"] = 2 * (name in TOLD and "floor" in name)
    for number, (what, how, expected, denied) in enumerate(STORIES[name]):
        found: Any = {}
        if what == "again":
            host.clock = 7.0  # the machine was started anew, with new tables
            host.bench.arrays.evs["state"][:] = EvState.GOOD
            host.again()
        elif what == "wall":
            host.wall += how
        elif what == "later":
            host.later(how)
        elif what == "brief":
            (found,) = host.control.brief()
        else:
            found = host.allow(how) if what == "allow" else host.deny(what, **how)
        assert {k: found.get(k) for k in expected} == expected, f"step {number}"
        assert host.denied() == denied, f"step {number}"
    assert host.told() == TOLD.get(name, host.told())


def test_allowed_evs_are_probed_before_they_are_used(host: Host) -> None:
    answer = host.deny("t1:1:2", reason="fan tray")
    assert {(p["peer"], p["ev"], p["t1"]) for p in answer["paths"]} == {("h1", 6, 2), ("h3", 6, 2)}
    assert (host.denied(1), host.denied(2), host.denied(3)) == ({6}, set(), {6})
    told = [e["evidence"] for e in host.bench.said() if e["to"] == "DENIED"]
    assert told == [{"target": "t1:1:2", "denial_reason": "fan tray"}] * 2
    host.allow()
    assert host.bench.arrays.evs["state"][1, 6] == EvState.UNKNOWN


def test_what_cannot_be_denied_or_allowed_is_a_usage_error(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no peer 'h9'"):
        host.allow("peer:h9")
    monkeypatch.setattr(host.control.table, "MOST", 2)
    for text in ("t1:0:0", "t1:0:1", "t1:0:1"):
        host.deny(text)
    with pytest.raises(UsageError, match="2 denials"):
        host.deny("t1:0:2")


def test_the_task_ends_a_denial(host: Host) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(host.control.run())
        await asyncio.sleep(0)  # it waits, without an end
        await host.control.deny(targets.parse(["t1:1:2"]), for_s=60)
        await asyncio.sleep(59)  # simulated
        assert host.denied() == {6}
        host.clock += 60
        await asyncio.sleep(2)
        task.cancel()

    host.run(scenario())


def test_new_paths_are_denied_too(host: Host) -> None:
    host.deny("t1:1:2")
    moved = TEXT.replace("id = 2\nt0 = 0\nport = 1", "id = 2\nt0 = 1\nport = 9")  # under the other T0
    plan = topology.plan(cluster_file.parse(moved), "h0")
    write_tables.write_peers(host.tables, plan, lambda row: None)
    dataplane = cast(Dataplane, host.bench.programs)
    monitor = Monitor(plan, host.tables, dataplane, host.bench.log, host.bench.changed.append)
    assert host.denied(2) == set()
    host.run(host.control.use_paths(plan, host.tables, monitor))
    assert host.denied(2) == {6}


def test_a_denial_that_becomes_that_of_a_peers_last_path_gets_an_end(host: Host) -> None:
    host.deny("t1:1:2")
    host.deny("t1:1:1")
    host.bench.arrays.evs["configured"][1] = [ev == 6 for ev in range(8)]
    host.again()
    ends = {d["target"]: d["remaining_s"] for d in host.control.brief()}
    assert ends == {"t1:1:2": LAST_PATHS_S, "t1:1:1": None}
    host.later(LAST_PATHS_S - 1)
    host.again()
    assert (host.denied(1), host.denied(3)) == ({6}, {5, 6})
    host.later(1)
    assert (host.denied(1), host.denied(3)) == (set(), {5})


def test_a_reload_that_is_taken_back_gives_its_denials_their_own_ends_again(host: Host) -> None:
    host.deny("t1:1:2")
    all_paths = host.bench.arrays.evs["configured"][1].copy()
    for configured, expected in (([ev == 6 for ev in range(8)], LAST_PATHS_S), (all_paths, None)):
        host.bench.arrays.evs["configured"][1] = configured
        host.reload()
        assert [d["remaining_s"] for d in host.control.brief()] == [expected]
        host.again()
        assert [d["remaining_s"] for d in host.control.brief()] == [expected]
    assert [r for r in host.told() if "last" in r] == ["last_path", "not_last_path"]


def test_a_denial_of_a_last_path_has_its_own_end_again_when_another_one_has_ended(host: Host) -> None:
    host.deny("t1:1:2")
    host.deny("t1:1:1")
    host.bench.arrays.evs["configured"][1] = [ev in (5, 6) for ev in range(8)]
    host.reload()
    host.deny("t1:1:2", reason="another reason")
    assert {d["target"]: d["remaining_s"] for d in host.control.brief()} == dict.fromkeys(
        ("t1:1:1", "t1:1:2"), LAST_PATHS_S
    )
    host.allow("t1:1:1")
    assert {d["target"]: d["remaining_s"] for d in host.control.brief()} == {"t1:1:2": None}


def test_a_fleet_wide_denial_of_a_last_path_ends_in_time_although_the_daemon_restarts(host: Host) -> None:
    target = targets.parse(["t1:1:2"])
    wanted = {target: Denial(target, host.wall)}
    host.run(host.control.use_fleet_wide(wanted))
    host.bench.arrays.evs["configured"][1] = [ev == 6 for ev in range(8)]
    for left_s in (LAST_PATHS_S, 3600):
        host.again()
        host.run(host.control.use_fleet_wide(wanted))
        assert [d["remaining_s"] for d in host.control.brief()] == [left_s]
        host.later(LAST_PATHS_S - 3600)
    host.later(7200 - LAST_PATHS_S)
    assert host.denied(1) == set()
    assert list(host.run(host.control.use_fleet_wide(wanted))) == [wanted[target]]


def test_a_denial_that_ends_soon_gives_no_end_to_others(host: Host) -> None:
    host.deny("t1:1:2")
    host.deny("peer:h1", force=True, for_s=1800)
    host.again()
    assert {d["target"]: d["remaining_s"] for d in host.control.brief()} == {"t1:1:2": None, "peer:h1": 1800}


def test_an_unreadable_file_is_renamed_and_allows_nothing(host: Host) -> None:
    host.deny("plane:1")
    host.deny("ev:h1:2")
    host.path.write_bytes(b"\0" * 100)
    for _ in range(2):
        host.again()
        assert host.denied(1) == {2, 4, 5, 6, 7}
        assert set(host.targets) == {"plane:1", "peer:h1 ev:2"}
    assert {d["reason"] for d in host.control.brief()} == {"found denied at the start, without a record"}
    assert {d["remaining_s"] for d in host.control.brief()} == {UNRECORDED_S}
    assert "file_unreadable" in host.told()
    (kept,) = host.path.parent.glob("*.unreadable-*")
    assert kept.read_bytes() == b"\0" * 100
    host.allow()
    host.again()
    assert host.denied(1) == set()


def test_a_denial_that_cannot_be_written_is_in_force_with_a_warning(host: Host, tmp_path: Path) -> None:
    """There is a file where the directory should be: the kernel refuses that to root too."""
    host.path = host.control.table.paths[False] = tmp_path / "state" / state_dir.DENIALS
    (tmp_path / "state").touch()
    answer = host.deny("t1:1:2")
    assert (answer["changed"], answer["saved"], host.denied()) == (2, False, {6})
    assert "a restart would lose the denials" in answer["warning"]
    assert "(EEXIST)" in answer["warning"]
    host.later(10)
    assert not host.control.document()["saved"]
    (tmp_path / "state").unlink()
    host.later(10)
    assert host.control.document()["saved"]
    assert len(json.loads(host.path.read_text())["denials"]) == 1
    assert host.allow()["warning"] is None


# ---- what is in flight ----


def test_nothing_is_empty_while_a_reload_selects_the_evs(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[Document]:
        selected = asyncio.Event()

        async def wait(*_: Any) -> list[tuple[int, int]]:
            await selected.wait()
            return []

        monkeypatch.setattr("mrcd.denials.deny_and_allow.asyncio.to_thread", wait)
        reload = asyncio.create_task(host.control.use_paths(host.bench.plan, host.tables, host.bench.monitor))
        await asyncio.sleep(0)
        found = host.control.document()["denials"]
        selected.set()
        await reload
        return [*found, *host.control.document()["denials"]]

    host.deny("t1:1:2 peer:h2")
    during, after = host.run(run())
    assert (during["empty"], during["lost_packets"]) == (False, None)
    assert (after["empty"], after["lost_packets"]) == (True, 0)


def test_in_flight() -> None:
    evs, path_stats = np.zeros(6, abi.EV), np.zeros(6, abi.PATH_STATS)
    path_stats["generation"] = [1, 1, 1, 0, 0, 1]
    evs["tx_packets"] = [100, 100, (5 << 32) + 3, 0, 9, 50]
    path_stats["offset"] = [10, 10, 0xFFFFFFF0, 0, 0, 0]
    path_stats["rx"] = [90, 80, 10, 0, 0, 52]  # the last: read a moment later than what was sent
    path_stats["deficit"] = [0, 4, 1, 0, 0, 0]
    flight, known = in_flight(evs, path_stats)
    assert flight.tolist() == [0, 6, 8, 0, 9, 0]
    assert known.tolist() == [True, True, True, True, False, True]


def test_an_ev_is_empty_when_all_its_packets_are_accounted_for(host: Host) -> None:
    arrays = host.bench.arrays
    arrays.path_stats["generation"], arrays.evs["tx_packets"], arrays.path_stats["rx"] = 1, 50, 50
    arrays.path_stats["judged"] = 100
    arrays.path_stats["deficit"][1, 6], arrays.path_stats["rx"][1, 6] = 2, 48  # lost long ago
    host.deny("t1:1:2", drain=True)
    arrays.evs["tx_packets"][1, 6] += 7

    def now() -> tuple[bool, int, int | None]:
        (d,) = host.control.document()["denials"]
        return d["empty"], d["in_flight_packets"], d["lost_packets"]

    assert now() == (False, 7, 0)
    arrays.path_stats["rx"][1, 6] += 4
    assert now() == (False, 3, 0)
    arrays.path_stats["deficit"][1, 6] += 3
    assert now() == (True, 0, 3)


# ---- fleet-wide denials ----


def target(text: str) -> Target:
    return targets.parse(text.split())


def follow(host: Host, *texts: str, **more: Any) -> Mapping[Target, str]:
    """Has these fleet-wide denials in force, and returns the refused ones."""
    given: dict[str, Any] = {"since": host.wall, "host": "h9"} | more
    wanted = {target(t): Denial(target(t), **given) for t in texts}
    found: dict[Denial, str] = host.run(host.control.use_fleet_wide(wanted))
    return {d.target: why for d, why in found.items()}


def traffic(host: Host) -> dict[str, Any]:
    """Returns what the host reports about the first denial."""
    found: list[dict[str, Any]] = host.run(host.control.fleet_traffic())
    return found[0]


def of_whom(host: Host) -> list[tuple[str, str | None]]:
    """Returns the targets of all denials in force, with the hosts on which fleet-wide ones were asked for."""
    return [(d["target"], d["host"]) for d in host.control.document()["denials"]]


def test_exactly_the_fleet_wide_denials_are_in_force(host: Host) -> None:
    assert not follow(host, "t1:1:2", reason="fan", uid=7)
    assert not follow(host, "t1:1:2", reason="fan", uid=7)  # is told once
    assert host.denied() == {6}
    (said,) = host.control.document()["denials"]
    assert (said["target"], said["reason"], said["uid"], said["host"]) == ("t1:1:2", "fan", 7, "h9")
    assert not follow(host, "t1:1:1")
    assert (host.denied(), host.targets) == ({5}, ["t1:1:1"])
    assert not follow(host)
    assert host.denied() == set()
    assert host.told() == ["deny", "allow", "deny", "allow"]


def test_fleet_wide_denials_survive_a_restart(host: Host) -> None:
    follow(host, "t1:1:2", until=host.wall + 60)
    host.again()
    assert host.denied() == {6}
    assert traffic(host)["target"] == "t1:1:2"
    host.later(61)
    assert (host.denied(), host.told()) == (set(), ["deny", "restored", "expired"])
    follow(host, "t1:1:2", until=host.wall - 1)  # etcd forgets it later than the host
    assert host.denied() == set()


def test_fleet_wide_denials_and_the_host_s_own_end_apart(host: Host) -> None:
    host.deny("t1:1:2")
    follow(host, "t1:1:2")
    assert host.targets == ["t1:1:2", "t1:1:2"]
    answer = host.allow("t1:1:2")
    assert (answer["ended"], answer["denied_by"], host.denied()) == (["t1:1:2"], ["t1:1:2"], {6})
    assert "`mrcctl fleet allow t1:1:2`" in answer["message"]
    answer = host.allow()
    assert host.denied() == {6}
    host.deny("t1:1:2")
    follow(host)
    assert host.denied() == {6}
    assert host.control.document()["denials"][0]["lost_packets"] == 0
    host.allow()
    assert host.denied() == set()


def test_a_host_refuses_what_it_would_refuse_its_own_administrator(host: Host) -> None:
    evs = host.bench.arrays.evs
    evs["state"][evs["configured"] != 0] = EvState.GOOD
    assert "too few usable EVs would be left, for h1" in follow(host, "plane:0", "plane:1")[target("plane:1")]
    assert host.targets == ["plane:0"]
    assert "no plane 9" in follow(host, "plane:0", "plane:9")[target("plane:9")]
    (why,) = follow(host, "plane:0", "plane:1", forced=True).values()
    assert why.startswith("no usable EV would be left, for h1")
    assert host.run(host.control.refusal(Denial(target("plane:1"), host.wall, host.wall + 3600, forced=True))) is None
    assert not follow(host, "plane:0", "plane:1", forced=True, until=host.wall + 3600)
    assert host.denied() == set(range(8))


@pytest.mark.parametrize("ahead_s", [-7200.0, 0.0, 7200.0])
def test_a_fleet_wide_denial_ends_by_the_clock_of_etcd(host: Host, ahead_s: float) -> None:
    """A host whose clock is two hours fast ended such a denial at once."""
    host.control.table.ahead_s = ahead_s
    now = host.wall + ahead_s
    assert not follow(host, "t1:1:2", since=now - 60, until=now + 3600)
    assert (host.denied(), host.control.brief()[0]["remaining_s"]) == ({6}, 3600)
    host.later(3601)
    assert host.denied() == set()


def test_the_paths_to_this_host_are_those_of_others(host: Host) -> None:
    assert not follow(host, "peer:h0")
    assert (host.denied(), traffic(host)["empty"]) == (set(), True)


def test_a_refused_denial_comes_into_force_when_it_can(host: Host) -> None:
    evs = host.bench.arrays.evs
    evs["state"][evs["configured"] != 0] = EvState.GOOD
    host.deny("plane:0")
    assert follow(host, "plane:1")
    host.allow()
    evs["state"][evs["configured"] != 0] = EvState.GOOD
    assert not follow(host, "plane:1")
    assert host.denied() == {4, 5, 6, 7}
    assert np.count_nonzero(evs["state"] == EvState.DENIED) == 9


# ---- tables that refuse, and daemons that die ----


@pytest.fixture
def refusing(host: Host, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Has the tables refuse every change of a peer's EVs but h1's, or take them again."""
    set_state = host.bench.programs.set_state

    def refuse(row: int, *rest: Any) -> bool:
        if row != 1:
            raise MachineError("run a program: Cannot allocate memory (ENOMEM)")
        return set_state(row, *rest)

    return lambda on: monkeypatch.setattr(host.bench.programs, "set_state", refuse if on else set_state)


@pytest.mark.parametrize("is_fleet_wide", [False, True])
def test_what_the_tables_refuse_is_pending_and_tried_again(
    host: Host, refusing: Callable[[bool], None], is_fleet_wide: bool
) -> None:
    words = "ENOMEM" if is_fleet_wide else r"kept, but not applied to the tables: .*ENOMEM.* each second"

    def ask(text: str) -> Any:
        if is_fleet_wide:
            return follow(host, *text.split())
        return host.deny(text) if text else host.allow()

    for change, before, after in (("t1:1:2", set(), {6}), ("", {6}, set[int]())):
        refusing(True)
        with pytest.raises(MachineError, match=words):
            ask(change)
        assert host.control.document()["pending"]
        assert (host.denied(1), host.denied(3)) == (after, before)
        refusing(False)
        host.later(1)
        assert (host.denied(3), host.control.is_pending) == (after, False)


@pytest.mark.parametrize("end", [follow, lambda host: host.later(61)], ids=["ended", "expired"])
def test_a_daemon_that_dies_within_a_change_leaves_a_record_of_it(
    host: Host, refusing: Callable[[bool], None], end: Callable[[Host], Any]
) -> None:
    refusing(True)
    with pytest.raises(MachineError):
        follow(host, "t1:1:2", until=host.wall + 60)
    refusing(False)
    host.again()
    assert (host.denied(), of_whom(host)) == ({6}, [("t1:1:2", "h9")])
    refusing(True)
    with pytest.raises(MachineError):
        end(host)
    refusing(False)
    host.again()
    follow(host)
    assert (host.denied(), of_whom(host)) == (set(), [])


def test_an_own_denial_whose_end_the_tables_refuse_is_on_record(host: Host, refusing: Callable[[bool], None]) -> None:
    host.deny("t1:1:2", reason="fan")
    refusing(True)
    with pytest.raises(MachineError):
        host.allow("t1:1:2")
    refusing(False)
    host.again()
    assert [d["reason"] for d in host.control.document()["denials"]] == ["fan"]


# ---- the API, over a unix socket ----


def api_of(host: Host) -> web.Application:
    daemon: Any = SimpleNamespace(denials=host.control)
    return Api(daemon, cast(Reloader, None), cast(FleetMember, None)).application()


def test_requests_to_drain_and_allow(host: Host, tmp_path: Path) -> None:
    body = {"target": ["t1:1:2"], "peer": "h3", "for": "30m", "reason": "fan", "drain": True}
    deny, denials, allow, none = asked(
        api_of(host),
        tmp_path,
        lambda c: c.post("/v1/deny", body),
        lambda c: c.get("/v1/denials"),
        lambda c: c.post("/v1/allow", {"plane": 1}),
        lambda c: c.post("/v1/allow", {"all": True}),
    )
    assert (deny["target"], deny["changed"], deny["schema_version"]) == ("t1:1:2 peer:h3", 1, SCHEMA_VERSION)
    (denial,) = denials["denials"]
    assert (denial["uid"], denial["reason"], denial["action"]) == (os.getuid(), "fan", "drain")
    assert denial["remaining_s"] == 1800
    assert (allow["ended"], allow["changed"]) == (["t1:1:2 peer:h3"], 1)
    assert none["message"] == "nothing is denied"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "not a JSON object"),
        ({}, "the target is missing"),
        ({"target": "t1:1:2"}, "must be a list of strings"),
        ({"target": [1]}, "must be a list of strings"),
        ({"target": ["t1"]}, "is not a target"),
        ({"peer": 1}, "peer must be text"),
        ({"plane": "1"}, "plane must be a number"),
        ({"plane": True}, "plane must be a number"),
        ({"plane": -1}, "is not a target"),
        ({"plane": 1, "for": 30}, "for must be text"),
        ({"plane": 1, "for": "9" * 5000 + "d"}, "is not a duration"),
        ({"plane": 1, "reason": "x\n"}, "one line"),
        ({"plane": 1, "force": "no"}, "true or false"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_invalid_requests_of_a_denial_are_refused(host: Host, tmp_path: Path, body: Any, message: str) -> None:
    (answer,) = asked(api_of(host), tmp_path, lambda c: c.post("/v1/deny", body))
    assert isinstance(answer, UsageError)
    assert message in str(answer)
    assert (host.denied(), host.targets) == (set(), [])
