# SPDX-License-Identifier: BSD-2-Clause
"""Tests which secrets a reload refuses, and a stop during a reload (test_adopt.py: failures).

A cancelled load of programs runs to its end, because the object must not be freed below it. New secrets that would cut
off reachable peers are refused.
"""

import asyncio
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mrcd.auth import secrets_file
from mrcd.auth.keyring import Keyring
from mrcd.auth.secrets_file import Secret
from mrcd.config import cluster_file
from mrcd.daemon import reload
from mrcd.daemon.daemon import read_secrets
from mrcd.errors import ConfigError, UsageError
from mrcd.fabric import topology
from mrcd.fleet.source import FileSource
from mrcd.kernel import abi, enums
from mrcd.kernel.dataplane import Dataplane
from mrcd.kernel.pinned import Tables
from mrcd.view import documents
from tests.unit import simulated_time
from tests.unit.arrays import TEXT, Arrays


class Slow:
    """A data plane that loads slowly."""

    def __init__(self) -> None:
        self.began, self.go_on, self.loaded = threading.Event(), threading.Event(), False

    def load(self) -> None:
        """Waits until it is released."""
        self.began.set()
        assert self.go_on.wait(10)
        self.loaded = True


@pytest.mark.parametrize("times", [1, 3])
def test_a_stop_waits_for_programs_that_are_being_loaded(times: int) -> None:
    async def stopped() -> None:
        slow = Slow()
        task = asyncio.create_task(reload.load_programs(cast(Dataplane, slow)))
        assert await asyncio.to_thread(slow.began.wait, 10)
        for other in asyncio.all_tasks() - {asyncio.current_task()}:  # as asyncio.run does at its end
            for _ in range(times):
                other.cancel()
                await asyncio.sleep(0)
        assert not task.done()
        slow.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slow.loaded

    asyncio.run(stopped())


@pytest.mark.parametrize("patience_s", [60, 0], ids=["waits", "undoes"])
def test_a_stop_lets_a_reload_finish_or_undo_itself(
    patience_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "_STOP_S", patience_s)
    did, began = list[str](), asyncio.Event()

    async def slow(plan: object, difference: object, secrets: object) -> None:
        began.set()
        try:
            await asyncio.sleep(1)
            did.append("finished")
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            did.append("undone")
            raise

    async def stop() -> None:
        host = Running(tmp_path)
        host.daemon.detached, host.daemon.netlink_lock = False, asyncio.Lock()
        host.daemon.netlink = SimpleNamespace(links=lambda: asyncio.sleep(0, {}))
        monkeypatch.setattr("mrcd.net.hooks.ports", lambda *_: {0: None})
        host.path.write_text(host.path.read_text() + "[health]\noverdue_ms = 11\n")
        reloader = reload.Reloader(host.daemon, FileSource(host.path, tmp_path))
        monkeypatch.setattr(reloader, "apply", slow)
        asked = asyncio.create_task(reloader.reload())
        await began.wait()
        asked.cancel()  # its client has gone
        await reloader.stop()

    simulated_time.run(stop())
    assert did == ["finished" if patience_s else "undone"]


# ---- new secrets ----

