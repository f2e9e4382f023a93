# SPDX-License-Identifier: BSD-2-Clause
"""Tests a denial by itself: its target's EVs, the floor, its time, and the file, which is never half written."""

import errno
import json
import math
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from mrcd import state_dir
from mrcd.config import cluster_file
from mrcd.denials import record, targets
from mrcd.denials.record import Denial
from mrcd.denials.targets import Standing, Target
from mrcd.errors import KernelError, UsageError
from mrcd.fabric import topology
from tests.unit.arrays import TEXT

PLAN = topology.plan(cluster_file.parse(TEXT), "h0")  # h2 is under the same T0, h1 and h3 are under T0 1
ALL = list(range(8))


def target(text: str) -> Target:
    return targets.parse(text.split())


def evs(text: str, plan: topology.Plan = PLAN) -> dict[str, list[int]]:
    found = targets.selected(plan, target(text))
    return {p.host.name: found[p.host.id] for p in plan.peers if p.host.id in found}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plane:1", {"h1": [4, 5, 6, 7], "h2": [4], "h3": [4, 5, 6, 7]}),
        ("peer:h1", {"h1": ALL}),
        ("ev:4", {"h1": [4], "h2": [4], "h3": [4]}),
        ("ev:h3:6", {"h3": [6]}),
        ("peer:h3 plane:0", {"h3": [0, 1, 2, 3]}),
        ("t1:1:2", {"h1": [6], "h3": [6]}),
        ("t1:1:2 peer:h3", {"h3": [6]}),
        ("link:0:0:3", {"h1": [3], "h3": [3]}),  # from this host's T0 up
        ("link:0:1:3", {"h1": [3], "h3": [3]}),  # and down to theirs
        ("t0:1:1", {"h1": [4, 5, 6, 7], "h3": [4, 5, 6, 7]}),
        ("t0:1:0", {"h1": [4, 5, 6, 7], "h2": [4], "h3": [4, 5, 6, 7]}),  # this host's own
        ("nic:h2:1", {"h2": [4]}),
        ("nic:h0:0", {"h1": [0, 1, 2, 3], "h2": [0], "h3": [0, 1, 2, 3]}),
        ("t1:1:2 peer:h2", {}),
    ],
)
def test_a_target_selects_its_evs(text: str, expected: dict[str, list[int]]) -> None:
    assert evs(text) == expected
    again = target(str(target(text)))
    assert again == target(text)
    targets.check(PLAN, again)


def test_a_t1_that_rails_share_is_one_target() -> None:
    """Planes 0 and 2 are the first ports of two NICs: their T1s are the same switches, but not their T0s."""
    shared = topology.plan(
        cluster_file.parse(TEXT.replace("planes = 2", "planes = 4\nrails = 2").replace("= 8", "= 16")), "h0"
    )
    assert evs("t1:0:2", shared) == evs("t1:2:2", shared) == {"h1": [2, 10], "h3": [2, 10]}
    assert evs("link:0:0:2", shared) == {"h1": [2], "h3": [2]}
    assert targets.covers(shared, target("t1:0:2"), target("t1:2:2"))
    assert targets.covers(shared, target("t1:2:2"), target("link:0:0:2"))
    assert not targets.covers(shared, target("plane:0"), target("t1:0:2"))
    assert targets.covers(shared, target("plane:0"), target("link:0:0:2"))
    targets.check(shared, target("t1:0:2 plane:2"))
    with pytest.raises(UsageError, match="not in plane 1"):
        targets.check(shared, target("t1:0:2 plane:1"))
    assert evs("t0:2:1", shared) == {"h1": [8, 9, 10, 11], "h3": [8, 9, 10, 11]}


