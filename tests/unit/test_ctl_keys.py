# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl keys`: what it shows of the daemon's answers, how it waits, and the files that it makes."""

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from mrcd.auth import secrets_file
from mrcd.config.sections import Auth
from mrcd.ctl.commands import keys as commands
from tests.cluster_files import host
from tests.unit.canned_daemon import KEYS, Daemon
from tests.unit.conftest import TestClock

Mrcctl = Callable[..., Result]


def peer(name: str, sent_with: int | None, *accepted: int, untagged: int = 0) -> dict[str, Any]:
    return {
        "peer": name, "reachable": True, "sent_with": sent_with, "accepted_by_peer": list(accepted),
        "untagged_packets": untagged, "clock_known": True,
    }  # fmt: skip


# ---- files ----


@pytest.fixture(autouse=True)
def no_cluster_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MRCD_CONFIG", str(tmp_path / "none.toml"))
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)


def test_the_default_is_that_of_the_cluster_file(
    mrcctl: Mrcctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(commands.DEFAULT) == Auth().secret_file
    monkeypatch.setattr(commands, "DEFAULT", tmp_path / "default")
    assert mrcctl("keys", "generate").exit_code == 0
    assert len(secrets_file.read(tmp_path / "default")) == 1
    config = tmp_path / "mrcd.toml"
    monkeypatch.setenv("MRCD_CONFIG", str(config))
    config.write_text(f'[auth]\nsecret_file = "{tmp_path}/mine"\n{host(0)}')
    assert mrcctl("keys", "generate").exit_code == 0
    assert len(secrets_file.read(tmp_path / "mine")) == 1


def test_a_credential_of_systemd_is_no_default(mrcctl: Mrcctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "mrcd.toml"
    monkeypatch.setenv("MRCD_CONFIG", str(config))
    config.write_text(f'[auth]\nsecret_file = "mrc-secrets"\n{host(0)}')
    done = mrcctl("keys", "generate")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "[auth] secret_file 'mrc-secrets' is a systemd credential, not a path" in done.stderr
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert mrcctl("keys", "generate").exit_code == 0
    assert (tmp_path / "mrc-secrets").exists()


def test_generate_makes_a_closed_file_once(mrcctl: Mrcctl, tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    done = mrcctl("keys", "generate", str(path))
    assert done.exit_code == 0
    (secret,) = secrets_file.read(path)
    assert (secret.key_id, stat.S_IMODE(path.stat().st_mode)) == (1, 0o600)
    assert secret.secret.hex() not in done.output
    assert done.stdout.startswith(f"{path} holds secret 1; copy it to all hosts")
    again = mrcctl("keys", "generate", str(path))
    assert again.exit_code == 1
    assert "exists; nothing was changed" in again.stderr
    assert secrets_file.read(path) == (secret,)


def test_generate_add_keeps_the_newest_two(mrcctl: Mrcctl, tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    for ids in ([1], [1, 2], [2, 3]):
        done = mrcctl("keys", "generate", *(["--add"] if len(ids) > 1 else []), "--json", str(path))
        assert json.loads(done.stdout)["ids"] == ids
        assert not [s for s in secrets_file.read(path) if s.secret.hex() in done.output]
        assert [s.key_id for s in secrets_file.read(path)] == ids


def test_generate_add_goes_on_after_the_last_id(mrcctl: Mrcctl, tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    secrets_file.write(path, [secrets_file.new(255)])
    assert mrcctl("keys", "generate", "--add", str(path)).exit_code == 0
    assert [s.key_id for s in secrets_file.read(path)] == [255, 1]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--add", "DIR/none"], 1, "none: No such file or directory"),
        (["DIR/none/secrets"], 2, "No such file or directory"),
        (["--pairs", "DIR/none/pairs"], 2, "No such file or directory"),
        (["--pairs", "DIR/pairs", "--add"], 1, "no host has a file there"),
        (["--pairs", "DIR/pairs", "DIR/secrets"], 1, "--pairs takes a FILE only with --add"),
    ],
)
def test_generate_without_its_files_says_so(
    mrcctl: Mrcctl, tmp_path: Path, cluster: Path, arguments: list[str], status: int, message: str
) -> None:
    done = mrcctl("keys", "generate", *(word.replace("DIR", str(tmp_path)) for word in arguments))
    assert (done.exit_code, done.stdout) == (status, "")
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == [cluster]


# ---- files of pairs ----


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster file of three hosts."""
    config = tmp_path / "mrcd.toml"
    monkeypatch.setenv("MRCD_CONFIG", str(config))
    config.write_text("".join(map(host, range(3))))
    return config


HOSTS = {"h0": 0, "h1": 1, "h2": 2}


def files(directory: Path) -> list[tuple[secrets_file.Secret, ...]]:
    """Returns the secrets of all hosts' files, after a check that both hosts of each pair have the same."""
    found = [secrets_file.read(directory / name, HOSTS, name) for name in HOSTS]
    newest = [of_host[-1] for of_host in found]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert newest[one].of(other) == newest[other].of(one)
    assert len({s for secret in newest for s in secret.pairs.values()}) == 3
    assert {stat.S_IMODE((directory / name).stat().st_mode) for name in HOSTS} == {0o600}
    assert sorted(p.name for p in directory.iterdir()) == sorted(HOSTS)
    return found


def test_generate_pairs_writes_a_file_per_host(mrcctl: Mrcctl, cluster: Path) -> None:
    directory = cluster.parent / "pairs"
    done = mrcctl("keys", "generate", "--pairs", str(directory))
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (
        f"3 files in {directory} hold secret 1; copy each to its host, then `mrcctl keys rotate` on each\n"
    )
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    found = files(directory)
    assert [[(s.key_id, s.secret, sorted(s.pairs)) for s in of_host] for of_host in found] == [
        [(1, b"", [1, 2])], [(1, b"", [0, 2])], [(1, b"", [0, 1])],
    ]  # fmt: skip
    again = mrcctl("keys", "generate", "--pairs", str(directory))
    assert (again.exit_code, again.stdout) == (1, "")
    assert "pairs/h0 exists; nothing was changed" in again.stderr
    assert files(directory) == found


def test_generate_pairs_add_keeps_the_newest_id_of_all_files(mrcctl: Mrcctl, cluster: Path) -> None:
    directory = cluster.parent / "pairs"
    mrcctl("keys", "generate", "--pairs", str(directory))
    for ids in ([1, 2], [2, 3]):
        before = files(directory)
        done = mrcctl("keys", "generate", "--pairs", str(directory), "--add", "--json")
        assert json.loads(done.stdout)["ids"] == ids
        after = files(directory)
        assert [[s.key_id for s in of_host] for of_host in after] == [ids] * 3
        assert [of_host[0] for of_host in after] == [of_host[-1] for of_host in before]
    secrets_file.write(directory / "h1", before[1], {0: "h0", 2: "h2"})  # a run that was interrupted: h1 has 1 and 2
    (directory / "h2").unlink()  # a new host
    assert json.loads(mrcctl("keys", "generate", "--pairs", str(directory), "--add", "--json").stdout)["ids"] == [2, 3]
    found = files(directory)
    assert [[s.key_id for s in of_host] for of_host in found] == [[2, 3], [2, 3], [3]]
    assert found[1][0] == before[1][-1]


def test_generate_pairs_keeps_the_secret_of_the_cluster(mrcctl: Mrcctl, cluster: Path) -> None:
    kept, directory = cluster.parent / "secrets", cluster.parent / "pairs"
    made = [secrets_file.new(6), secrets_file.new(7)]
    secrets_file.write(kept, made)
    argv = ["keys", "generate", "--pairs", str(directory), str(kept)]
    done = mrcctl(*argv, "--add")
    assert done.exit_code == 0
    assert not [s for s in made if s.secret.hex() in done.output]
    assert [(of_host[0], of_host[1].key_id) for of_host in files(directory)] == [(made[1], 8)] * 3
    again = mrcctl(*argv, "--add")
    assert (again.exit_code, "exists; nothing was changed" in again.stderr) == (1, True)


def test_generate_pairs_add_needs_files_with_a_common_id(mrcctl: Mrcctl, cluster: Path) -> None:
    directory = cluster.parent / "pairs"
    argv = ["keys", "generate", "--pairs", str(directory), "--add"]
    directory.mkdir()
    for name, key_id in (("h0", 1), ("h1", 2)):
        secrets_file.write(directory / name, [secrets_file.new(key_id)])
    assert "no id is in all files" in mrcctl(*argv).stderr
    assert not (directory / "h2").exists()


def test_generate_add_explains_what_to_do_for_a_file_of_pairs(mrcctl: Mrcctl, cluster: Path) -> None:
    directory = cluster.parent / "pairs"
    mrcctl("keys", "generate", "--pairs", str(directory))
    found = files(directory)
    done = mrcctl("keys", "generate", "--add", str(directory / "h0"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "line 1 has the secret of a pair of hosts: the other host needs the same new one" in done.stderr
    assert "mrcctl keys generate --pairs DIRECTORY --add" in done.stderr
    assert files(directory) == found


def test_rotate_shows_progress_until_all_peers_have_it(mrcctl: Mrcctl, daemon: Daemon, clock: TestClock) -> None:
    """At each pause of the command, another peer has the new secret."""
    daemon.answers["/v1/reload"] = (200, {"message": "reloaded", "changed": True})
    peers = [peer(f"h{n}", 1, 1) for n in (1, 2, 3)]
    daemon.answers["/v1/keys"] = (200, KEYS | {"peers": peers})

    def asleep() -> None:
        n = sum(p["sent_with"] == 2 for p in peers)
        peers[n] = peer(f"h{n + 1}", 2, 1, 2)
        daemon.answers["/v1/keys"] = (200, KEYS | {"peers": peers})

    clock.asleep = asleep
    done = mrcctl("keys", "rotate")
    assert (done.exit_code, done.stdout) == (0, "reloaded; all 3 peers use secret 2\n")
    assert done.stderr.splitlines() == [
        "mrcctl: waiting for 3 of 3 peers to have secret 2: h1, h2, h3",
        "mrcctl: waiting for 2 of 3 peers to have secret 2: h2, h3",
        "mrcctl: waiting for 1 of 3 peers to have secret 2: h3",
    ]
