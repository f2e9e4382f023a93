# SPDX-License-Identifier: BSD-2-Clause
"""Tests lists of hosts as Slurm writes them, and ranges of hosts in the cluster file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrcd.config import cluster_file, toml_text
from mrcd.config.hostlist import compress, expand
from mrcd.errors import ConfigError, UsageError
from mrcd.fabric.topology import plan
from tests.cluster_files import host


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu7", ["gpu7"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[9-11]", ["gpu9", "gpu10", "gpu11"]),
        ("gpu[008-010,7],login1", ["gpu008", "gpu009", "gpu010", "gpu7", "login1"]),
        ("a, b,a", ["a", "b"]),
        ("r[1-2]n[08-09]-ib", ["r1n08-ib", "r1n09-ib", "r2n08-ib", "r2n09-ib"]),
    ],
)
def test_a_list_is_expanded(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a name is missing"),
        ("a,,b", "a name is missing"),
        ("gpu[1-4", "brackets do not match"),
        ("gpu1-4]", "brackets do not match"),
        ("gpu[]", "brackets do not match"),
        ("gpu[4-1]", "'4-1' is neither a number nor a range"),
        ("gpu[1-x]", "'1-x' is neither a number nor a range"),
        ("gpu[1,]", "'' is neither a number nor a range"),
        ("gpu[1-999999999]", "more than 65535 names"),
        ("r[1-999]n[1-999]", "more than 65535 names"),
        ("a[1-60000],b[1-60000]", "more than 65535 names"),
    ],
)
def test_a_wrong_list_is_an_error(text: str, why: str) -> None:
    with pytest.raises(UsageError) as error:
        expand(text)
    assert why in str(error.value)
    assert "hint: such as gpu[1-512]" in str(error.value)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["gpu7"], "gpu7"),
        (["gpu3", "gpu1", "gpu2", "gpu9"], "gpu[1-3,9]"),
        (["gpu9", "gpu10"], "gpu[9-10]"),
        (["gpu0099", "gpu0100", "gpu1000"], "gpu[0099-0100,1000]"),
        (["b", "a1"], "a1,b"),
        ([], ""),
    ],
)
def test_names_are_compressed(names: list[str], text: str) -> None:
    assert compress(names) == text


@given(st.lists(st.from_regex(r"[a-z]{1,2}[0-9]{0,4}(-[a-z])?", fullmatch=True), min_size=1, unique=True))
def test_a_compressed_list_has_the_same_names(names: list[str]) -> None:
    assert sorted(expand(compress(names))) == sorted(names)


# ---- in the cluster file ----


FIELDS = {
    "name": '"gpu[08-12]x"',
    "id": 20,
    "t0": 1,
    "port": 2,
    "per_t0": 3,
    "prefixes": '["10.0.0.0/30", "fd00::/64"]',
}


def ranged(**other: object) -> str:
    return "[cluster]\nt0s = 4\n" + host(0, **FIELDS | other)


def test_a_range_stands_for_its_hosts() -> None:
    found = cluster_file.parse(ranged()).hosts
    assert [h.name for h in found] == ["gpu08x", "gpu09x", "gpu10x", "gpu11x", "gpu12x"]
    assert [h.id for h in found] == [20, 21, 22, 23, 24]
    assert [(h.t0, h.port) for h in found] == [(1, 2), (2, 0), (2, 1), (2, 2), (3, 0)]
    assert [[str(p) for p in h.prefixes] for h in found[:2]] == [
        ["10.0.0.0/30", "fd00::/64"],
        ["10.0.0.4/30", "fd00:0:0:1::/64"],
    ]


def test_of_two_numbers_in_a_name_the_second_counts_fastest() -> None:
    found = cluster_file.parse(ranged(name='"rack[09-10]-gpu[1-2]x"', id=0, t0=0, port=0, per_t0=2)).hosts
    assert [(h.name, h.id, h.t0, h.port, str(h.prefixes[0])) for h in found] == [
        ("rack09-gpu1x", 0, 0, 0, "10.0.0.0/30"),
        ("rack09-gpu2x", 1, 0, 1, "10.0.0.4/30"),
        ("rack10-gpu1x", 2, 1, 0, "10.0.0.8/30"),
        ("rack10-gpu2x", 3, 1, 1, "10.0.0.12/30"),
    ]
    assert [h.name for h in found] == expand("rack[09-10]-gpu[1-2]x")


def test_a_range_means_the_same_as_its_hosts_one_by_one() -> None:
    found = cluster_file.parse(ranged(more='hook = "tc"'))
    one_by_one = "".join(
        host(
            h.id,
            name=f'"{h.name}"',
            t0=h.t0,
            port=h.port,
            prefixes=str([str(p) for p in h.prefixes]),
            more='hook = "tc"',
        )
        for h in found.hosts
    )
    assert cluster_file.parse("[cluster]\nt0s = 4\n" + one_by_one) == found
    assert plan(found, "gpu10x").peers[0].host == found.hosts[0]


def test_a_range_is_written_as_a_range() -> None:
    found = cluster_file.parse(ranged())
    lines = toml_text.lines(toml_text.effective(found), defaults=True)
    assert [line for line in lines if "name = " in line and "gpu" in line] == ['name = "gpu[08-12]x"']
    assert cluster_file.parse("\n".join(lines)).hosts == found.hosts


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": '"gpu[9-1]"'}, ["hosts[0]", "not a range", "gpu[0001-4096]"]),
        ({"name": '"gpu[1-"'}, ["not a range"]),
        ({"name": '"rack[1-2]-gpu[4-1]"'}, ["not a range"]),
        ({"name": '"rack[1-2]-gpu[1]"'}, ["not a range"]),
        ({"name": '"rack[1-999999999]-gpu[1-999999999]"'}, ["the last host would have id", "65534"]),
        ({"name": '"gpu[001-12]"'}, ["not a range"]),
        ({"name": '"gpu1"'}, ["per_t0 is for a range"]),
        ({"port": 3}, ["port = 3", "0 to 2"]),
        ({"id": 65_531}, ["id 65535", "65534"]),
        ({"t0": 510}, ["t0 512", "511"]),
        ({"prefixes": '["255.255.255.252/32"]'}, ["5 prefixes from 255.255.255.252/32", "last address"]),
        ({"prefixes": '["10.0.0.0/30", "10.0.0.16/32"]'}, ["10.0.0.16/30 of gpu12x", "10.0.0.16/32 of gpu08x"]),
    ],
    ids=str,
)
def test_impossible_ranges_are_refused(fields: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        cluster_file.parse(ranged(**fields))
    for word in words:
        assert word in str(caught.value)


def test_a_range_must_fit_the_cluster_and_its_other_hosts() -> None:
    with pytest.raises(ConfigError, match="needs per_t0"):
        cluster_file.parse(host(0, name='"gpu[1-2]"'))
    with pytest.raises(ConfigError, match="gpu12x: t0 = 3, but the cluster has t0s = 3"):
        cluster_file.parse(ranged().replace("t0s = 4", "t0s = 3"))
    for n, words in ((0, "id 21 is used twice"), (2, "port.*is used twice")):
        other = host(n, id=21 if n == 0 else 1, t0=2, port=0 if n else 9, prefixes='["10.9.0.0/32"]')
        with pytest.raises(ConfigError, match=words):
            cluster_file.parse(ranged() + other)
