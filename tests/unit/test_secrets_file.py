# SPDX-License-Identifier: BSD-2-Clause
"""Tests the secrets file: what it may hold, who may read it, and that no message shows a secret."""

import os
import stat
from pathlib import Path

import pytest

from mrcd.auth import secrets_file
from mrcd.auth.secrets_file import Secret
from mrcd.errors import ConfigError

HEX = "00112233445566778899aabbccddeeff" * 2


def test_a_written_file_is_read_back_and_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    made = [secrets_file.new(7), secrets_file.new(8)]
    secrets_file.write(path, made)
    assert secrets_file.read(path) == tuple(made)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made[0].secret != made[1].secret
    assert len(made[0].secret) == 32
    assert [p.name for p in tmp_path.iterdir()] == ["secrets"]


def test_a_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    first, second = [secrets_file.new(1)], [secrets_file.new(2)]
    secrets_file.write(path, first, replace=False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        secrets_file.write(path, second, replace=False)
    assert secrets_file.read(path) == tuple(first)
    secrets_file.write(path, second)
    assert secrets_file.read(path) == tuple(second)
    assert [p.name for p in tmp_path.iterdir()] == ["secrets"]


def test_a_failed_write_leaves_no_secret_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mrcd.auth.secrets_file.os.fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        secrets_file.write(tmp_path / "secrets", [secrets_file.new(1)])
    assert list(tmp_path.iterdir()) == []


def test_comments_and_empty_lines_are_allowed() -> None:
    text = f"# of cluster a\n\n  1 {HEX}  # old\n2\t{HEX.upper()}\n"
    assert secrets_file.parse(text.encode(), "f") == (Secret(1, bytes.fromhex(HEX)), Secret(2, bytes.fromhex(HEX)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f holds no secret"),
        ("# nothing\n", "f holds no secret"),
        (f"1 {HEX}\n2 {HEX}\n3 {HEX}\n", "f, line 3: 3 is the third id"),
        (f"1 {HEX}\n1 {HEX}\n", "f, line 2: two secrets have the same id 1"),
        (f"\n0 {HEX}\n", "f, line 2: this is not `ID SECRET`"),
        (f"256 {HEX}\n", "f, line 1: this is not `ID SECRET`"),
        (f"1 {HEX}0\n", "f, line 1: this is not `ID SECRET`"),
        (f"1 {HEX[:-1]}\n", "f, line 1: this is not `ID SECRET`"),
        (f"1 {HEX[:-1]}g\n", "f, line 1: this is not `ID SECRET`"),
        (HEX, "f, line 1: this is not `ID SECRET`"),
        (f"1 {HEX} {HEX}\n", "f, line 1 has the secret of a pair of hosts"),
        (f"1 {HEX} # {HEX}\n1 h1 {HEX}\n", "f, line 2 has the secret of a pair of hosts"),
        (f"1 h1 h2 {HEX}\n", "f, line 1: this is not `ID SECRET`"),
        ("\N{SNOWMAN}", "f, line 1: this is not `ID SECRET`"),
        ("#" * (1 << 25) + "#", "f is longer than 33554432 bytes"),  # two secrets of each of 65,534 peers fit
    ],
)
def test_an_invalid_file_is_named_without_its_content(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        secrets_file.parse(text.encode(), "f")
    assert said in str(caught.value)
    assert HEX[:16] not in str(caught.value)
    assert caught.value.hint is None or "mrcctl keys generate" in caught.value.hint


HOSTS = {"h0": 0, "h1": 1, "h2": 2, HEX: 3, "h#4": 4, "hôte": 5}
OTHER = HEX[::-1]


def test_secrets_of_pairs_are_a_secret_per_id() -> None:
    text = f"1 {HEX}\n1 h1 {OTHER}  # h1\n2 h#4 {HEX}\n1 {HEX} {OTHER}\n2 h1 {HEX}#{OTHER}\n2\thôte {OTHER}\n"
    first, second = secrets_file.parse(text.encode(), "f", HOSTS, "h0")
    secret, other = bytes.fromhex(HEX), bytes.fromhex(OTHER)
    assert first == Secret(1, secret, {1: other, 3: other})
    assert second == Secret(2, b"", {4: secret, 1: secret, 5: other})
    assert [first.of(peer) for peer in (1, 2)] == [other, secret]
    assert [second.of(peer) for peer in (1, 2)] == [secret, b""]
    assert (first.is_known, second.is_known, Secret(1, b"").is_known) == (True, True, False)
    assert len({first, second, Secret(1, secret)}) == 3
    assert OTHER[:8] not in repr(first)
    assert "pairs" not in repr(second)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"# file\n1 h9 {HEX}\n", "f, line 2: the word between id and secret is not the name of a host"),
        (f"1 {OTHER} {HEX}\n", "f, line 1: the word between id and secret is not the name of a host"),
        (f"1 {HEX[:40]} {HEX}\n", "f, line 1: the word between id and secret is not the name of a host"),
        (f"1 h1 {HEX}\n1 h0 {HEX}\n", "f, line 2: h0 is this host itself"),
        (f"1 h1 {HEX}\n2 h1 {HEX}\n1 h1 {OTHER}\n", "f, line 3: h1 has two secrets with id 1"),
        (f"1 h1 {HEX}\n2 {HEX}\n3 h1 {HEX}\n", "f, line 3: 3 is the third id"),
        (f"1 h1 {HEX[1:]}\n", "f, line 1: this is not `ID SECRET` or `ID PEER SECRET`"),
        (f"h1 {HEX}\n", "f, line 1: this is not `ID SECRET` or `ID PEER SECRET`"),
    ],
)
def test_an_invalid_line_of_a_pair_is_named_without_its_content(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        secrets_file.parse(text.encode(), "f", HOSTS, "h0")
    assert said in str(caught.value)
    assert not [secret for secret in (HEX, OTHER) if secret[:16] in str(caught.value)]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secrets"
    secrets_file.write(path, [secrets_file.new(1)])
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"open to other users \\(mode {mode:04o}\\)"):
        secrets_file.read(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    secrets_file.write(path, [secrets_file.new(1)])
    os.chown(path, 1, -1)
    with pytest.raises(ConfigError, match=r"belongs to another user \(uid 1\)"):
        secrets_file.read(path)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        secrets_file.read(tmp_path / "none")
    assert str(caught.value).startswith(f"{tmp_path}/none: No such file or directory")
    assert caught.value.hint is not None
    assert "mrcctl keys generate" in caught.value.hint


def test_a_relative_name_is_a_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/x")
    assert secrets_file.path_of("mrc") == Path("/run/credentials/x/mrc")
    assert secrets_file.path_of("/etc/mrcd/secrets") == Path("/etc/mrcd/secrets")
