# SPDX-License-Identifier: BSD-2-Clause
"""Tests the settings that the programs get from the configuration, and [[classes]]."""

from typing import Any

import pytest

from labkit.cluster.fabric import Parameters, cluster_text
from mrcd.config import cluster_file
from mrcd.daemon import write_tables
from mrcd.errors import ConfigError
from mrcd.fabric import topology
from mrcd.kernel import enums, settings
from mrcd.kernel.pinned import prefix_key
from tests.cluster_files import host

HOSTS = host(0, id=3) + host(1, id=4, t0=1)


PROBES = """probe_late_ms = 7
overdue_ms = 11
loss_window_ms = 300
reorder_us = 60
skip_delay_us = 0
hold_down_ms = 700
hold_down_max_ms = 5000
good_probes = 6
ramp_ms = 90
probe_interval_ms = 21
probe_backoff_ms = 800
unanswered = 9
idle_probes = 1234"""
LOSS = 'loss_rule = "any"\nloss_ratio = 0.0000014\nloss_samples = 3'
# Keys of [cluster], of [health] and what follows, and settings that they make.
CASES: list[tuple[str, str, dict[str, int]]] = [
    ("", "", {
        "planes": 2, "evs_per_peer": 9, "evs_per_plane": 4, "host_id": 4, "srh": 0, "loss_any": 0, "loss_ppm": 20_000,
        "loss_samples": 10, "probe_packets": 8, "source_check": 1, "peers": 5,  # the highest host id is 4
    }),
    ("mtu = 1500\nudp_port = 99", "", {"udp_port": 99, "inner_mtu": 1420}),
    ('encapsulation = "srh"', "", {"srh": 1}),
    ("", PROBES, {  # times are microseconds
        "probe_late_us": 7000, "overdue_us": 11_000, "loss_window_us": 300_000, "probe_gap_us": 300, "reorder_us": 60,
        "skip_delay_us": 0, "hold_down_ms": 700, "hold_down_max_ms": 5000, "good_probes": 6, "ramp_us": 90_000,
        "probe_interval_us": 21_000, "probe_backoff_us": 800_000, "unanswered": 9, "idle_probes": 1234,
    }),
    ('granularity = "packet"', "", {"probe_packets": 64}),
    ('granularity = "bundle"', "", {"probe_packets": 8, "probe_late_us": 1000}),
    ('granularity = "burst"', "probe_packets = 5", {"probe_packets": 5}),
    ('granularity = "packet"', "probe_packets = 5", {"probe_packets": 5}),
    ("", LOSS, {"loss_any": 1, "loss_ppm": 1, "loss_samples": 3}),
    ("", '[overlay]\nsource_check = "off"', {"source_check": 0}),
    ("", "", {"flow_ports": 1}),
    ("", '[overlay]\nsource_port = "ev"', {"flow_ports": 0}),
    ('encapsulation = "ecmp"', "", {"flow_ports": 0}),
    ("", '[[paths]]\nsource = "h0"\npeer = "h1"\nplane = 0\nsegments = ["5f00:0:1::"]', {"flow_ports": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("cluster", "more", "made"), CASES, ids=range(len(CASES)))
def test_settings_by_the_cluster_file(cluster: str, more: str, made: dict[str, int]) -> None:
    text = f"[cluster]\nt0s = 2\nplanes = 2\nevs_per_peer = 9\n{cluster}\n[health]\n{more}\n{HOSTS}"
    plan = topology.plan(cluster_file.parse(text), "h1")
    records = settings.settings(plan), settings.health(plan)
    assert {n: int(r[n]) for r in records for n in made if n in (r.dtype.names or ())} == made


def test_the_key_of_link_probes_and_the_rows_of_tables() -> None:
    plan = topology.plan(cluster_file.parse(HOSTS.join(("[cluster]\nt0s = 2\n", ""))), "h1")
    record = settings.settings(plan, link_key=bytes(range(16)), peers=72)
    assert (record["link_key"].tobytes(), int(record["peers"])) == (bytes(range(16)), 72)


# ---- classes ----


FLOWLET, PINNED = enums.Policy.FLOWLET, enums.Policy.PINNED
CLUSTER = cluster_text("test", Parameters())


def plan(classes: str) -> topology.Plan:
    return topology.plan(cluster_file.parse(CLUSTER + classes), "h0")


def test_ports_ranges_and_dscps() -> None:
    told = settings.classes(plan('[[classes]]\npolicy = "pinned"\nports = [1, "65534-65535"]\ndscp = [0, 63]\n'))
    assert [p for p in range(65536) if told["ports"][p] == PINNED] == [1, 65534, 65535]
    assert [d for d in range(64) if told["dscp"][d] == PINNED] == [0, 63]


def test_the_first_class_with_a_port_wins() -> None:
    text = '[[classes]]\npolicy = "flowlet"\nports = [50]\n[[classes]]\npolicy = "pinned"\nports = ["49-51"]\n'
    assert settings.classes(plan(text))["ports"][49:52].tolist() == [PINNED, FLOWLET, PINNED]


@pytest.mark.parametrize(("text", "on"), [("ports = [50]", 1), ("dscp = [1]", 1), ('prefixes = ["10.99.0.3/32"]', 0)])
def test_packets_are_parsed_only_if_a_class_needs_it(text: str, on: int) -> None:
    assert settings.settings(plan(f'[[classes]]\npolicy = "pinned"\n{text}\n'))["classes"] == on


def value(found: dict[bytes, int], address: bytes, length: int) -> Any:
    word = found[prefix_key(address, length)]
    return word & 0xFFFF, enums.Policy(word >> 16)


def test_a_class_of_destinations_covers_the_hosts_prefixes_within_it_and_may_be_part_of_one() -> None:
    text = '[[classes]]\npolicy = "pinned"\nprefixes = ["10.99.0.3/32", "10.100.2.128/25"]\n'
    found = write_tables.prefixes(plan(text))
    assert value(found, bytes([10, 99, 0, 3]), 32) == (2, PINNED)
    assert value(found, bytes([10, 100, 2, 128]), 25) == (2, PINNED)
    assert value(found, bytes([10, 100, 2, 0]), 24) == (2, enums.Policy.NONE)
    assert len(found) == len(write_tables.prefixes(plan(""))) + 1


def test_the_first_of_two_overlapping_destination_classes_wins() -> None:
    wide, narrow = ('[[classes]]\npolicy = "{}"\nprefixes = ["{}"]\n'.format(*c) for c in (
        ("flowlet", "10.100.2.0/24"), ("pinned", "10.100.2.128/25"),
    ))  # fmt: skip
    for text, policy in ((wide + narrow, FLOWLET), (narrow + wide, PINNED)):
        found = write_tables.prefixes(plan(text))
        assert value(found, bytes([10, 100, 2, 0]), 24) == (2, FLOWLET)
        assert value(found, bytes([10, 100, 2, 128]), 25) == (2, policy)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('policy = "pinned"', "a class needs prefixes, ports or dscp"),
        ('policy = "sticky"\ndscp = [1]', "'spray', 'flowlet', 'pinned' or 'critical'"),
        ('policy = "pinned"\ndscp = [64]', "less than or equal to 63"),
        ('policy = "pinned"\nports = [0]', "0 is not a port"),
        ('policy = "pinned"\nports = ["7-5"]', "'7-5' is not a port"),
        ('policy = "pinned"\nports = ["http"]', "'http' is not a port"),
        ('policy = "pinned"\nprefixes = ["192.0.2.0/24"]', "192.0.2.0/24 is not within any host's prefixes"),
    ],
)
def test_invalid_classes_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cluster_file.parse(f"{CLUSTER}[[classes]]\n{text}\n")
    assert words in str(caught.value)
