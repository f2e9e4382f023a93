# SPDX-License-Identifier: BSD-2-Clause
"""Tests lists of hosts as Slurm writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrcd.config.hostlist import compress, expand
from mrcd.errors import UsageError


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
