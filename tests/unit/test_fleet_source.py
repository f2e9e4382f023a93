# SPDX-License-Identifier: BSD-2-Clause
"""Tests which cluster file a host runs: its own, or that from etcd, also after a restart."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from mrcd.denials import targets
from mrcd.denials.record import Denial
from mrcd.errors import ConfigError, MachineError, MrcdError, TakesRestart
from mrcd.fleet import member as member_module
from mrcd.fleet import source as source_module
from mrcd.fleet.etcd import EtcdAway, Snapshot, Value
from mrcd.fleet.keys import FleetFile, Keys, Trial, Wanted, denial_value
from mrcd.fleet.member import RETRY_S, FleetMember
from mrcd.fleet.source import FILE, FileSource, NoFile
from tests.cluster_files import TWO, host

FLEET = '[fleet]\netcd = ["https://e1:2379"]\n'
OWN = FLEET + TWO
NEW = TWO + host(2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A host's own file, which names an etcd."""
    path = tmp_path / "mrcd.toml"
    path.write_text(OWN)
    return path


def source_of(path: Path) -> FileSource:
    return FileSource(path, path.parent)


def adopt(source: FileSource) -> None:
    source.adopted(source.load())


def names(source: FileSource) -> list[str]:
    return [h.name for h in source.load().config.hosts]


# Steps: etcd has a file of a generation (None: no key), and whether that is news, or it has one on trial; the file to
# run, with so many hosts, is adopted; mrcd starts again; the host's own file is written.
STORIES: dict[str, list[tuple[str, Any, Any]]] = {
    "its own file until etcd has one": [
        ("adopt", None, 2), ("note", None, False), ("note", (5, NEW), True), ("adopt", 5, 3),
        ("note", (5, NEW), False), ("note", (6, NEW), True),
    ],
    "a restart and a deleted key keep the file from etcd": [
        ("note", (5, NEW), True), ("adopt", 5, 3), ("again", None, None), ("adopt", 5, 3), ("note", None, False),
        ("adopt", 5, 3),
    ],
    "a host that leaves the fleet forgets its file": [
        ("note", (5, NEW), True), ("adopt", 5, 3), ("own", TWO, None), ("adopt", None, 2), ("again", None, None),
        ("own", OWN, None), ("adopt", None, 2),
    ],
    "a refused file is tried again only if it changes, and is not kept": [
        ("adopt", None, 2), ("note", (5, "bad ["), True), ("refuse", "generation 5 in etcd: not valid TOML", None),
        ("note", (5, "bad ["), False), ("again", None, None), ("adopt", None, 2), ("note", (6, NEW), True),
        ("adopt", 6, 3),
    ],
    "a file that takes a restart runs after it": [
        ("note", (5, NEW), True), ("adopt", 5, 3), ("note", (6, TWO), True), ("postpone", None, None),
        ("note", (6, TWO), False), ("again", None, None), ("adopt", 6, 2),
    ],
    "a newer file comes before that restart": [
        ("note", (5, TWO), True), ("adopt", 5, 2), ("note", (6, TWO), True), ("postpone", None, None),
        ("note", (7, NEW), True), ("adopt", 7, 3), ("again", None, None), ("adopt", 7, 3),
    ],
    "a file on trial is not what the next start runs": [
        ("note", (5, NEW), True), ("adopt", 5, 3), ("trial", (6, TWO), True), ("adopt", 6, 2), ("again", None, None),
        ("adopt", 5, 3), ("trial", (6, TWO), True), ("adopt", 6, 2), ("trial", None, True), ("adopt", 5, 3),
        ("trial", None, False),
    ],
    "a file that was on trial comes for all": [
        ("note", (5, NEW), True), ("adopt", 5, 3), ("trial", (6, TWO), True), ("adopt", 6, 2), ("note", (7, TWO), True),
        ("adopt", 7, 2), ("again", None, None), ("adopt", 7, 2),
    ],
    "the first file of all is on trial": [
        ("adopt", None, 2), ("trial", (6, NEW), True), ("adopt", 6, 3), ("trial", None, True), ("adopt", None, 2),
    ],
    "a file is refused, another one is tried, and the trial ends": [
        ("note", (5, NEW), True), ("adopt", 5, 3), ("note", (6, "bad ["), True),
        ("refuse", "generation 6 in etcd: not valid TOML", None), ("trial", (7, TWO), True), ("adopt", 7, 2),
        ("kept", 5, None), ("trial", None, True), ("refuse", "generation 6 in etcd: not valid TOML", None),
        ("kept", 5, None), ("back", 5, 3), ("kept", 5, None), ("trial", None, False),
    ],
    "a trial is refused": [
        ("note", (5, NEW), True), ("adopt", 5, 3), ("trial", (6, "bad ["), True),
        ("refuse", "generation 6 in etcd: not valid TOML", None), ("trial", (6, "bad ["), False), ("trial", None, True),
        ("adopt", 5, 3),
    ],
}  # fmt: skip


