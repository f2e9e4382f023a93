# SPDX-License-Identifier: BSD-2-Clause
"""Tests the cluster file: accepted values, limits, overlaps, unreadable files, and what is printed of it as TOML."""

import itertools
import tomllib
from contextlib import nullcontext
from ipaddress import ip_network
from pathlib import Path

import pytest

from mrcd.config import cluster_file, sections, toml_text
from mrcd.errors import ConfigError
from mrcd.fabric import topology
from mrcd.fabric.topology import Plan
from tests.cluster_files import TWO, host


def test_the_host_s_own_settings_go_before_the_cluster_s() -> None:
    text = (
        '[cluster]\nplanes = 2\n[interfaces]\nnames = ["eth0", "eth1"]\nhook = "xdp"\n'
        + host(0)
        + host(1, more='interfaces = ["a", "b"]\nhook = "tc"')
    )
    c = cluster_file.parse(text)
    assert c.interface_names(c.host("h0")) == ["eth0", "eth1"]
    assert c.hook(c.host("h0")) == "xdp"
    assert c.interface_names(c.host("h1")) == ["a", "b"]
    assert c.hook(c.host("h1")) == "tc"


def test_prefixes_of_one_host_may_overlap_and_those_of_neighbours_touch() -> None:
    for one, other, words in (
        ('["10.0.0.0/25", "fd00:1::/64"]', '["10.0.0.128/25", "fd00:1:0:1::/64"]', None),
        ('["10.98.0.0/24", "10.98.0.1/32"]', '["10.99.0.2/32"]', None),
        ('["10.98.0.0/24", "10.98.0.1/32"]', '["10.98.0.2/32"]', "overlaps"),
    ):
        with pytest.raises(ConfigError, match=words) if words else nullcontext():
            cluster_file.parse(host(0, prefixes=one) + host(1, prefixes=other))


@pytest.mark.parametrize(("key", "most"), [("id", 65534), ("port", 1023), ("t0", 511)])
def test_numbers_of_hosts_have_limits(key: str, most: int) -> None:
    def parsed(value: int) -> int:
        return int(getattr(cluster_file.parse("[cluster]\nt0s = 512\n" + host(7, **{key: value})).hosts[0], key))

    assert (parsed(0), parsed(most)) == (0, most)
    for value in (-1, most + 1):
        with pytest.raises(ConfigError, match=rf"hosts\[0\]\.{key}"):
            parsed(value)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("https://e1", "https://e1:2379"),
        ("http://10.0.0.1:1/", "http://10.0.0.1:1"),
        ("https://[fd00::1]", "https://[fd00::1]:2379"),
    ],
)
def test_members_of_etcd_have_a_default_port(url: str, base: str) -> None:
    assert sections.base_url(url) == base


@pytest.mark.parametrize("key", ["loss_ratio", "grey_ratio", "grey_false_alarms"])
def test_ratios_have_limits(key: str) -> None:
    for value in ("0", "-0.1", "nan", "inf") + (("1.01",) if key.endswith("ratio") else ()):
        with pytest.raises(ConfigError, match=rf"health\.{key}"):
            cluster_file.parse(f"[health]\n{key} = {value}\n" + TWO)


# ---- overlapping prefixes ----


def test_overlapping_prefixes_are_found_wherever_they_stand() -> None:
    """Against the definition: any two that share an address, in any order of the hosts."""
    pool = ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.2.0.0/16", "11.0.0.0/8", "fd00::/16", "fd00:1::/32"]
    found = set()
    for chosen in itertools.permutations(pool, 3):
        pairs = itertools.combinations(map(ip_network, chosen), 2)
        overlap = any(a.version == b.version and a.overlaps(b) for a, b in pairs)
        found.add(overlap)
        with pytest.raises(ConfigError, match="overlaps") if overlap else nullcontext():
            cluster_file.parse("".join(host(i, prefixes=f'["{p}"]') for i, p in enumerate(chosen)))
    assert found == {True, False}


# ---- files ----


def test_of_many_errors_a_few_are_named() -> None:
    text = "".join(f"[[hosts]]\nid = {n}\n" for n in range(3000))
    with pytest.raises(ConfigError) as refused:
        cluster_file.parse(text)
    message = str(refused.value.args[0])
    assert message.count("required, but missing") == 10
    assert len(message) < 2000
    assert message.endswith(" more errors")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b'[cluster]\nname = "\xff\xfe"\n')
    (tmp_path / "wrong").write_text("[cluster]\nplanes = 0\n" + TWO)
    (tmp_path / "directory").mkdir()
    for name, words in {
        "wrong": "line 2: cluster.planes: must be greater than or equal to 1, not 0",
        "none": "No such file or directory\n  hint: name the cluster file (mrcd: --config FILE)",
        "directory": "Is a directory",
        "binary": "not UTF-8 text: ",
    }.items():
        with pytest.raises(ConfigError) as caught:
            cluster_file.load(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: {words}")
        assert (" at byte 18" in str(caught.value)) is (name == "binary")


# ---- printed as TOML ----


EXAMPLE = Path(__file__).parents[2] / "scripts/deploy/mrcd.toml"
ODD = r"""
[cluster]
name = "quo\"te \\ ünï"
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


def test_a_host_is_found_by_its_short_name_and_by_its_qualified_one() -> None:
    short, long = cluster_file.parse(TWO), cluster_file.parse(TWO.replace('"h0"', '"h0.example.org"'))
    assert short.host("h0.example.org").id == long.host("h0").id == long.host("h0.example.org").id == 0
    for config, name in ((long, "h0.example.com"), (short, "h0-1"), (short, "h2.h0"), (short, "")):
        with pytest.raises(ConfigError, match="no host named"):
            config.host(name)
    both = cluster_file.parse(TWO.replace('"h0"', '"h0.example.org"').replace('"h1"', '"h0.example.com"'))
    assert both.host("h0.example.com").id == 1
    with pytest.raises(ConfigError, match=r"several hosts that 'h0' may be: h0\.example\.org, h0\.example\.com"):
        both.host("h0")
