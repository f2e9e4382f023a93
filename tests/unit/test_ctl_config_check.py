# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl config check`: its output, and all errors at once."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.cluster_files import host

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
        "  seen from   a: p0, p1",
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
