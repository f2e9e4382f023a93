# SPDX-License-Identifier: BSD-2-Clause
"""Tests the cluster file: accepted values, limits, overlaps, and damaged or missing files."""

import itertools
from contextlib import nullcontext
from ipaddress import ip_network
from pathlib import Path

import pytest

from mrcd.config import cluster_file
from mrcd.errors import ConfigError
from tests.cluster_files import TWO, host

EXAMPLE = Path(__file__).parents[2] / "scripts" / "deploy" / "mrcd.toml"


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
