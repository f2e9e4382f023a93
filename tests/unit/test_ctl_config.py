# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl config`: check, diff and show."""

import json
import socket
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from mrcd.config import cluster_file
from mrcd.versions import SCHEMA_VERSION
from tests.cluster_files import host
from tests.unit.canned_daemon import Daemon
from tests.unit.test_config_diff import TEXT

CLUSTER = """
[cluster]
planes = 2
t0s = 2
t1s = 3
mtu = 1500
"""


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    file = tmp_path / "mrcd.toml"
    hosts = [host(0, name='"a"'), host(1, name='"b"'), host(2, name='"c"', t0=1, port=0)]
    file.write_text(CLUSTER + "".join(hosts))
    return file


def test_config_check(mrcctl: Callable[..., Result], checked: Path) -> None:
    result = mrcctl("config", "check", str(checked))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"{checked}: valid",
        "  cluster     mrc: 3 hosts, 2 planes",
        "  fabric      in each plane 2 T0s, 3 T1s",
        "  paths       2 to 6 EVs per peer (at most 256)",
        "  data plane  encapsulation usid, granularity burst",
        "  MTU         planes 1500, inner 1420 bytes",
        f"  seen from   a: p0, p1 (the file has no host {socket.gethostname()}, as this machine is called)",
    ]
    document = json.loads(mrcctl("config", "check", str(checked), "--host", "c", "--json").stdout)
    assert (document["host"], document["evs"], document["inner_mtu"]) == ("c", {"min": 6, "max": 6}, 1420)


@pytest.mark.parametrize(("machine", "in_file"), [("b.example.com", "b"), ("b", "b.example.com")])
def test_config_check_finds_a_short_name_and_a_full_one(
    mrcctl: Callable[..., Result],
    checked: Path,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    in_file: str,
) -> None:
    checked.write_text(checked.read_text().replace('"b"', f'"{in_file}"'))
    monkeypatch.setattr(socket, "gethostname", lambda: machine)
    document = json.loads(mrcctl("config", "check", str(checked), "--json").stdout)
    assert (document["host"], document["machine"]) == (in_file, None)
    (run_dir / "running.json").write_text(json.dumps({"host": machine}))  # a reload accepts it, too
    assert json.loads(mrcctl("config", "check", str(checked), "--json").stdout)["host"] == in_file


def test_config_check_refuses_a_file_without_the_host_of_this_machine(
    mrcctl: Callable[..., Result], checked: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_dir / "running.json").write_text('{"host": "h7"}')
    result = mrcctl("config", "check", str(checked))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no host is named 'h7', as which mrcd runs on this machine" in result.stderr
    assert mrcctl("config", "check", str(checked), "--host", "b").exit_code == 0
    (run_dir / "running.json").write_text('{"host": "b"}')
    assert mrcctl("config", "check", str(checked)).stdout.endswith("  seen from   b: p0, p1\n")
    monkeypatch.setenv("MRCD_HOST", "h8")
    assert "no host named 'h8'" in mrcctl("config", "check", str(checked)).stderr


def test_config_check_finds_the_file_of_mrcd(
    mrcctl: Callable[..., Result], checked: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["/v1/config"] = (200, {"file": str(checked)})
    assert mrcctl("config", "check").stdout.startswith(f"{checked}: valid\n")
    daemon.answers["/v1/config"] = (500, {"error": "no"})
    monkeypatch.setenv("MRCD_CONFIG", "/nowhere/mrcd.toml")
    assert "/nowhere/mrcd.toml: No such file" in mrcctl("config", "check").stderr


def test_config_check_looks_from_every_source_of_paths(mrcctl: Callable[..., Result], checked: Path) -> None:
    one = '[[paths]]\nsource = "b"\npeer = "c"\nplane = 0\nsegments = ["5f00::1"]\n'
    checked.write_text(checked.read_text().replace("mtu = 1500", "evs_per_peer = 4") + one * 3)
    result = mrcctl("config", "check", str(checked), "--host", "a")
    assert result.exit_code == 1
    assert "more than 2 paths b → c on plane 0" in result.stderr


# ---- diff and show ----


SETTING = ("overdue_ms = 10", "overdue_ms = 12")


def running(file: Path) -> dict[str, object]:
    document = cluster_file.parse(TEXT).model_dump(mode="json")
    return {"schema_version": SCHEMA_VERSION, "file": str(file), "host": "h0", "config": document}


@pytest.fixture
def file(daemon: Daemon, tmp_path: Path) -> Path:
    """The cluster file, and a daemon that runs it."""
    path = tmp_path / "cluster.toml"
    path.write_text(TEXT)
    daemon.answers["/v1/config"] = (200, running(path))
    return path


def test_no_difference(mrcctl: Callable[..., Result], file: Path) -> None:
    result = mrcctl("config", "diff")
    assert (result.exit_code, result.stdout) == (0, "no difference: the file equals the running configuration\n")
    assert json.loads(mrcctl("config", "diff", "--json").stdout)["changed"] is False


def test_a_file_other_than_the_daemons_is_compared(mrcctl: Callable[..., Result], file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(TEXT.replace(*SETTING))
    document = json.loads(mrcctl("config", "diff", str(other), "--json").stdout)
    assert (document["file"], document["host"]) == (str(other), "h0")
    assert document["settings"] == [{"key": "health.overdue_ms", "before": 10, "after": 12}]


def test_a_wrong_file_is_a_configuration_error(mrcctl: Callable[..., Result], file: Path) -> None:
    file.write_text(TEXT + "planets = 9\n")
    result = mrcctl("config", "diff")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "planets: unknown key" in result.stderr


def test_without_a_daemon_the_last_running_file_is_compared(
    mrcctl: Callable[..., Result], file: Path, daemon: Daemon, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.stop()
    monkeypatch.setenv("MRCD_CONFIG", str(file))
    assert mrcctl("config", "diff").exit_code == 2
    (run_dir / "running.json").write_text(json.dumps(running(file)))
    file.write_text(TEXT.replace(*SETTING))
    result = mrcctl("config", "diff")
    assert result.exit_code == 0
    assert "~ health.overdue_ms: 10 → 12" in result.stdout
    assert "not running" in result.stderr


def test_show_what_runs(mrcctl: Callable[..., Result], file: Path) -> None:
    file.unlink()  # the output is of the running configuration, not of the file
    brief = tomllib.loads(mrcctl("config", "show").stdout)
    whole = tomllib.loads(mrcctl("config", "show", "--effective").stdout)
    assert brief["cluster"] == {"planes": 2, "t0s": 2, "t1s": 3, "evs_per_peer": 8}
    assert (whole["cluster"]["mtu"], whole["health"]["probe_packets"]) == (9100, 8)
    document = json.loads(mrcctl("config", "show", "--effective", "--json").stdout)
    assert (document["schema_version"], document["host"], document["effective"]) == (SCHEMA_VERSION, "h0", True)
    assert document["config"]["cluster"]["mtu"] == 9100


def test_show_a_file(mrcctl: Callable[..., Result], file: Path) -> None:
    result = mrcctl("config", "show", "--effective", "--host", "h2", str(file))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == f"# {file}, as h2 sees it"
