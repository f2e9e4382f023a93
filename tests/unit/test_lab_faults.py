# SPDX-License-Identifier: BSD-2-Clause
"""Tests the lab's faults as data: their targets, limits and words, and the records of the fault program."""

from dataclasses import fields
from typing import Any

import pytest

from labkit.cluster.fabric import Parameters, PortRef, build
from labkit.faults import fault_program, inject, targets
from labkit.faults.inject import Fault, PortState
from mrcd.errors import UsageError
from mrcd.kernel import btf

FABRIC = build("x", Parameters())


def test_fault_programs_see_every_packet_once_and_never_in_a_host() -> None:
    nic = targets.parse(FABRIC, "nic:h3:1")
    assert nic.taps == ((PortRef("t0-1-1", "h3"), "ingress"), (PortRef("t0-1-1", "h3"), "egress"))
    link = targets.parse(FABRIC, "link:2:0:3")
    assert link.taps == ((PortRef("t1-2-3", "t0-0"), "ingress"), (PortRef("t0-2-0", "t1-3"), "ingress"))
    t0 = targets.parse(FABRIC, "t0:0:1")
    assert {e.port for e, _ in t0.taps} == {"h2", "h3", "t1-0", "t1-1", "t1-2", "t1-3"}
    assert {(e.node, d) for e, d in t0.taps} == {("t0-0-1", "ingress")}
    assert t0.closers == tuple(e for e, _ in t0.taps)
    assert len(t0.ends) == 12


@pytest.mark.parametrize("text", ["t1:0", "t1:4:0", "t1:0:4", "t0:0:2", "link:0:0:4", "nic:h4:0", "nic:0:0", "h0", ""])
def test_unknown_targets_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError):
        targets.parse(FABRIC, text)


@pytest.mark.parametrize("text", ["nic:h3:1", "link:2:0:3", "t0:0:1"])
def test_the_two_directions_are_the_halves_of_both(text: str) -> None:
    both, up, down = (targets.parse(FABRIC, text, d) for d in targets.DIRECTIONS)
    assert set(up.taps).isdisjoint(down.taps)
    assert {*up.taps, *down.taps} == set(both.taps)
    assert {*up.ends, *down.ends} == set(both.ends)
    assert len(up.ends) == len(down.ends)
    assert both.closers == up.closers == down.closers


def test_faults_of_a_t1_have_no_direction() -> None:
    with pytest.raises(UsageError, match="has no direction") as caught:
        targets.parse(FABRIC, "t1:0:2", "up")
    assert "link:0:T0:2" in (caught.value.hint or "")


def test_overlapping_faults_add_up_and_healing_one_leaves_the_other() -> None:
    slow, cut = Fault(rate_bits_per_s=10**8), Fault(down=True)
    shared = PortRef("t1-0-1", "t0-0")
    both = inject.desired(FABRIC, {"t1:0:1": cut, "link:0:0:1": slow, "t0:0:0": Fault(rate_bits_per_s=10**9)})
    assert both[shared] == PortState(down=True, rate_bits_per_s=10**8)
    assert inject.desired(FABRIC, {"link:0:0:1": slow})[shared] == PortState(rate_bits_per_s=10**8)
    assert inject.desired(FABRIC, {"t1:0:1": Fault(drop=1.0)}) == {}


def test_a_small_mtu_is_one_of_switch_ports() -> None:
    assert inject.desired(FABRIC, {"nic:h3:1": Fault(mtu=1500)}) == {PortRef("t0-1-1", "h3"): PortState(mtu=1500)}
    ports = inject.desired(FABRIC, {"link:0:0:1": Fault(mtu=1500), "t1:0:1": Fault(mtu=1400)})
    assert ports[PortRef("t1-0-1", "t0-0")] == ports[PortRef("t0-0-0", "t1-1")] == PortState(mtu=1400)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({}, "no effect"),
        ({"drop": 20.0}, None),
        ({"ce": -0.1}, None),
        ({"down": True, "drop": 1.0}, None),
        ({"down": True, "rate_bits_per_s": 10**6}, None),
        ({"down": True, "mtu": 1500}, None),
        ({"mtu": 1279}, "out of range"),
        ({"mtu": 1500, "direction": "up"}, "both directions"),
        ({"down": True, "direction": "up"}, "both directions"),
        ({"drop": 1.0, "direction": "left"}, "not a direction"),
    ],
)
def test_invalid_faults_are_refused(wrong: dict[str, Any], why: str | None) -> None:
    with pytest.raises(UsageError, match=why):
        Fault(**wrong)


def test_a_fault_names_its_effects() -> None:
    ratios = ", ".join(f"{name} 2.5%" for name in fault_program.RATIOS)
    given: dict[str, Any] = dict.fromkeys(fault_program.RATIOS, 0.025)
    fault = Fault(**given, rate_bits_per_s=10**6, delay_s=0.005, direction="up")
    assert fault.what == f"{ratios}, rate 1 Mbit/s, delay 5 ms (up only)"
    assert Fault(mtu=1500).what == "MTU 1500"
    assert Fault(down=True).what == "link down"


def test_the_records_of_the_program_are_those_of_python() -> None:
    with btf.of_object(fault_program.OBJECT) as types:
        settings, counters = (btf.struct(types, name) for name in ("fault_settings", "fault_counters"))
    assert settings.names == fault_program.RATIOS, "bpf/lab/fault.bpf.c, or RATIOS in labkit/faults/fault_program.py"
    members = [field.name.removesuffix("_skbs") for field in fields(fault_program.Counters)]
    assert list(counters.names or ()) == members, "bpf/lab/fault.bpf.c, or Counters in labkit/faults/fault_program.py"