@pytest.mark.parametrize("steps", STORIES.values(), ids=STORIES)
def test_the_file_that_a_host_runs(path: Path, steps: list[tuple[str, Any, Any]]) -> None:
    source = source_of(path)
    for what, given, expected in steps:
        if what == "note":
            assert source.note("12", FleetFile(*given) if given else None) is expected
        elif what == "trial":
            source.note("12", None, FleetFile(*given) if given else None)
            assert source.has_news is expected
        elif what == "kept":
            source.keep()
            kept = source_of(path).wanted
            assert kept
            assert kept.generation == given
        elif what == "back":  # the file that etcd has stays refused
            assert source.has_news
            assert len(names(source)) == expected
            adopt(source)
            assert source.running
            assert source.running.file
            assert (source.running.file.generation, source.refusal is not None) == (given, True)
        elif what == "adopt":
            assert len(names(source)) == expected
            adopt(source)
            assert source.running
            assert (source.running.file.generation if source.running.file else None) == given
            assert source.running_path == (path.parent / FILE if given else path)
            assert source.refusal is None
        elif what == "refuse":
            with pytest.raises(ConfigError, match=given):
                source.load()
            source.refused(source.newest, "not valid")
            assert source.refusal
        elif what == "postpone":
            source.refused(source.wanted, "metrics.address takes a restart", takes_restart=True)
            source.keep()
        elif what == "own":
            path.write_text(given)
        else:
            source = source_of(path)


def test_fleet_is_read_from_the_host_s_own_file_only(path: Path) -> None:
    source = source_of(path)
    for generation, text in enumerate(('[fleet]\netcd = ["https://evil:1"]\n' + TWO, TWO), 5):
        source.note("1", FleetFile(generation, text))
        assert source.load().config.fleet.etcd == ["https://e1:2379"]


@pytest.mark.parametrize("text", ["", "[cluster]\n", "# mrcd wrote this: generation x in etcd cluster 1\n", b"\xff"])
def test_a_damaged_copy_is_ignored(path: Path, text: str | bytes, caplog: pytest.LogCaptureFixture) -> None:
    (path.parent / FILE).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert names(source_of(path)) == ["h0", "h1"]
    assert "mrcd starts with the file of this host" in caplog.text


def test_a_copy_that_cannot_be_written_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = FileSource(path, path / "no directory")
    source.note("1", FleetFile(5, NEW))
    adopt(source)
    assert source.running
    assert source.running.file == FleetFile(5, NEW)
    assert "a restart without etcd would take an older cluster file" in caplog.text


# ---- the start ----


class StandIn:
    """An etcd with one file, or none that answers."""

    file: FleetFile | None = None
    is_away = False

    def __init__(self, fleet: object) -> None:
        pass

    async def __aenter__(self) -> "StandIn":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def read(self, prefix: str) -> Snapshot:
        if self.is_away:
            raise EtcdAway("no endpoint of etcd answers")
        return Snapshot("1", 9, {prefix: Value(self.file.text.encode(), self.file.generation)} if self.file else {})


