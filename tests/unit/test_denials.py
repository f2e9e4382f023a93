# SPDX-License-Identifier: BSD-2-Clause
"""Tests denials of a host, of its fleet and by the API, over emulated tables and programs, with clocks of the test."""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from aiohttp import web

from mrcd import state_dir
from mrcd.api.denials import DenialsApi
from mrcd.api.server import errors
from mrcd.config import cluster_file
from mrcd.ctl.client import Client, Json
from mrcd.daemon import write_tables
from mrcd.denials import record, targets
from mrcd.denials.deny_and_allow import DenialControl
from mrcd.denials.enforcement import Document
from mrcd.denials.record import Denial
from mrcd.denials.targets import Target
from mrcd.errors import MachineError, UsageError
from mrcd.fabric import topology
from mrcd.health.monitor import Monitor
from mrcd.kernel import abi, pinned
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.enums import EvState
from mrcd.versions import SCHEMA_VERSION
from mrcd.view.paths import in_flight
from tests.unit import simulated_time
from tests.unit.arrays import TEXT
from tests.unit.emulated_programs import Bench

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
        self.run(self.control.use_paths(self.bench.plan, self.tables, self.bench.monitor))

    @property
    def tables(self) -> pinned.Tables:
        return cast(pinned.Tables, self.bench.arrays)

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


# ---- deny and allow ----


def test_deny_and_allow(host: Host) -> None:
    answer = host.deny("t1:1:2", reason="fan tray", uid=1000)
    assert (answer["changed"], answer["refused"], answer["target"], answer["saved"]) == (2, 0, "t1:1:2", True)
    assert answer["message"] == "t1:1:2 is denied: 2 EVs to 2 peers"
    assert {(p["peer"], p["ev"], p["t1"]) for p in answer["paths"]} == {("h1", 6, 2), ("h3", 6, 2)}
    assert (host.denied(1), host.denied(2), host.denied(3)) == ({6}, set(), {6})
    (said,) = host.control.brief()
    assert (said["reason"], said["uid"], said["remaining_s"], said["action"]) == ("fan tray", 1000, None, "deny")
    told = [e for e in host.bench.said() if e["to"] == "DENIED"]
    assert [e["evidence"] for e in told] == [{"target": "t1:1:2", "denial_reason": "fan tray"}] * 2
    answer = host.allow("t1:1:2")
    assert (answer["changed"], answer["ended"], answer["refused"]) == (2, ["t1:1:2"], 0)
    assert host.bench.arrays.evs["state"][1, 6] == EvState.UNKNOWN  # probed before it is used
    assert host.told() == ["deny", "allow"]
    assert record.read(host.path) == []


def test_deny_again_changes_nothing_but_what_is_new(host: Host) -> None:
    host.deny("plane:1", reason="fan", for_s=1800)
    host.later(120)
    answer = host.deny("plane:1")
    assert (answer["changed"], answer["refused"]) == (0, 0)
    assert answer["message"].startswith("plane:1 stays denied for another 28 min: 9 EVs")
    (said,) = host.control.brief()
    assert (said["remaining_s"], said["reason"]) == (1680, "fan")
    host.deny("plane:1", for_s=120, drain=True, reason="optics")
    (said,) = host.control.brief()
    assert (said["remaining_s"], said["reason"], said["action"]) == (120, "optics", "drain")
    answer = host.deny("plane:1", for_s=targets.duration_s("always"))
    assert answer["message"].startswith("plane:1 stays denied without an end: 9 EVs")
    assert host.control.brief()[0]["until"] is None
    host.later(1e6)
    assert host.targets == ["plane:1"]


def test_allow_of_what_is_not_denied_explains(host: Host) -> None:
    answer = host.allow("t1:1:2")
    assert (answer["changed"], answer["refused"]) == (0, 0)
    assert answer["message"] == "t1:1:2 is not denied: nothing to allow"
    assert host.allow()["message"] == "nothing is denied"
    with pytest.raises(UsageError, match="no peer 'h9'"):
        host.allow("peer:h9")
    host.deny("plane:1")
    answer = host.allow("ev:h1:5")
    assert (answer["changed"], answer["refused"], answer["denied_by"]) == (0, 1, ["plane:1"])
    assert "other denials still cover 1 EV of peer:h1 ev:5: `mrcctl allow plane:1`" in answer["message"]
    assert host.denied() == {4, 5, 6, 7}


def test_allow_ends_the_denials_within_its_target(host: Host) -> None:
    host.deny("t1:1:2")
    host.deny("ev:h1:5")
    host.deny("t1:0:0")
    assert set(host.allow("plane:1")["ended"]) == {"t1:1:2", "peer:h1 ev:5"}
    assert host.denied() == {0}
    host.deny("t1:0:1")
    assert len(host.allow()["ended"]) == 2
    assert host.denied() == set()