A, B = secrets_file.new(1), secrets_file.new(2)
NOW_NS = 10**15


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the clock that tells which peers are heard."""
    monkeypatch.setattr("time.monotonic_ns", lambda: NOW_NS)


class Running:
    """The daemon of h0, which has loaded a file with secret 1; h1 and h2 accept it and are heard, h3 is not."""

    def __init__(self, directory: Path) -> None:
        self.path, self.secrets = directory / "mrcd.toml", directory / "secrets"
        self.write(A)
        tables = Arrays(4, 8)
        tables.peers["key_ids"][1:, 0] = 1
        tables.peers["heard_ns"][1:3] = NOW_NS
        self.key_ids, self.used, self.said = tables.peers["key_ids"], list[tuple[Secret, ...]](), list[str]()
        plan = topology.plan(cluster_file.load(self.path), "h0")
        keyring = Keyring(0)
        keyring.use(enums.AuthMode.REQUIRED, (A,))
        self.daemon: Any = SimpleNamespace(
            plan=plan,
            tables=tables,
            view=documents.View(cast(Tables, tables), plan, [], Path("/nowhere")),
            keyring=keyring,
            admin_lock=asyncio.Lock(),
            events=SimpleNamespace(add=lambda kind, reason, **_: self.said.append(reason)),
            use_secrets=lambda plan, secrets: self.used.append(secrets),
        )

    def write(self, *secrets: Secret, mode: str = "required") -> None:
        """Writes the two files of the host."""
        secrets_file.write(self.secrets, secrets)
        self.path.write_text(f'{TEXT}\n[auth]\nmode = "{mode}"\nsecret_file = "{self.secrets}"\n')

    def reload(self, *, force: bool = False) -> str:
        """Reloads the files, and returns the message."""
        answer = asyncio.run(reload.Reloader(self.daemon, FileSource(self.path, self.path.parent)).reload(force=force))
        return str(answer["message"])


def test_a_refused_file_says_that_the_running_configuration_stays(tmp_path: Path) -> None:
    host = Running(tmp_path)
    host.path.write_text("[cluster]\nplains = 4\n")
    with pytest.raises(ConfigError, match=r"line 2: cluster\.plains: unknown key; did you mean planes") as caught:
        host.reload()
    assert str(caught.value.hint).startswith("the running configuration stays in force; correct the file")
    assert host.said == ["reload_refused"]


@pytest.mark.parametrize("other", [B, secrets_file.new(1)], ids=["another id", "the same id"])
def test_secrets_that_cut_reachable_peers_off_are_refused_without_force(tmp_path: Path, other: Secret) -> None:
    host = Running(tmp_path)
    host.write(other)
    with pytest.raises(UsageError) as caught:
        host.reload()
    assert caught.value.args[0] == (
        f"h1, h2 would be cut off: no secret in {tmp_path}/secrets is in use there; nothing was changed"
    )
    assert "reload --force" in str(caught.value.hint)
    assert (host.used, host.said) == ([], ["reload_refused"])
    for secret in (A, other):
        assert secret.secret.hex() not in str(caught.value)
    assert host.reload(force=True).startswith("reloaded the secrets")
    assert (host.used, host.said) == ([(other,)], ["reload_refused", "reloaded"])


def test_the_old_secret_may_go_when_all_reachable_peers_have_the_new_one(tmp_path: Path) -> None:
    host = Running(tmp_path)
    host.write(B)
    host.key_ids[1, 1] = 2
    with pytest.raises(UsageError, match="h2 would be cut off"):
        host.reload()
    host.key_ids[2, 1] = 2
    host.reload()
    assert host.used == [(B,)]


def test_a_file_of_pairs_that_leaves_out_a_reachable_peer_is_refused(tmp_path: Path) -> None:
    host = Running(tmp_path)
    pairs = {1: A.secret, 2: A.secret}  # the same as before, and none for h3, which is not reachable
    secrets_file.write(host.secrets, [Secret(1, b"", {1: A.secret})], {1: "h1"})
    with pytest.raises(UsageError, match=r"^h2 would be cut off: no secret in"):
        host.reload()
    secrets_file.write(host.secrets, [Secret(1, b"", pairs)], {1: "h1", 2: "h2"})
    host.reload()
    assert host.used == [(Secret(1, b"", pairs),)]


def test_a_file_of_pairs_is_read_by_the_new_cluster_file(tmp_path: Path) -> None:
    host = Running(tmp_path)
    host.path.write_text(host.path.read_text().replace('"h3"', '"new"'))
    for name in ("h3", "h0"):
        secrets_file.write(host.secrets, [A, Secret(2, b"", {1: B.secret})], {1: name})
        with pytest.raises(ConfigError, match="/secrets, line 2") as caught:
            host.reload()
        assert B.secret.hex()[:8] not in str(caught.value)
    secrets_file.write(host.secrets, [A, Secret(2, b"", {3: B.secret})], {3: "new"})
    plan = topology.plan(cluster_file.load(host.path), "h0")
    assert read_secrets(plan) == (A, Secret(2, b"", {3: B.secret}))


def test_peers_that_leave_or_are_replaced_are_not_cut_off(tmp_path: Path) -> None:
    host = Running(tmp_path)
    plan = topology.plan(cluster_file.parse(TEXT.replace('"h1"', '"new"').replace('"h2"', '"h4"')), "h0")
    reload.Reloader(host.daemon, FileSource(host.path, tmp_path)).check_secrets(plan, (B,))


@pytest.mark.parametrize("status", [0, abi.STATUS_TAGS_ONLY])
def test_authentication_may_be_turned_off_if_no_peer_wants_tags(tmp_path: Path, status: int) -> None:
    host = Running(tmp_path)
    host.daemon.tables.peers["status"][2] = status
    host.write(mode="off")
    plan = topology.plan(cluster_file.load(host.path), "h0")
    check = partial(reload.Reloader(host.daemon, FileSource(host.path, tmp_path)).check_secrets, plan, ())
    if not status:
        check()
        return
    with pytest.raises(UsageError, match="h2 would be cut off: they take no packet without a tag") as caught:
        check()
    assert 'mode = "permissive" there' in str(caught.value.hint)


def test_tags_may_not_be_required_while_a_reachable_peer_makes_none(tmp_path: Path) -> None:
    host = Running(tmp_path)
    host.key_ids[1] = host.key_ids[3] = 0  # h3 is not reachable
    check = partial(reload.Reloader(host.daemon, FileSource(host.path, tmp_path)).check_secrets, host.daemon.plan, (A,))
    with pytest.raises(UsageError, match="h1 would be cut off: they send packets without tags"):
        check()
    host.key_ids[1, 0] = 1
    check()


def test_tags_are_not_required_before_the_clock_of_a_reachable_peer_is_known(tmp_path: Path) -> None:
    host = Running(tmp_path)
    check = partial(reload.Reloader(host.daemon, FileSource(host.path, tmp_path)).check_secrets, host.daemon.plan, (A,))
    check()  # it requires them already
    host.daemon.keyring.use(enums.AuthMode.PERMISSIVE, (A,))
    host.daemon.tables.auths["clock_ns"][1] = 1
    with pytest.raises(UsageError, match=r"^h2 would be cut off: their clocks are unknown"):
        check()
    host.daemon.tables.auths["clock_ns"][2] = 1
    check()
