# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl config check`: its output, and all errors at once."""

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.cluster_files import host
from tests.unit.canned_daemon import Daemon

CLUSTER = """
[cluster]
planes = 2
t0s = 2
t1s = 3
mtu = 1500
"""


@pytest.fixture
def cluster_file(tmp_path: Path) -> Path:
    file = tmp_path / "mrcd.toml"
    hosts = [host(0, name='"a"'), host(1, name='"b"'), host(2, name='"c"', t0=1, port=0)]
    file.write_text(CLUSTER + "".join(hosts))
    return file


def test_config_check(mrcctl: Callable[..., Result], cluster_file: Path) -> None:
    result = mrcctl("config", "check", str(cluster_file))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"{cluster_file}: valid",
        "  cluster     mrc: 3 hosts, 2 planes",
        "  fabric      in each plane 2 T0s, 3 T1s",
        "  paths       2 to 6 EVs per peer (at most 256)",
        "  data plane  encapsulation usid, granularity burst",
        "  MTU         planes 1500, inner 1420 bytes",
        f"  seen from   a: p0, p1 (the file has no host {socket.gethostname()}, as this machine is called)",
    ]
    document = json.loads(mrcctl("config", "check", str(cluster_file), "--host", "c", "--json").stdout)
    assert (document["host"], document["evs"], document["inner_mtu"]) == ("c", {"min": 6, "max": 6}, 1420)


def test_config_check_tells_all_faults(mrcctl: Callable[..., Result], cluster_file: Path) -> None:
    cluster_file.write_text(cluster_file.read_text().replace("planes = 2", "plains = 2").replace("id = 2", "id = -2"))
    result = mrcctl("config", "check", str(cluster_file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"mrcctl: {cluster_file}: ")
    assert "cluster.plains: unknown key" in result.stderr
    assert "hosts[2].id: " in result.stderr


def test_config_check_refuses_a_file_without_the_host_of_this_machine(
    mrcctl: Callable[..., Result], cluster_file: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_dir / "running.json").write_text('{"host": "h7"}')
    result = mrcctl("config", "check", str(cluster_file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no host is named 'h7', as which mrcd runs on this machine" in result.stderr
    assert mrcctl("config", "check", str(cluster_file), "--host", "b").exit_code == 0
    (run_dir / "running.json").write_text('{"host": "b"}')
    assert mrcctl("config", "check", str(cluster_file)).stdout.endswith("  seen from   b: p0, p1\n")
    monkeypatch.setenv("MRCD_HOST", "h8")
    assert "no host named 'h8'" in mrcctl("config", "check", str(cluster_file)).stderr


def test_config_check_finds_the_file_of_mrcd(
    mrcctl: Callable[..., Result], cluster_file: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers["/v1/config"] = (200, {"file": str(cluster_file)})
    assert mrcctl("config", "check").stdout.startswith(f"{cluster_file}: valid\n")
    daemon.answers["/v1/config"] = (500, {"error": "no"})
    monkeypatch.setenv("MRCD_CONFIG", "/nowhere/mrcd.toml")
    assert "/nowhere/mrcd.toml: No such file" in mrcctl("config", "check").stderr


def test_config_check_of_an_unknown_host(mrcctl: Callable[..., Result], cluster_file: Path) -> None:
    result = mrcctl("config", "check", str(cluster_file), "--host", "z")
    assert result.exit_code == 1
    assert "no host named 'z'" in result.stderr


def test_config_check_looks_from_every_source_of_paths(mrcctl: Callable[..., Result], cluster_file: Path) -> None:
    one = '[[paths]]\nsource = "b"\npeer = "c"\nplane = 0\nsegments = ["5f00::1"]\n'
    cluster_file.write_text(cluster_file.read_text().replace("mtu = 1500", "evs_per_peer = 4") + one * 3)
    result = mrcctl("config", "check", str(cluster_file), "--host", "a")
    assert result.exit_code == 1
    assert "more than 2 paths b → c on plane 0" in result.stderr