def test_an_ev_under_two_denials_waits_for_both(host: Host) -> None:
    host.deny("t1:1:2")
    host.deny("ev:h1:6")
    answer = host.allow("t1:1:2")
    assert (answer["changed"], answer["denied_by"]) == (1, ["peer:h1 ev:6"])
    assert (host.denied(1), host.denied(3)) == ({6}, set())
    host.allow("ev:h1:6")
    assert host.denied(1) == set()


def test_a_denial_below_the_floor_of_a_peer_is_refused_whole(host: Host) -> None:
    host.bench.arrays.peers["floor"] = 2
    answer = host.deny("peer:h1")
    assert (answer["changed"], answer["refused"]) == (0, 8)
    assert answer["peers_below"] == [{"peer": "h1", "left_evs": 0, "evs": 8, "ev_min_active": 2}]
    assert "h1 with 0 of 8 (ev_min_active 2)" in answer["message"]
    assert (host.denied(), host.targets, host.told()) == (set(), [], [])
    assert record.read(host.path) in (None, [])
    answer = host.deny("peer:h1", force=True)
    assert (answer["changed"], host.denied()) == (8, ALL)
    assert host.control.brief()[0]["forced"]


def test_a_switch_without_paths_can_be_denied(host: Host) -> None:
    answer = host.deny("t1:1:2 peer:h2")
    assert (answer["changed"], answer["refused"]) == (0, 0)
    assert "no path of this host uses it now" in answer["message"]
    assert host.control.document()["denials"][0]["empty"]
    host.allow("t1:1:2 peer:h2")


def test_the_number_of_denials_is_limited(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.control.table, "MOST", 2)
    host.deny("t1:0:0")
    host.deny("t1:0:1")
    host.deny("t1:0:1", reason="the same")
    with pytest.raises(UsageError, match="2 denials"):
        host.deny("t1:0:2")


def test_a_denial_that_the_kernel_refuses_is_reported_and_tried_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, set_state = host.bench.programs, host.bench.programs.set_state

    def refuse(row: int, *rest: Any) -> bool:
        if row == 3:
            raise MachineError("run a program: Cannot allocate memory (ENOMEM)")
        return set_state(row, *rest)

    monkeypatch.setattr(programs, "set_state", refuse)
    with pytest.raises(MachineError, match=r"t1:1:2: kept, but not applied to the tables: .*ENOMEM.* each second"):
        host.deny("t1:1:2")
    assert host.control.document()["pending"]
    assert (host.denied(1), host.denied(3), host.targets) == ({6}, set(), ["t1:1:2"])
    monkeypatch.setattr(programs, "set_state", set_state)
    host.later(1)
    assert (host.denied(1), host.denied(3)) == ({6}, {6})
    assert not host.control.document()["pending"]


# ---- time ----


def test_a_denial_ends_by_itself(host: Host) -> None:
    host.deny("t1:1:2", for_s=60)
    host.deny("t1:1:3")
    host.later(59)
    assert host.denied() == {6, 7}
    host.later(2)
    assert host.denied() == {7}
    assert host.told() == ["deny", "deny", "expired"]
    assert [str(d.target) for d in record.read(host.path) or []] == ["t1:1:3"]


def test_a_changed_wall_clock_does_not_change_the_end_of_a_denial(host: Host) -> None:
    host.deny("t1:1:2", for_s=60)
    host.wall += 86_400
    host.later(20)
    host.wall -= 10 * 86_400
    host.deny("t1:1:2")
    assert host.control.brief()[0]["remaining_s"] == 40
    host.later(39)
    assert host.denied() == {6}
    host.later(2)
    assert host.denied() == set()


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


# ---- restarts ----


def test_a_restart_keeps_a_denial(host: Host) -> None:
    host.deny("t1:1:2", for_s=60, reason="fan", uid=3)
    host.wall, host.clock = host.wall + 20, 7.0  # the host was started anew
    host.bench.arrays.evs["state"][:] = EvState.GOOD  # with new tables
    host.again()
    assert (host.denied(1), host.denied(3)) == ({6}, {6})
    (said,) = host.control.brief()
    assert (said["remaining_s"], said["reason"], said["uid"]) == (40, "fan", 3)
    host.later(41)
    assert host.denied() == set()


def test_denials_that_ended_while_the_daemon_was_down_are_lifted_at_the_start(host: Host) -> None:
    host.deny("t1:1:2", for_s=60)
    host.wall += 61
    host.again()
    assert (host.denied(), host.targets) == (set(), [])
    assert host.told()[-1] == "expired"


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


