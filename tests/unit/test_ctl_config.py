# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl config diff | show` and `mrcctl reload`: requests to the daemon, output, errors."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from mrcd.config import cluster_file
from mrcd.versions import SCHEMA_VERSION
from tests.unit.canned_daemon import Daemon
from tests.unit.test_config_diff import TEXT

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
