# SPDX-License-Identifier: BSD-2-Clause
"""Tests the cluster file: accepted values, limits, overlaps, and damaged or missing files."""

import itertools
from contextlib import nullcontext
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from pathlib import Path

import pytest

from mrcd.config import cluster_file
from mrcd.errors import ConfigError
from tests.cluster_files import TWO, host

EXAMPLE = Path(__file__).parents[2] / "scripts" / "deploy" / "mrcd.toml"


# ---- accepted values ----


def test_hosts_alone_make_a_usable_file() -> None:
    c = cluster_file.parse(TWO)
    assert c.cluster.block == IPv6Network("5f00::/32")
    assert c.cluster.underlay == IPv6Network("fd10::/32")
    assert (c.cluster.planes, c.cluster.t0s, c.cluster.t1s) == (4, 1, 4)
    assert (c.cluster.encapsulation, c.cluster.granularity) == ("usid", "burst")
    assert c.cluster.ev_min_active is None
    assert c.interface_names(c.host("h0")) == ["p0", "p1", "p2", "p3"]
    assert c.interfaces.gateway == IPv6Address("fe80::1")
    assert c.hook(c.host("h0")) == "auto"
    assert c.metrics.address == "127.0.0.1:9479"  # loopback by default
    assert c.host("h1").prefixes == [IPv4Network("10.99.0.2/32")]


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


def test_tables_have_a_row_for_the_highest_host_id() -> None:
    assert cluster_file.parse(host(0) + host(1, id=41)).max_peers == 42


@pytest.mark.parametrize("address", ["127.0.0.1:9479", "[::1]:9479", "0.0.0.0:1", "localhost:65535"])
def test_metrics_addresses(address: str) -> None:
    assert cluster_file.parse(f'[metrics]\naddress = "{address}"\n' + TWO).metrics.address == address


# ---- limits ----

LIMITS = [
    ("cluster", "planes", 1, 8),
    ("cluster", "t0s", 1, 512),
    ("cluster", "t1s", 0, 512),
    ("cluster", "evs_per_peer", 4, 256),  # not fewer than the default's planes
    ("cluster", "ev_min_active", 1, 256),
    ("cluster", "mtu", 1500, 65000),
    ("cluster", "udp_port", 1, 65535),
    ("health", "probe_interval_ms", 1, 100),  # not more than the default's idle_interval_ms
    ("health", "idle_interval_ms", 20, 60_000),
    ("health", "probe_packets", 1, 32_768),
    ("health", "probe_gap_us", 1, 1000),  # not more than the default's probe_late_ms
    ("health", "probe_late_ms", 1, 10_000),
    ("health", "reorder_us", 50, 10_000),  # not more than the default's overdue_ms
    ("health", "overdue_ms", 1, 10_000),
    ("health", "skip_delay_us", 0, 10_000_000),
    ("health", "loss_samples", 1, 666),
    ("health", "loss_window_ms", 10, 60_000),
    ("health", "good_probes", 1, 1000),
    ("health", "ramp_ms", 0, 60_000),
    ("health", "probe_backoff_ms", 20, 60_000),  # not less than the default's probe_interval_ms
    ("health", "unanswered", 2, 100),
    ("health", "hold_down_ms", 1, 60_000),
    ("health", "hold_down_max_ms", 1000, 86_400_000),
    ("overlay", "metric", 1, 3999),
    ("overlay", "fallback_metric", 101, 65535),
    ("overlay", "reordering", 3, 10_000),
    ("overlay", "burst_bytes", 2048, 65_535),
    ("overlay", "flowlet_us", 1, 1_000_000),
    ("overlay", "dup_ack_us", 0, 1_000_000),
]


@pytest.mark.parametrize(("table", "key", "low", "high"), LIMITS, ids=[key for _, key, _, _ in LIMITS])
def test_numbers_have_limits(table: str, key: str, low: int, high: int) -> None:
    for value in (low, high):
        assert getattr(getattr(cluster_file.parse(f"[{table}]\n{key} = {value}\n" + TWO), table), key) == value
    for value in (low - 1, high + 1, -1):
        with pytest.raises(ConfigError, match=key):
            cluster_file.parse(f"[{table}]\n{key} = {value}\n" + TWO)


@pytest.mark.parametrize(("key", "low", "high"), [("id", 0, 65534), ("port", 0, 1023), ("t0", 0, 511)])
def test_numbers_of_hosts_have_limits(key: str, low: int, high: int) -> None:
    for value in (low, high):
        text = "[cluster]\nt0s = 512\n" + host(7, **{key: value})
        assert getattr(cluster_file.parse(text).hosts[0], key) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigError, match=rf"hosts\[0\]\.{key}"):
            cluster_file.parse("[cluster]\nt0s = 512\n" + host(7, **{key: value}))


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


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ('["10.0.0.0/25", "fd00:1::/64"]', '["10.0.0.128/25", "fd00:1:0:1::/64"]', False),  # neighbours
        ('["10.98.0.0/24", "10.98.0.1/32"]', '["10.99.0.2/32"]', False),  # a host's address in the network behind it
        ('["10.98.0.0/24", "10.98.0.1/32"]', '["10.98.0.2/32"]', True),
    ],
)
def test_prefixes_of_one_host_may_overlap(one: str, other: str, overlap: bool) -> None:
    with pytest.raises(ConfigError, match="overlaps") if overlap else nullcontext():
        cluster_file.parse(host(0, prefixes=one) + host(1, prefixes=other))


# ---- files ----


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


# ---- no text causes a traceback ----


def test_a_damaged_file_is_an_error_message_or_still_valid() -> None:
    """Removes, doubles and truncates every line of the example, and changes the type of its value."""
    lines = EXAMPLE.read_text().splitlines()
    values = ["-1", "0", '"x"', "[]", "{}", "true", "1.5", "99999999999999999999", '["a", 1]', "1979-05-27"]
    faults = []
    for i, line in enumerate(lines):
        if not line or line.startswith("#"):
            continue
        damaged = [lines[:i] + lines[i + 1 :], lines[: i + 1] + lines[i:], [*lines[:i], line[: len(line) // 2]]]
        if " = " in line:
            key = line.split(" = ")[0]
            damaged += [[*lines[:i], f"{key} = {v}", *lines[i + 1 :]] for v in values]
        for text in damaged:
            try:
                cluster_file.parse("\n".join(text))
            except ConfigError as e:
                faults.append(e)
    assert len(faults) > 300
    for fault in faults:
        assert fault.hint
        assert str(fault).count("\n") == 1  # the message, the hint
