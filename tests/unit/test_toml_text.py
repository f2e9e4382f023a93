# SPDX-License-Identifier: BSD-2-Clause
"""Tests that the configuration printed as TOML means the same when it is read again."""

import tomllib
from pathlib import Path

import pytest

from mrcd.config import cluster_file, toml_text
from mrcd.fabric import topology
from mrcd.fabric.topology import Plan

EXAMPLE = Path(__file__).parents[2] / "scripts/deploy/mrcd.toml"
ODD = r"""
[cluster]
name = "quo\"te \\ tab\t \u007f ünï"
planes = 2
t0s = 1
t1s = 0
granularity = "packet"
ev_min_active = 1
[interfaces]
names = ["e\"0", "e1"]
[health]
grey_ratio = 1e-5
loss_ratio = 0.5
[[hosts]]
name = "a"
id = 0
port = 0
prefixes = ["10.99.0.1/32", "fd00:99::1/128"]
hook = "tc"
interfaces = ["x0", "x1"]
[[hosts]]
name = "b"
id = 7
port = 1
prefixes = ["10.99.0.2/32"]
[[paths]]
source = "a"
peer = "b"
plane = 1
segments = ["5f00:0:4000::", "5f00:0:c000::"]
label = "x # y"
"""


def plan(text: str) -> Plan:
    read = cluster_file.parse(text)
    return topology.plan(read, read.hosts[0].name)


def read_again(lines: list[str]) -> cluster_file.Config:
    return cluster_file.parse("\n".join(lines))


@pytest.mark.parametrize("text", [EXAMPLE.read_text(), ODD], ids=["example", "odd"])
def test_printed_toml_is_parsed_to_the_same_configuration(text: str) -> None:
    mine = plan(text)
    assert read_again(toml_text.lines(toml_text.given(mine.config), defaults=False)) == mine.config
    printed = toml_text.lines(toml_text.effective(mine.config), defaults=True)
    again = topology.plan(read_again(printed), mine.host.name)
    assert toml_text.effective(again.config) == toml_text.effective(mine.config)
    assert (again.peers, again.interfaces) == (mine.peers, mine.interfaces)


def test_automatic_values_are_resolved() -> None:
    document = tomllib.loads("\n".join(toml_text.lines(toml_text.effective(plan(ODD).config), defaults=True)))
    assert (document["health"]["probe_packets"], document["health"]["probe_late_ms"]) == (64, 5)  # packet granularity
    assert document["cluster"]["udp_port"] == 4797
    assert document["interfaces"]["names"] == ['e"0', "e1"]


def test_defaults_are_marked_and_set_values_are_not() -> None:
    printed = toml_text.lines(toml_text.effective(plan(ODD).config), defaults=True)
    assert "udp_port = 4797  # default" in printed
    assert "probe_packets = 64  # default" in printed
    assert "t1s = 0" in printed
    assert "loss_ratio = 0.5" in printed