def test_listed_paths_go_by_the_switches_that_their_segments_name() -> None:
    listed = [
        (0, ["5f00:0:4000:8002:4001:c000::"]),
        (0, ["5f00:0:8003::", "5f00:0:4001:c000::"]),  # the T1 first: this host's T0 goes without saying
        (1, ["5f00:0:4801:c400::"]),
    ]
    rows = "".join(
        f'[[paths]]\nsource = "h0"\npeer = "h1"\nplane = {p}\nsegments = {json.dumps(s)}\n' for p, s in listed
    )
    plan = topology.plan(cluster_file.parse(TEXT + rows), "h0")
    assert evs("t1:0:2 peer:h1", plan) == {"h1": [0]}
    assert evs("link:0:0:3 peer:h1", plan) == {"h1": [1]}
    assert evs("link:0:1:3 peer:h1", plan) == {"h1": [1]}
    assert evs("t0:1:1 peer:h1", plan) == {"h1": [4]}
    assert evs("t1:1:0 peer:h1", plan) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the target is missing"),
        ("t1:1", "'t1:1' is not a target"),
        ("t2:1:1", "is not a target"),
        ("ev:x", "is not a target"),
        ("peer:", "is not a target"),
        ("plane:-1", "is not a target"),
        ("plane:²", "is not a target"),
        ("t1:0:1 t1:0:2", "no path matches both"),
        ("peer:h1 peer:h2", "no path matches both"),
        ("t1:0:1 plane:1", "no path matches both"),
        ("peer:h9", "no peer 'h9'"),
        ("plane:2", "no plane 2"),
        ("t1:2:0", "no plane 2"),
        ("t1:0:4", "no T1 4"),
        ("link:0:2:1", "no T0 2"),
        ("t0:0:7", "no T0 7"),
        ("nic:h9:0", "no host 'h9'"),
        ("ev:9", "no path matches"),
        ("ev:h2:1", "no path matches"),
    ],
)
def test_invalid_targets_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as e:
        targets.check(PLAN, target(text))
    assert "no path matches both" in message or e.value.hint


def test_with_ecmp_no_ev_belongs_to_a_t1() -> None:
    plan = topology.plan(cluster_file.parse(TEXT.replace("[cluster]", '[cluster]\nencapsulation = "ecmp"')), "h0")
    with pytest.raises(UsageError, match="encapsulation ecmp"):
        targets.check(plan, target("t1:0:1"))
    targets.check(plan, target("t0:0:1"))
    assert evs("t0:0:1", plan) == {"h1": [0, 1, 2, 3], "h3": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("plane:1", "plane:1", True),
        ("plane:1", "peer:h1 plane:1", True),
        ("peer:h1", "ev:h1:5", True),
        ("plane:1", "ev:5", True),
        ("plane:0", "ev:5", False),
        ("plane:1", "t1:1:2", True),
        ("t1:1:2", "link:1:0:2", True),
        ("t0:1:0", "link:1:0:2", True),
        ("t1:1:2", "plane:1", False),
        ("peer:h1", "plane:1", False),
        ("peer:h3", "nic:h3:1", True),
        ("nic:h3:1", "peer:h3 plane:1", True),
        ("nic:h3:1", "ev:h3:6", True),
        ("nic:h0:1", "plane:1", True),  # this host's own NIC is the plane
        ("plane:1", "nic:h0:1", True),
        ("nic:h0:1", "plane:0", False),
    ],
)
def test_a_target_contains_narrower_ones(wide: str, narrow: str, expected: bool) -> None:
    assert targets.covers(PLAN, target(wide), target(narrow)) is expected
    if expected:
        inner, outer = evs(narrow), evs(wide)
        assert all(set(found) <= set(outer[name]) for name, found in inner.items())


def test_evs_are_described_in_few_words() -> None:
    def said(**rows: list[int]) -> list[str]:
        ids = {p.host.name: p.host.id for p in PLAN.peers}
        return [str(t) for t in targets.described(PLAN, {ids[n]: found for n, found in rows.items()})]

    assert said() == []
    assert said(h1=[4, 5, 6, 7], h2=[4], h3=[4, 5, 6, 7]) == ["plane:1"]
    assert said(h1=ALL, h3=[2]) == ["peer:h1", "peer:h3 ev:2"]
    assert said(h1=[0, 1, 2, 3, 5]) == ["plane:0 peer:h1", "peer:h1 ev:5"]


# ---- the floor ----


def standing(denied: tuple[int, ...] = (), well: tuple[int, ...] = tuple(ALL), floor: int = 3) -> Standing:
    return Standing("h1", floor, frozenset(ALL), frozenset(denied), frozenset(well))


@pytest.mark.parametrize(
    ("before", "wanted", "left"),
    [
        (standing(), [0, 1, 2, 3, 4], None),
        (standing(), [0, 1, 2, 3, 4, 5], 2),
        (standing(denied=(0, 1)), [0, 1, 2, 3, 4], None),  # of which some are denied already
        (standing(denied=(0, 1), well=(2, 3, 4, 5, 6, 7)), [2, 3, 4, 5], 2),
        (standing(well=(0, 1, 2, 3)), [0, 1], 2),  # the others could be, but are not well
        (standing(well=(0, 1, 2, 3)), [4, 5, 6], None),  # what has failed may be denied
        (standing(well=(0, 1)), [5], None),  # even where too few are well already
        (standing(well=(0, 1)), [1], 1),
        (standing(well=()), [0, 1, 2, 3, 4, 5], 0),  # not probed yet
        (standing(denied=(0, 1, 2, 3, 4, 5), well=(6, 7)), [0, 1, 2, 3, 4, 5], None),  # as it was
        (standing(denied=(0, 1, 2, 3, 4, 5), well=(6, 7)), [6], 1),
        (standing(), [77], None),
    ],
)
def test_the_floor(before: Standing, wanted: list[int], left: int | None) -> None:
    found = targets.below_floors([(before, wanted)])
    assert [s.left for s in found] == ([] if left is None else [left])
    if found:
        assert str(found[0]) == f"h1 with {left} of 8 (ev_min_active 3)"