@pytest.fixture
def etcd(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    kind = type("OneEtcd", (StandIn,), {})
    monkeypatch.setattr(source_module, "Etcd", kind)
    return kind


def started(path: Path) -> list[str]:
    loaded = asyncio.run(source_module.first_file(source_of(path), "h0"))
    return [h.name for h in loaded.config.hosts]


def test_a_host_with_nothing_but_fleet_asks_etcd(path: Path, etcd: type[StandIn]) -> None:
    path.write_text(FLEET)
    with pytest.raises(NoFile, match="has only"):
        started(path)
    etcd.file = FleetFile(5, NEW)
    assert started(path) == ["h0", "h1", "h2"]
    etcd.is_away = True
    with pytest.raises(MachineError, match=r"has only \[fleet\].*no endpoint of etcd answers") as caught:
        started(path)
    assert caught.value.exit_code == 2  # systemd tries again


def test_a_start_does_not_depend_on_etcd_if_a_file_is_there(path: Path, etcd: type[StandIn]) -> None:
    etcd.is_away = True
    assert started(path) == ["h0", "h1"]


def test_a_copy_that_this_host_cannot_run_is_replaced_by_etcd_s(path: Path, etcd: type[StandIn]) -> None:
    (path.parent / FILE).write_text("# mrcd wrote this: generation 4 in etcd cluster 1\n[cluster]\nplanets = 4\n")
    etcd.is_away = True
    with pytest.raises(ConfigError, match="planets"):
        started(path)
    etcd.is_away, etcd.file = False, FleetFile(5, NEW)
    assert started(path) == ["h0", "h1", "h2"]


# ---- [fleet] ----


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('etcd = ["e1:2379"]', "is not a URL"),
        ('etcd = ["https://e1/v3"]', "is not a URL"),
        ('etcd = ["https://e1:x"]', "is not a URL"),
        ('etcd = ["https://root:secret@e1"]', "write them into user_file"),
        ('etcd = ["http://e1"]\nuser_file = "/u"', "is not encrypted"),
        ('etcd = ["https://e1"]\ncert_file = "/c"', "belong together"),
        ('etcd = ["https://e1"]\nprefix = "mrcd"', "fleet.prefix"),
        ('etcd = ["https://e1"]\nca_file = "ca.pem"', "fleet.ca_file"),
    ],
)
def test_a_wrong_section_is_explained(path: Path, keys: str, message: str) -> None:
    path.write_text(f"[fleet]\n{keys}\n{TWO}")
    with pytest.raises(ConfigError) as caught:
        source_of(path).load()
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


# ---- what a member takes over ----


class Applied:
    """A member whose denials and files are recorded."""

    def __init__(self, path: Path) -> None:
        self.source = source_of(path)
        adopt(self.source)
        self.denied: list[list[str]] = []
        self.refuses, self.error = False, MrcdError("the kernel refused")
        self.reached = {"h1": True, "h2": False}
        denials: Any = SimpleNamespace(use_fleet_wide=self.use_fleet_wide)
        events: Any = SimpleNamespace(add=lambda *_, **__: None)
        self.member = FleetMember(
            lambda: "h0", self.source, lambda: self.adopt(), denials, events, lambda: dict(self.reached)
        )

    async def use_fleet_wide(self, wanted: dict[Any, Denial]) -> dict[Any, str]:
        self.denied.append([str(t) for t in wanted])
        return {}

    async def adopt(self) -> None:
        if self.refuses:
            raise self.error
        adopt(self.source)

    def take(self, cluster: str, wanted: Wanted, revision: int = 9) -> None:
        async def both() -> None:
            self.member.take(cluster, revision, wanted)
            await self.member.apply()

        asyncio.run(both())


def wanted(file: FleetFile | None, *words: str) -> Wanted:
    keys = Keys("/mrcd")
    named = [targets.parse([w]) for w in words]
    found = {keys.denial(t): Value(denial_value(Denial(t, 1e9)), 1) for t in named}
    return Wanted(file, denials=keys.wanted(found).denials)