def test_a_start_below_the_floor_warns_and_keeps_the_denial(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    host.deny("peer:h1", force=True)
    host.again()
    assert host.denied() == ALL
    assert "denials leave h1 0 of 8 EVs, less than ev_min_active" in caplog.text
    assert host.told()[-1] == "below_floor"


def test_an_unreadable_file_is_renamed_and_allows_nothing(host: Host) -> None:
    host.deny("plane:1")
    host.deny("ev:h1:2")
    host.path.write_bytes(b"\0" * 100)
    host.again()
    assert host.denied(1) == {2, 4, 5, 6, 7}
    assert set(host.targets) == {"plane:1", "peer:h1 ev:2"}
    assert {d["reason"] for d in host.control.brief()} == {"found denied at the start, without a record"}
    assert "file_unreadable" in host.told()
    (kept,) = host.path.parent.glob("*.unreadable-*")
    assert kept.read_bytes() == b"\0" * 100
    host.allow()
    host.again()
    assert host.denied(1) == set()


def test_an_ev_denied_before_the_first_file_stays_denied(host: Host) -> None:
    host.bench.arrays.evs["state"][1, 3] = EvState.DENIED
    host.again()
    assert host.targets == ["peer:h1 ev:3"]
    host.again()
    assert host.targets == ["peer:h1 ev:3"]


# ---- a disk that is full ----


@pytest.fixture
def full(host: Host, tmp_path: Path) -> Callable[[bool], None]:
    """There is a file where the directory should be: the kernel refuses that to root too."""
    host.path = host.control.table.paths[False] = tmp_path / "state" / state_dir.DENIALS

    def fill(yes: bool) -> None:
        if yes:
            (tmp_path / "state").touch()
        else:
            (tmp_path / "state").unlink()

    return fill


def test_a_denial_that_cannot_be_written_is_in_force_with_a_warning(host: Host, full: Callable[[bool], None]) -> None:
    full(True)
    answer = host.deny("t1:1:2")
    assert (answer["changed"], answer["saved"]) == (2, False)
    assert "a restart would lose the denials" in answer["warning"]
    assert "(EEXIST)" in answer["warning"]
    assert host.denied() == {6}
    assert not host.control.document()["saved"]
    host.later(10)
    assert not host.control.document()["saved"]
    full(False)
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

        monkeypatch.setattr("mrcd.denials.enforcement.asyncio.to_thread", wait)
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
    wanted = {target(t): Denial(target(t), host.wall, **({"host": "h9"} | more)) for t in texts}
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
    assert host.run(host.control.refusal(Denial(target("plane:1"), 0, forced=True))) is None
    assert not follow(host, "plane:0", "plane:1", forced=True)
    assert host.denied() == set(range(8))


def test_the_paths_to_this_host_are_those_of_others(host: Host) -> None:
    assert not follow(host, "peer:h0")
    assert (host.denied(), traffic(host)["empty"]) == (set(), True)


def test_the_traffic_of_fleet_wide_denials_is_reported(host: Host) -> None:
    follow(host, "t1:1:2")
    assert traffic(host)["evs"] == 2
    assert set(traffic(host)) == {
        *("target", "since", "evs", "in_flight_packets", "unreported_evs", "empty", "lost_packets"),
    }


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
    """Has the tables refuse every change, or take it again."""
    set_state = host.bench.programs.set_state

    def refuse(*_: Any) -> bool:
        raise MachineError("run a program: Cannot allocate memory (ENOMEM)")

    return lambda on: monkeypatch.setattr(host.bench.programs, "set_state", refuse if on else set_state)


def test_a_denial_that_the_tables_refuse_is_pending_until_it_is_there(
    host: Host, refusing: Callable[[bool], None]
) -> None:
    refusing(True)
    with pytest.raises(MachineError):
        follow(host, "t1:1:2")
    assert host.control.is_pending
    refusing(False)
    follow(host, "t1:1:2")
    assert (host.denied(), traffic(host)["empty"], host.control.is_pending) == ({6}, True, False)
    refusing(True)
    with pytest.raises(MachineError):
        follow(host)
    assert host.control.is_pending
    refusing(False)
    host.later(1)
    assert (host.denied(), host.control.is_pending, host.run(host.control.fleet_traffic())) == (set(), False, [])


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


def asked(host: Host, directory: Path, *requests: Callable[[Client], Json]) -> list[Json]:
    """Returns the answers to the requests, one after the other; errors too."""

    def ask(request: Callable[[Client], Json]) -> Json:
        try:
            return request(Client(directory, 5))
        except UsageError as e:
            return e

    async def scenario() -> list[Json]:
        app = web.Application(middlewares=[errors])
        app.add_routes(DenialsApi(host.control).routes())
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(directory / "mrcd.sock")).start()
        try:
            return [await asyncio.to_thread(ask, r) for r in requests]
        finally:
            await runner.cleanup()

    found: list[Json] = asyncio.run(scenario())
    return found


def test_requests_to_drain_and_allow(host: Host, tmp_path: Path) -> None:
    body = {"target": ["t1:1:2"], "peer": "h3", "for": "30m", "reason": "fan", "drain": True}
    deny, denials, allow, none = asked(
        host,
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
    (answer,) = asked(host, tmp_path, lambda c: c.post("/v1/deny", body))
    assert isinstance(answer, UsageError)
    assert message in str(answer)
    assert (host.denied(), host.targets) == (set(), [])