# ---- time ----


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("2d", 172_800), (" 5M ", 300), ("366d", 31_622_400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert targets.duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "m", "-5m", "0s", "30m1h", "1.5h", "367d", "1e3s", "٣m", "9" * 400 + "d"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        targets.duration_s(text)


def test_the_remaining_time_of_a_denial() -> None:
    d = Denial(Target(plane=1), since=1000.0, until=1600.0)
    assert [d.left_s(now) for now in (1000, 1200, 1600, 5000)] == [600, 400, 0, 0]
    assert d.left_s(10) == 600  # a clock that is not set yet
    assert Denial(Target(plane=1), since=1000.0).left_s(1e10) == math.inf


def test_a_reason_is_one_printable_line() -> None:
    assert targets.checked_reason(" fan tray ü ") == "fan tray ü"
    for text in ("a\nb", "\033[31m", "x" * 201):
        with pytest.raises(UsageError, match="one line"):
            targets.checked_reason(text)


# ---- as JSON ----

GOOD: dict[str, Any] = record.as_json(Denial(target("link:1:0:2 peer:h1"), 1.5, 9.5, "why", 1000, True, True))


@pytest.mark.parametrize(
    "change",
    [
        {"target": []},
        {"target": ["t1:9"]},
        {"target": "plane:1"},
        {"target": [1]},
        {"since": "now"},
        {"since": math.nan},
        {"until": math.inf},
        {"until": True},
        {"since": -1},
        {"uid": 1.5},
        {"reason": None},
        {"reason": "a\nb"},
        {"drain": 1},
    ],
    ids=str,
)
def test_invalid_json_denials_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"denial|not a target|target is missing|one line"):
        record.from_json(GOOD | change)


def test_incomplete_json_denials_are_refused() -> None:
    for key in GOOD:
        with pytest.raises(ValueError, match=key):
            record.from_json({k: v for k, v in GOOD.items() if k != key})
    with pytest.raises(ValueError, match="not an object"):
        record.from_json([])


# ---- the file ----

ONE = record.from_json(GOOD)
TWO = Denial(target("peer:h1 plane:1"), 11.0)


def test_written_denials_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "made" / "for it" / state_dir.DENIALS
    assert record.read(path) is None
    for denials in ([ONE, TWO], [TWO], []):
        record.write(path, denials)
        assert record.read(path) == denials
    assert [p.name for p in path.parent.iterdir()] == [state_dir.DENIALS]
    assert json.loads(path.read_text())["schema_version"] == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 4096,
        b"\xff\xfe",
        b"[]",
        b'{"schema_version": 2, "denials": []}',
        b'{"schema_version": 1}',
        b'{"schema_version": 1, "denials": [1]}',
        b'{"schema_version": 1, "denials": [{"target": ["t1:1:2"]}]}',
        b"[" * 100_000,
        b"x" * (5 << 20),
    ],
    ids=lambda c: repr(c[:24]),
)
def test_an_invalid_file_is_reported_and_renamed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / state_dir.DENIALS
    path.write_bytes(content)
    with pytest.raises(record.Unreadable, match=str(path)):
        record.read(path)
    kept = state_dir.set_aside(path)
    assert kept.read_bytes() == content
    assert record.read(path) is None
    record.write(path, [ONE])
    assert kept.read_bytes() == content


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    """The kernel refuses half-way through: no file may grow beyond 100 bytes."""
    path = tmp_path / state_dir.DENIALS
    record.write(path, [TWO])
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(KernelError) as e:
            record.write(path, [ONE, TWO])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert e.value.errno == errno.EFBIG
    assert str(path) in str(e.value)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [state_dir.DENIALS]


def test_the_path_of_the_denials_file() -> None:
    assert state_dir.directory(Path("/run/mrcd")) == Path("/var/lib/mrcd")
    assert state_dir.directory(Path("/run/other")) == Path("/run/other")
    assert state_dir.directory(Path("/run/other"), Path("/x")) == Path("/x")