# Rows of: etcd's cluster and revision, its generation of the file and its denials; then those that are applied, or None
# if nothing changes. None instead of a row: mrcd starts again.
Row = tuple[str, int, int | None, list[str], list[str] | None]
TAKEN: dict[str, list[Row | None]] = {
    "what etcd wants": [("1", 9, 5, ["plane:0"], ["plane:0"]), ("1", 9, 5, [], [])],
    "an empty etcd of another cluster changes nothing, until it has something": [
        ("1", 9, None, ["plane:0"], ["plane:0"]), ("2", 9, None, [], None), None, ("2", 9, None, [], None),
        ("2", 9, 3, [], []), ("3", 9, None, ["plane:1"], ["plane:1"]),
    ],
    "an etcd that was made anew with the same id counts from 1": [
        ("1", 9, 5, ["plane:0"], ["plane:0"]), ("1", 3, None, [], None), ("1", 10, None, [], []), None,
        ("1", 3, None, [], None),
    ],
}  # fmt: skip


@pytest.mark.parametrize("rows", TAKEN.values(), ids=TAKEN)
def test_what_a_member_takes_over(path: Path, caplog: pytest.LogCaptureFixture, rows: list[Row | None]) -> None:
    applied = Applied(path)
    asyncio.run(applied.member.apply())
    assert applied.denied == []  # before etcd was read
    for row in rows:
        if row is None:
            applied = Applied(path)
            continue
        cluster, revision, generation, words, expected = row
        before = applied.denied[-1:]
        applied.take(cluster, wanted(FleetFile(generation, NEW) if generation else None, *words), revision)
        assert applied.denied[-1:] == (before if expected is None else [expected])
        if generation:
            assert applied.member.brief()["generation"] == generation
            kept = source_of(path).wanted
            assert kept
            assert kept.generation == generation
    assert ("an empty cluster" in caplog.text) == any(row and row[4] is None for row in rows)


def test_a_refused_file_does_not_hold_up_denials(path: Path) -> None:
    applied = Applied(path)
    applied.refuses = True
    applied.take("1", wanted(FleetFile(5, NEW), "plane:0"))
    assert applied.denied == [["plane:0"]]
    brief = applied.member.brief()
    assert (brief["refused"], brief["generation"]) == ({"generation": 5, "why": "the kernel refused"}, None)


def generation(applied: Applied) -> int | None:
    found: int | None = applied.member.brief()["generation"]
    return found


@pytest.mark.parametrize(("hosts", "expected"), [(["h0", "h7"], 6), (["h1"], 5)])
def test_a_trial_is_run_by_its_hosts_while_its_key_is_there(path: Path, hosts: list[str], expected: int) -> None:
    applied, file, trial = Applied(path), FleetFile(5, NEW), Trial(FleetFile(6, TWO), hosts)
    applied.take("1", Wanted(file, trial))
    assert generation(applied) == expected
    applied.take("1", Wanted(file))
    assert generation(applied) == 5


def test_a_trial_ends_when_etcd_is_away(path: Path) -> None:
    applied = Applied(path)
    applied.take("1", Wanted(FleetFile(5, NEW), Trial(FleetFile(6, TWO), ["h0"])))

    async def lose() -> None:
        adopt_, is_back = applied.adopt, asyncio.Event()

        async def note() -> None:
            await adopt_()
            is_back.set()

        applied.adopt = note  # type: ignore[method-assign]
        with patch.object(member_module, "Etcd", StandIn), patch.object(StandIn, "is_away", True):
            task = asyncio.create_task(applied.member.run())
            await is_back.wait()
            task.cancel()

    asyncio.run(lose())
    assert generation(applied) == 5


