# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl fabric`: plan, config and check, without a daemon."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from mrcd.config import cluster_file
from mrcd.ctl.commands.fabric import FORMATS as NAMES
from mrcd.planner.switches.formats import FORMATS

Mrcctl = Callable[..., Result]
SIZES = ("--hosts", "12", "--planes", "2", "--radix", "8")


@pytest.fixture
def planned(mrcctl: Mrcctl, tmp_path: Path) -> Path:
    file = tmp_path / "planned.toml"
    assert mrcctl("fabric", "plan", *SIZES, "--output", str(file)).exit_code == 0
    return file


def test_a_plan_as_json_has_the_cluster_file(mrcctl: Mrcctl, tmp_path: Path) -> None:
    file, cables = tmp_path / "a.toml", tmp_path / "a.csv"
    result = mrcctl("fabric", "plan", *SIZES, "--json", "--output", str(file), "--cables", str(cables))
    document = json.loads(result.stdout)
    assert document["schema_version"]
    assert (document["nics"], document["t0s"], document["t1s"]) == (24, 3, 4)
    assert document["cluster_file"] == file.read_text()
    assert (document["output"], document["cables_file"]) == (str(file), str(cables))
    rows = list(csv.reader(cables.read_text().splitlines()))
    assert rows[0] == ["lower", "lower_port", "upper", "upper_port"]
    assert len(rows) == 1 + document["cables"]["host_t0"] + document["cables"]["t0_t1"]
    assert next(o for o in document["failures"]["outcomes"] if o["part"] == "t1")["evs"] == 7


def test_names_and_prefixes_of_hosts(mrcctl: Mrcctl, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    options = ("--host-name", "rack1-", "--prefix", "10.1.0.0/24", "--name", "train", "--mtu", "4200", "--evs", "4")
    assert mrcctl("fabric", "plan", *SIZES, *options, "--output", str(file)).exit_code == 0
    found = cluster_file.load(file)
    assert (found.cluster.name, found.cluster.mtu, found.cluster.evs_per_peer) == ("train", 4200, 4)
    assert [h.name for h in found.hosts][:2] == ["rack1-01", "rack1-02"]
    assert str(found.hosts[11].prefixes[0]) == "10.1.11.0/24"


def test_a_plan_that_cannot_be_written_is_one_line(mrcctl: Mrcctl, tmp_path: Path) -> None:
    result = mrcctl("fabric", "plan", *SIZES, "--output", str(tmp_path / "none" / "a.toml"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"mrcctl: {tmp_path}/none/a.toml: No such file or directory\n"


def test_the_configuration_of_a_switch(mrcctl: Mrcctl, planned: Path) -> None:
    result = mrcctl("fabric", "config", str(planned), "--format", "iproute2", "--switch", "t1-1-3")
    f = FORMATS["iproute2"]
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f.text(f.switches(cluster_file.load(planned)).switch("t1-1-3"))
    document = json.loads(
        mrcctl("fabric", "config", str(planned), "--format", "iproute2", "--switch", "t1-1-3", "--json").stdout
    )
    assert (document["switch"], document["text"]) == ("t1-1-3", result.stdout)


def test_the_cluster_file_is_mrcd_s(mrcctl: Mrcctl, planned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MRCD_CONFIG", str(planned))
    assert mrcctl("fabric", "config", "--format", "eos", "--switch", "t0-0-0").stdout.startswith("! t0-0-0")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_for_all_switches_is_checked(mrcctl: Mrcctl, planned: Path, tmp_path: Path, name: str) -> None:
    directory, suffix = tmp_path / "all", FORMATS[name].suffix
    result = mrcctl("fabric", "config", str(planned), "--format", name, "--output", str(directory))
    assert result.stdout == f"14 files in {directory}: t0-0-0.{suffix} to t1-1-3.{suffix}\n"
    check = ("fabric", "check", "--format", name, "--evs", "1000", str(directory), str(planned))
    result = mrcctl(*check)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith(f" packets through 14 switches ({name}): no mistake\n")

    one = directory / f"t1-0-2.{suffix}"
    one.write_text((directory / f"t1-0-1.{suffix}").read_text())
    result = mrcctl(*check, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["correct"]) == (1, False)
    assert {m["mistake"] for m in document["mistakes"]} >= {"lost", "address missing"}
    assert "lost" in mrcctl(*check).stdout

    one.write_text("something else")
    result = mrcctl(*check)
    assert (result.exit_code, result.stdout) == (1, "")
    assert str(one) in result.stderr
    assert "is not understood" in result.stderr
    one.unlink()
    result = mrcctl(*check)
    assert (result.exit_code, result.stderr.splitlines()[0]) == (2, f"mrcctl: {one}: No such file or directory")


def test_formats_are_named_once() -> None:
    """The command lists them without importing numpy."""
    assert list(NAMES) == list(FORMATS)
