# SPDX-License-Identifier: BSD-2-Clause
"""Tests fleet-wide denials beside those of one host, over emulated tables and programs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mrcd import state_dir
from mrcd.denials import targets
from mrcd.denials.record import Denial
from mrcd.denials.targets import Target
from mrcd.errors import MachineError
from mrcd.kernel.enums import EvState
from tests.unit.test_denial_control import Host


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / state_dir.DENIALS)


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


def test_exactly_what_is_wanted_is_in_force(host: Host) -> None:
    assert not follow(host, "t1:1:2", reason="fan", uid=7)
    assert host.denied() == {6}
    (said,) = host.control.document()["denials"]
    assert (said["target"], said["reason"], said["uid"], said["host"]) == ("t1:1:2", "fan", 7, "h9")
    assert not follow(host, "t1:1:1")
    assert (host.denied(), host.targets) == ({5}, ["t1:1:1"])
    assert not follow(host)
    assert host.denied() == set()
    assert host.told() == ["deny", "allow", "deny", "allow"]


def test_a_denial_that_stays_is_not_told_again(host: Host) -> None:
    follow(host, "t1:1:2")
    follow(host, "t1:1:2")
    assert host.told() == ["deny"]


def test_they_survive_a_restart(host: Host) -> None:
    follow(host, "t1:1:2", until=host.wall + 60)
    host.again()
    assert host.denied() == {6}
    assert traffic(host)["target"] == "t1:1:2"
    host.later(61)
    assert (host.denied(), host.told()) == (set(), ["deny", "restored", "expired"])
    follow(host, "t1:1:2", until=host.wall - 1)  # etcd forgets it later than the host
    assert host.denied() == set()


def test_they_and_the_host_s_own_end_apart(host: Host) -> None:
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


def test_what_is_in_flight_is_reported(host: Host) -> None:
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