def test_a_host_that_cannot_go_back_tries_again(path: Path) -> None:
    applied = Applied(path)
    applied.take("1", Wanted(FleetFile(5, NEW)))
    applied.take("1", Wanted(FleetFile(6, "bad [")))
    applied.take("1", Wanted(FleetFile(6, "bad ["), Trial(FleetFile(7, TWO), ["h0"])))
    assert generation(applied) == 7
    applied.refuses = True
    applied.take("1", Wanted(FleetFile(6, "bad [")))  # refused, and so is the way back
    assert asyncio.run(applied.member.apply()) == RETRY_S
    applied.refuses = False
    asyncio.run(applied.member.apply())
    assert (generation(applied), applied.member.brief()["refused"]["generation"]) == (5, 6)


def test_a_host_that_cannot_go_back_to_the_file_of_all_tries_again(path: Path) -> None:
    applied, file = Applied(path), FleetFile(5, NEW)
    applied.take("1", Wanted(file))
    applied.take("1", Wanted(file, Trial(FleetFile(6, TWO), ["h0"])))
    applied.refuses = True
    applied.take("1", Wanted(file))
    assert (generation(applied), source_of(path).wanted) == (6, file)
    applied.refuses = False
    asyncio.run(applied.member.apply())
    assert (generation(applied), applied.member.brief()["refused"]) == (5, None)


def test_an_empty_etcd_ends_a_trial_and_a_new_one_may_begin_with_a_trial(path: Path) -> None:
    applied = Applied(path)
    applied.take("1", Wanted(FleetFile(5, NEW), Trial(FleetFile(6, TWO), ["h0"])))
    applied.take("2", Wanted())
    asyncio.run(applied.member.apply())
    assert generation(applied) == 5
    applied.take("2", Wanted(None, Trial(FleetFile(3, TWO), ["h0"])))
    assert generation(applied) == 3


def test_a_peer_that_was_reached_before_a_trial_is_lost(path: Path) -> None:
    applied = Applied(path)
    applied.take("1", Wanted(FleetFile(5, NEW), Trial(FleetFile(6, TWO), ["h0"])))
    assert applied.member.lost_peers() == []
    applied.reached = {"h1": False, "h2": False, "h3": False}
    assert applied.member.lost_peers() == ["h1"]
    applied.reached = {"h2": False}  # the file does not name h1 any more
    assert applied.member.lost_peers() == []


def test_a_file_that_takes_a_restart_is_what_the_next_start_runs(path: Path) -> None:
    applied = Applied(path)
    applied.error = TakesRestart("metrics.address takes a restart")
    applied.refuses = True
    applied.take("1", wanted(FleetFile(5, NEW)))
    assert applied.member.brief()["refused"] == {"generation": 5, "why": "metrics.address takes a restart"}
    after = Applied(path).source.running
    assert after
    assert after.file == FleetFile(5, NEW)


def test_a_file_that_comes_while_another_is_refused_is_tried(path: Path) -> None:
    applied = Applied(path)
    adopt_ = applied.adopt

    async def refuse() -> None:
        applied.member.take("1", 9, wanted(FleetFile(6, NEW)))
        raise MrcdError("bad")

    applied.adopt = refuse  # type: ignore[method-assign]
    applied.take("1", wanted(FleetFile(5, "planets = 4\n")))
    assert applied.member.brief()["refused"] == {"generation": 5, "why": "bad"}
    applied.adopt = adopt_  # type: ignore[method-assign]
    asyncio.run(applied.member.apply())
    assert applied.member.brief()["generation"] == 6


def test_a_change_during_a_reload_does_not_load_the_file_twice(path: Path) -> None:
    applied = Applied(path)
    adopt_, count = applied.adopt, []

    async def slow() -> None:
        count.append(1)
        applied.member.take("1", 9, wanted(FleetFile(5, NEW), "plane:0"))
        await adopt_()

    applied.adopt = slow  # type: ignore[method-assign]
    applied.take("1", wanted(FleetFile(5, NEW)))
    asyncio.run(applied.member.apply())
    assert (count, applied.denied[-1]) == ([1], ["plane:0"])
