# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl bugreport`: the files of the archive, without secrets, whatever is missing on the machine."""

import json
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from mrcd.auth import secrets_file
from mrcd.ctl.commands import bugreport
from mrcd.ctl.commands.bugreport import from_document, from_text
from mrcd.errors import DaemonError
from tests.lists import compare
from tests.unit.canned_daemon import EVENT, HISTOGRAM, KEYS, STATUS, Daemon
from tests.unit.served_routes import routes


@pytest.mark.parametrize(
    "text",
    [
        'auth_key = "hunter2"',
        "auth_key = 'hunter2'",
        'auth-keys = ["hunter2", "hunter2"]',
        'key = { h0 = "hunter2" }',
        'token = """\nhunter2\n"""',
        "tls_key: hunter2",
        "PASSWORD=hunter2 quiet",
        '{"api_token": "hunter2"}',
        "Authorization: Bearer hunter2",
        "http://admin:hunter2@10.0.0.1/metrics",
        "-----BEGIN EC PRIVATE KEY-----\nhunter2\n-----END EC PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter2",
        'secret_file = "hunter2"',
    ],
)
def test_secrets_are_removed(text: str) -> None:
    clean, removed = from_text(f"before = 1\n{text}\n")
    assert "hunter2" not in clean
    assert "REMOVED" in clean
    assert clean.startswith("before = 1\n")
    assert removed >= 1


@pytest.mark.parametrize(
    "text",
    [
        'name = "h0"\nprefixes = ["10.0.0.1/32"]\n[health]\nprobe_gap_us = 300',
        "keyboard = 1, monkey: 2, keyed = 3",
        "fe80::1 dev p0 lladdr 02:00:00:00:00:01 REACHABLE",
        "evidence: silent_reports 6",
        "http://127.0.0.1:9479/metrics",
        '"bytes_key": 4, "bytes_value": 128',
        'secret_file = "/etc/mrcd/secrets"',
        '"secret_file": "/etc/mrcd/secrets"',
    ],
)
def test_text_without_secrets_is_kept(text: str) -> None:
    assert from_text(text) == (text, 0)


@pytest.mark.parametrize("line", ["7 {}", "7\t{}  # old", "bad line 3: 7 {}", '"{}"'])
def test_the_secrets_of_a_secrets_file_are_removed(line: str) -> None:
    secret = "0123456789abcDEF" * 4
    clean, removed = from_text(line.format(secret))
    assert (clean, removed) == (line.format("REMOVED"), 1)
    for kept in (secret[:-1], secret + "0", secret[:-1] + "g"):
        assert from_text(kept) == (kept, 0)


def test_a_secret_in_place_of_its_file_is_removed() -> None:
    secret = "0123456789abcDEF" * 4
    assert from_text(f'secret_file = "{secret}"')[0] == 'secret_file = "REMOVED"'
    assert from_document({"secret_file": secret}) == ({"secret_file": "REMOVED"}, 1)


def test_documents_at_any_depth() -> None:
    for kept in ({"key_bytes": 4}, {"auth": {"secret_file": "/etc/mrcd/secrets"}}):
        assert from_document(kept) == (kept, 0)
    document = {"host": "h0", "auth": {"keys": {"h1": "hunter2"}}, "log": ["password=hunter2", 7, None], "token": None}
    clean, removed = from_document(document)
    assert clean == {"host": "h0", "auth": {"keys": "REMOVED"}, "log": ['password="REMOVED"', 7, None], "token": None}
    assert removed == 2


# ---- the archive ----


COMMANDS = {
    "network/hello.txt": "echo token=hunter2 and more",
    "network/fails.txt": "bash --no-such-option",
    "network/absent.txt": "no-such-program",
    "network/slow.txt": "sleep 60",
}


@pytest.fixture(autouse=True)
def few_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bugreport, "COMMANDS", COMMANDS)
    monkeypatch.setattr(bugreport, "PER_NIC", {})
    monkeypatch.delenv("MRCD_CONFIG", raising=False)


def unpack(path: Path) -> dict[str, str]:
    """Returns the files of the archive by name, below its one directory."""
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert len({m.name.split("/")[0] for m in members}) == 1
        files = {m.name.partition("/")[2]: archive.extractfile(m) for m in members}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def report(mrcctl: Callable[..., Result], path: Path, *args: str) -> tuple[dict[str, Any], dict[str, str]]:
    result = mrcctl("bugreport", "--output", str(path), "--timeout", "0.3", "--json", *args)
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout), unpack(path)


