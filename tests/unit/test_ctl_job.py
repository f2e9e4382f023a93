# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl job topology`: the XML has the planes' speed and the CPU's attributes as NCCL counts them."""

import json
import platform
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest
from click.testing import Result

from mrcd.ctl.commands.job import cpu_of_node
from mrcd.ctl.examine.machine import Machine
from mrcd.errors import MachineError
from tests.unit.canned_daemon import Daemon
from tests.unit.interfaces import link

Mrcctl = Callable[..., Result]
CPUINFO = "processor\t: 0\nvendor_id\t: {}\ncpu family\t: {}\nmodel\t\t: {}\nflags\t\t: a b\n\nprocessor\t: 1\n"
FILES = {
    "/sys/class/net/p0/device/numa_node": "1",
    "/sys/devices/system/node/node1/cpumap": "ffffffff,00000000",
    "/proc/cpuinfo": CPUINFO.format("GenuineIntel", 6, 143),
}


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    found: dict[str, int | None] = {"p0": 400_000, "p1": 400_000}
    monkeypatch.setattr(Machine, "links", lambda _: {name: link(name) for name in found})
    monkeypatch.setattr(Machine, "speed_mbit", lambda _, name: found[name])
    monkeypatch.setattr(Machine, "text", lambda _, path: FILES.get(path))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return found


def test_the_interface_has_the_sum_of_the_planes(mrcctl: Mrcctl, daemon: Daemon, speeds: dict[str, int | None]) -> None:
    result = mrcctl("job", "topology", "--interface", "lo")
    assert result.exit_code == 0
    system = ET.fromstring(result.stdout)
    assert [(e.tag, e.attrib) for e in system.iter()] == [
        ("system", {"version": "1"}),
        (
            "cpu",
            {
                "numaid": "1", "affinity": "ffffffff,00000000", "arch": "x86_64", "vendor": "GenuineIntel",
                "familyid": "6", "modelid": "143",
            },
        ),
        ("nic", {}),
        ("net", {"name": "lo", "speed": "800000"}),
    ]  # fmt: skip
    # NCCL's own parser: an element begins with its name, one space is before each attribute.
    assert result.stdout.startswith("<system ")
    assert " />" not in result.stdout
    document = json.loads(mrcctl("job", "topology", "--interface", "lo", "--json").stdout)
    assert (document["speed_mbit"], document["topology"]) == (800_000, result.stdout.rstrip("\n"))


def test_a_nic_without_a_speed_is_named(mrcctl: Mrcctl, daemon: Daemon, speeds: dict[str, int | None]) -> None:
    speeds["p1"] = None
    result = mrcctl("job", "topology", "--interface", "lo")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "p1: the driver does not say the link's speed" in result.stderr


def test_vlans_of_a_nic_have_its_speed_once(
    mrcctl: Mrcctl, daemon: Daemon, speeds: dict[str, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    vlans = {name: link(name, 3 + n, kind="vlan", lower=2, vlan=1 + n) for n, name in enumerate(speeds)}
    monkeypatch.setattr(Machine, "links", lambda _: {"nic": link("nic")} | vlans)
    speeds["nic"] = 400_000
    result = mrcctl("job", "topology", "--interface", "lo")
    assert 'speed="400000"' in result.stdout
    assert 'numaid="-1"' in result.stdout  # there is no such file of a virtual NIC


def test_a_cpu_without_a_name_is_no_traceback() -> None:
    with pytest.raises(MachineError, match="/proc/cpuinfo does not name the CPU"):
        cpu_of_node("0", "3", "x86_64", "")


def test_cpus_as_nccl_names_them() -> None:
    """NCCL shifts the extended family by four bits. Only x86 CPUs have a vendor."""
    amd = cpu_of_node("0", "3", "x86_64", CPUINFO.format("AuthenticAMD", 25, 17))
    assert (amd["vendor"], amd["familyid"], amd["modelid"]) == ("AuthenticAMD", str(0xAF), "17")
    assert cpu_of_node("-1", None, "aarch64", "") == {"numaid": "-1", "arch": "arm64"}
