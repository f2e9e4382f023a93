# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl fabric check --running` with the routes of real kernels: the lab's switches."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from labkit.cluster.api import Lab
from mrcd.planner.switches.iproute2 import SID_DEVICE

SWITCH = "t1-1-2"
UN = ["encap", "seg6local", "action", "End", "flavors", "next-csid", "lblen", "32", "nflen", "16"]
SID, TO_T0 = "5f00:0:8802::/48", "5f00:0:4800::/48"


def _checked(lab: Lab, directory: Path) -> Any:
    """Saves what every switch runs, and returns the document of the check."""
    for name, node in lab.fabric.nodes.items():
        if node.switch:
            show = lab.exec(name, ["ip", "-6", "-j", "route", "show", "table", "all"], check=True)
            (directory / f"{name}.json").write_text(show.stdout)
    argv = [sys.executable, "-m", "mrcd.ctl", "fabric", "check", "--running", "--evs", "5000", "--json", str(directory)]
    done = subprocess.run([*argv, str(lab.state.cluster_file)], capture_output=True, text=True)
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert done.returncode == (not document["correct"])
    return document


def test_switches_as_the_lab_makes_them_run_the_plan(healthy: Lab, tmp_path: Path) -> None:
    document = _checked(healthy, tmp_path)
    assert (document["findings"], document["mistakes"], document["correct"]) == ([], [], True)
    assert document["reports"] == {"iproute2": document["switches"]}
    assert document["followed"] >= 5000


@pytest.mark.parametrize(
    ("prefix", "fault", "affects"),
    [
        (SID, "SID missing", f"all EVs through {SWITCH}"),
        (TO_T0, "route missing", f"EVs through {SWITCH} to h0, h1"),
    ],
)
def test_what_one_switch_has_lost_is_named(healthy: Lab, tmp_path: Path, prefix: str, fault: str, affects: str) -> None:
    (row,) = json.loads(healthy.exec(SWITCH, ["ip", "-6", "-j", "route", "show", prefix], check=True).stdout)
    via = ["via", row["gateway"]] if prefix == TO_T0 else UN
    healthy.exec(SWITCH, ["ip", "-6", "route", "del", prefix], check=True)
    try:
        document = _checked(healthy, tmp_path)
    finally:
        healthy.exec(SWITCH, ["ip", "-6", "route", "add", prefix, *via, "dev", row["dev"]], check=True)
    (found,) = document["findings"]
    assert (found["switch"], found["prefix"], found["fault"]) == (SWITCH, prefix, fault)
    assert (found["affects"], found["runs"]) == (affects, None)
    assert [m["mistake"] for m in document["mistakes"]] == ["lost"]
    assert _checked(healthy, tmp_path)["correct"]


def test_a_sid_is_lost_with_its_interface(healthy: Lab, tmp_path: Path) -> None:
    """The kernel drops it, and does not bring it back with the interface."""
    for state in ("down", "up"):
        healthy.exec(SWITCH, ["ip", "link", "set", SID_DEVICE, state], check=True)
    document = _checked(healthy, tmp_path)
    healthy.exec(SWITCH, ["ip", "-6", "route", "add", SID, *UN, "dev", SID_DEVICE], check=True)
    assert [(f["switch"], f["prefix"], f["fault"]) for f in document["findings"]] == [(SWITCH, SID, "SID missing")]
    assert _checked(healthy, tmp_path)["correct"]
