# SPDX-License-Identifier: BSD-2-Clause
"""Tests the configurations of switches: against files of the documented syntax, and by following EVs through them."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from mrcd.config import cluster_file
from mrcd.ctl.commands.fabric_documents import follow_random_evs
from mrcd.errors import MrcdError, UsageError
from mrcd.planner.fabric_plan import Wanted, plan
from mrcd.planner.switches.formats import FORMATS, Format
from mrcd.planner.switches.model import Switch, usid_prefix
from mrcd.planner.walk import Network, Result

GOLDEN = Path(__file__).with_name("switches")
SMALL = (GOLDEN / "cluster.toml").read_text()
PLANNED = plan(Wanted(hosts=12, planes=2, radix=8, evs_per_peer=16)).cluster_file()

each_format = pytest.mark.parametrize("f", FORMATS.values(), ids=FORMATS)
Change = Callable[[Switch, str], str]


def followed(f: Format, text: str, change: Change = lambda _, t: t, evs: int = 200) -> Result:
    """Writes all switches, changes the texts, reads them, and follows EVs through them."""
    config = cluster_file.parse(text)
    switches = f.switches(config)
    wiring = [switches.switch(name) for name in switches.names]
    network = Network(config, wiring, {s.name: f.read(change(s, f.text(s))) for s in wiring})
    follow_random_evs(network, len(config.hosts), [s.name for s in wiring], evs, random.Random(1))
    return network.result


@each_format
def test_the_text_is_that_of_the_documented_syntax(f: Format) -> None:
    """Of a T0, which has all that a T1 has, and hosts with filters. Below, all switches are read back."""
    golden = GOLDEN / f"{f.name}-t0-0-0.{f.suffix}"
    assert f.text(f.switches(cluster_file.parse(SMALL)).switch("t0-0-0")) == golden.read_text()


@each_format
@pytest.mark.parametrize(
    "settings",
    [
        *("[cluster]", "[cluster]\nrails = 2", '[cluster]\nencapsulation = "ecmp"'),
        *('[cluster]\nrails = 2\nencapsulation = "ecmp"', "[switches]\nsource_filters = false"),
    ],
)
def test_every_path_arrives_through_what_was_written(f: Format, settings: str) -> None:
    """By uSIDs, and by the plain routes of ecmp from every switch to every host."""
    text = PLANNED.replace(settings.splitlines()[0], settings)
    result = followed(f, text)
    assert result.followed >= 200
    assert not result.mistakes, result.examples
    reading = f.read(f.text(f.switches(cluster_file.parse(text)).switch("t0-0-0")))
    assert bool(reading.filtered) is ("source_filters" not in settings)


@each_format
@pytest.mark.parametrize("rails", [1, 2])
def test_formats_say_the_same(f: Format, rails: int) -> None:
    """Each format, read back, equals the needs of the switch."""
    switches = f.switches(cluster_file.parse(PLANNED.replace("[cluster]", f"[cluster]\nrails = {rails}")))
    for switch in map(switches.switch, switches.names):
        found = f.read(f.text(switch))
        ports = {port.name: port for port in switch.ports}
        assert found.sids == dict.fromkeys(switch.sids, "uN")
        assert len(switch.sids) == (rails if switch.kind == "t1" else 1)
        assert found.mtus == dict.fromkeys(ports, switch.mtu)
        assert {n: a for n, a in found.addresses.items() if n in ports} == {
            n: [f"{port.address}/64"] for n, port in ports.items()
        }
        assert found.addresses["lo"] == [f"{own}/128" for own in switch.own]
        filtered = {port.name for port in switch.ports if port.source}
        assert found.filtered == filtered
        for name in filtered:
            assert found.sources[name] - {"fe80::/10"} == {f"{ports[name].source}/128"}
        routes = {network: [(port.next_hop, port.name)] for port in switch.ports for network in port.networks}
        routes |= {network: [(p.next_hop, p.name) for p in switch.uplinks] for network in switch.over_uplinks}
        assert found.routes == routes | {network: [] for network in switch.unreachable}


# ---- mistakes ----


def replaced(name: str, old: str, new: str) -> Change:
    def change(switch: Switch, text: str) -> str:
        if switch.name != name:
            return text
        assert old in text
        return text.replace(old, new)

    return change


def exchanged(text: str) -> str:
    """Exchanges the uSIDs of T1s 0 and 1 of plane 0, at their T0s and at themselves."""
    return text.replace("0:8000::/", "@").replace("0:8001::/", "0:8000::/").replace("@", "0:8001::/")


MISTAKES = {
    "uSID of another switch": (replaced("t1-0-1", "5f00:0:8001::/48 encap", "5f00:0:8002::/48 encap"), "lost"),
    "no uSID": (
        replaced("t0-1-1", "route replace 5f00:0:4801::/48 encap", "route replace 5f00:0:4802::/48 encap"),
        "lost",
    ),
    "route to another T0": (
        replaced("t1-0-0", "5f00:0:4001::/48 via fe80::2 dev t0-1", "5f00:0:4001::/48 via fe80::2 dev t0-0"),
        "lost",
    ),
    "two hosts exchanged": (
        lambda s, t: (
            t.replace("c001::/48 via fe80::2 dev gpu02", "cx")
            .replace("c000::/48 via fe80::2 dev gpu01", "c001::/48 via fe80::2 dev gpu01")
            .replace("cx", "c000::/48 via fe80::2 dev gpu02")
            if s.name == "t0-0-0"
            else t
        ),
        "at another host",
    ),
    "two T1s exchanged": (lambda s, t: exchanged(t) if s.name.startswith(("t0-0-", "t1-0-")) else t, "by another T1"),
    "next hop of another link": (
        replaced("t0-0-0", "5f00:0:8001::/48 via fe80::1:1 dev t1-1", "5f00:0:8001::/48 via fe80::1:0 dev t1-1"),
        "next hop without cable",
    ),
    "small MTU": (replaced("t1-1-1", "dev t0-0 mtu 9100", "dev t0-0 mtu 1500"), "MTU too small"),
    "another address": (replaced("t0-0-0", "fe80::2/64 dev t1-1", "fe80::3/64 dev t1-1"), "address missing"),
    "source of another host": (
        replaced("t0-0-0", "iif gpu01 from fd10::1", "iif gpu01 from fd10::9"),
        "drops the host",
    ),
    "no filter": (replaced("t0-0-0", "iif gpu01 blackhole", "iif gpu02 blackhole"), "no source filter"),
    "address of a host elsewhere": (
        replaced("t0-0-0", "replace fd10::1/128 via fe80::2 dev gpu01", "replace fd10::1/128 via fe80::2 dev gpu02"),
        "address not reached",
    ),
    "uSID over all uplinks": (
        replaced("t0-0-0", "replace fd10::/48 nexthop", "replace 5f00:0:8001::/48 nexthop"),
        "uSID route without its one path",
    ),
    "route inside the block": (replaced("t0-0-0", "5f00:0:8001::/48 via", "5f00:0:8001::/64 via"), "no uSID's"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_noticed(name: str) -> None:
    change, kind = MISTAKES[name]
    result = followed(FORMATS["iproute2"], PLANNED, change, 3000)
    assert any(kind in found for found in result.mistakes), result.mistakes
    assert result.examples.keys() == result.mistakes.keys()


def test_a_filter_that_lets_another_host_through_is_noticed() -> None:
    config = cluster_file.parse(PLANNED)
    f = FORMATS["iproute2"]
    switches = f.switches(config)
    wiring = [switches.switch(name) for name in switches.names]
    readings = {s.name: f.read(f.text(s)) for s in wiring}
    readings["t0-0-0"].permit("gpu01", "fd10::9/128")
    network = Network(config, wiring, readings)
    network.follow_evs(0, [7])
    assert network.result.mistakes == {"source filter lets others through": 1}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("frr", "ipv6 route 5f00::/48 fe80::1 swp1 color 3"),
        ("cumulus", "nv set router bgp autonomous-system 65000"),
        ("eos", "router bgp 65000"),
        ("iproute2", "ip -6 route replace ::/0 via fe80::1 dev t1-0 metric 5"),
        ("sonic", "{"),
        ("sonic", "[]"),
        ("sonic", '{"BGP_NEIGHBOR": {}}'),
        ("sonic", '{"PORT": {"Ethernet0": {}}}'),
        ("sonic", '{"STATIC_ROUTE": {"Vrf1|::/0": {}}}'),
    ],
)
def test_what_is_not_understood_is_named(name: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        FORMATS[name].read(f"\n{text}\n")
    for words in ["is not understood"] if name == "sonic" else ["line 2", text]:
        assert words in str(caught.value)


@pytest.mark.parametrize("name", ["eos", "cumulus"])
def test_a_filter_that_denies_single_sources_is_not_understood(name: str) -> None:
    f = FORMATS[name]
    text = f.text(f.switches(cluster_file.parse(SMALL)).switch("t0-0-0"))
    changed = text.replace("20 permit", "20 deny").replace("rule 20 action permit", "rule 20 action deny")
    assert changed != text
    with pytest.raises(UsageError):
        f.read(changed)


# ---- what cannot be configured ----


def refused(text: str, name: str = "iproute2") -> str:
    def every_switch() -> None:
        switches = FORMATS[name].switches(cluster_file.parse(text))
        for switch in switches.names:
            switches.switch(switch)

    with pytest.raises(MrcdError) as caught:
        every_switch()
    return str(caught.value)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("swp{1}", "swp6"),
        ("Ethernet{0+4}", "Ethernet20"),
        ("Ethernet{1}/1", "Ethernet6/1"),
        ("to-{neighbour}", "to-t1-1"),
    ],
)
def test_ports_are_named_by_number_or_neighbour(template: str, name: str) -> None:
    config = cluster_file.parse(SMALL.replace("downlinks = 4", f'downlinks = 4\nport_names = "{template}"'))
    assert FORMATS["eos"].switches(config).switch("t0-0-0").uplinks[1].name == name


@pytest.mark.parametrize(("block", "prefix"), [("5f00::", "5f00:0:4000::/48"), ("fcbb:bbbb::", "fcbb:bbbb:4000::/48")])
def test_prefixes_of_usids_are_written_as_the_kernel_writes_them(block: str, prefix: str) -> None:
    assert usid_prefix(block, 0x4000) == prefix


SRH = ("[cluster]", '[cluster]\nencapsulation = "srh"')
LISTED = '[[paths]]\nsource = "a"\npeer = "b"\nplane = 0\nsegments = ["5f00::1"]\n'


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('address = "fe80::2"', "", "[interfaces] address"),
        ("downlinks = 4", "downlinks = 3", "port 3, but [switches] downlinks is 3"),
        ("[[hosts]]", LISTED + "[[hosts]]", "[[paths]]"),
        ('name = "a"', 'name = "sixteen-letters1"', "15 at most"),
        ('name = "a"', 'name = "ä"', "port_names"),
        *(
            ("downlinks = 4", f'downlinks = 4\nport_names = "{template}"', "has no number or neighbour")
            for template in ("swp", "swp{x}", "swp{1}{2}", "{}")
        ),
    ],
)
def test_files_without_what_switches_need_are_refused(old: str, new: str, words: str) -> None:
    assert old in SMALL
    assert words in refused(SMALL.replace(old, new, 1))


@pytest.mark.parametrize("name", ["sonic", "frr", "cumulus", "eos"])
def test_only_linux_has_plain_ends(name: str) -> None:
    assert "encapsulation srh" in refused(SMALL.replace(*SRH), name)


def test_a_plain_end_is_at_its_exact_address() -> None:
    f = FORMATS["iproute2"]
    switch = f.switches(cluster_file.parse(SMALL.replace(*SRH))).switch("t0-0-0")
    assert f.read(f.text(switch)).sids == {"5f00:0:4000::/128": "End"}


@pytest.mark.parametrize("name", ["t0-0-2", "t1-1-0", "t2-0-0", "t0:0:0", "t0-0", ""])
def test_unknown_switches_are_usage_errors(name: str) -> None:
    with pytest.raises(UsageError, match="t0-0-0 to t0-0-1, t1-0-0 to t1-0-1"):
        FORMATS["frr"].switches(cluster_file.parse(SMALL)).switch(name)