def test_a_report_has_all_available_files(mrcctl: Callable[..., Result], daemon: Daemon, tmp_path: Path) -> None:
    daemon.answers["/v1/histograms"] = (200, [HISTOGRAM])
    daemon.answers["/v1/events"] = (200, {"events": [EVENT], "last_id": 1})
    daemon.answers["/v1/keys"] = (200, KEYS)
    config = tmp_path / "mrcd.toml"
    config.write_text('[cluster]\nname = "lab"\n[auth]\nkeys = { h0 = "hunter2" }\n')
    path = tmp_path / "report.tar.gz"
    said, files = report(mrcctl, path, "--config", str(config))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(files["mrcd/status.json"]) == STATUS
    assert json.loads(files["mrcd/events.json"])["events"] == [EVENT]
    assert json.loads(files["mrcd/keys.json"]) == KEYS
    assert files["config/mrcd.toml"] == '[cluster]\nname = "lab"\n[auth]\nkeys = "REMOVED"\n'
    assert files["network/hello.txt"] == 'token="REMOVED" and more\n'
    assert files["network/fails.txt"].startswith("bash: --no-such-option: invalid option\n")
    assert "net.ipv4.tcp_rmem = " in files["kernel/sysctls.txt"]
    assert "hunter2" not in "".join(files.values())
    assert said["secrets_removed"] == 2
    missing = {line.split(": ")[0]: line.split(": ")[1] for line in said["missing"]}
    assert missing["network/absent.txt"] == "no-such-program is not installed"
    assert missing["network/slow.txt"] == "not finished within 0.3 s"
    manifest = json.loads(files["manifest.json"])
    assert {m["file"] for m in manifest["files"]} - {None} == files.keys() - {"manifest.json"}
    (fails,) = (m for m in manifest["files"] if m["file"] == "network/fails.txt")
    assert (fails["how"], fails["error"]) == ("bash --no-such-option", "exit status 2")


def test_a_report_never_has_a_secret(mrcctl: Callable[..., Result], tmp_path: Path) -> None:
    """Not even where a secrets file is named instead of the cluster file, or its lines are in the log."""
    path = tmp_path / "secrets"
    made = secrets_file.new(1)
    secrets_file.write(path, [made])
    (tmp_path / "mrcd.log").write_text(f"line 1 is {path.read_text()}")
    _, files = report(mrcctl, tmp_path / "report.tar.gz", "--config", str(path))
    assert files["config/secrets"] == "1 REMOVED\n"
    assert files["daemon/mrcd.log"] == "line 1 is 1 REMOVED\n"
    assert not [name for name, text in files.items() if made.secret.hex() in text]


def test_without_a_daemon_and_without_tables(mrcctl: Callable[..., Result], tmp_path: Path) -> None:
    said, files = report(mrcctl, tmp_path / "report.tar.gz", "--config", str(tmp_path / "none.toml"))
    missing = " ".join(said["missing"])
    for name in ("mrcd/status.json: mrcd is not running, and no usable", "config/none.toml: No such file"):
        assert name in missing
    assert "kernel/version.txt" in files


def test_a_report_has_every_document_of_the_daemon() -> None:
    """Denials are in the status, and cluster files are read as files."""
    known = {path.removeprefix("/v1/") for path in routes("GET")} - {"denials", "config", "fleet/file"}
    compare(
        bugreport.DOCUMENTS,
        sorted(known),
        in_file="DOCUMENTS in mrcd/ctl/commands/bugreport.py",
        known_from="the routes of mrcd/api/server.py",
    )


@pytest.mark.parametrize("answer", [b"{", [], "text", {"planes": 3}])
def test_invalid_answers_of_the_daemon_do_not_stop_the_report(
    mrcctl: Callable[..., Result], daemon: Daemon, tmp_path: Path, answer: object
) -> None:
    for name in bugreport.DOCUMENTS:
        daemon.answers[f"/v1/{name}"] = (200, answer)
    _, files = report(mrcctl, tmp_path / "report.tar.gz")
    assert "network/hello.txt" in files


def test_an_unwritable_archive_is_an_error(mrcctl: Callable[..., Result], tmp_path: Path) -> None:
    result = mrcctl("bugreport", "-o", str(tmp_path / "nowhere" / "x.tar.gz"))
    assert result.exit_code == 2
    assert "No such file or directory\n  hint: choose another file with --output FILE" in result.stderr


def test_long_logs_lose_their_beginning(
    mrcctl: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bugreport, "MOST_BYTES", 100)
    (tmp_path / "mrcd.log").write_text("".join(f"line {n:03}\n" for n in range(100)))
    _, files = report(mrcctl, tmp_path / "report.tar.gz")
    assert len(files["daemon/mrcd.log"]) == 100
    assert files["daemon/mrcd.log"].endswith("line 099\n")


def test_a_report_without_mrcds_data_is_not_a_success(
    mrcctl: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise DaemonError("mrcd.sock: permission denied")

    monkeypatch.setattr("mrcd.ctl.client.Client.get", refused)
    result = mrcctl("bugreport", "-o", str(tmp_path / "report.tar.gz"))
    assert result.exit_code == 2
    assert "the archive lacks mrcd's own data: mrcd/status.json: mrcd.sock: permission denied" in result.stderr
    assert (tmp_path / "report.tar.gz").exists()
