# SPDX-License-Identifier: BSD-2-Clause
"""Tests the choice of CPUs, by names, lists and masks; and the sysctl for new interfaces."""

from pathlib import Path

import pytest
from _pytest.logging import LogCaptureFixture

from mrcd.config.cluster_file import cpu_list
from mrcd.net import rps

MASKS = [
    (set(), "00000000"),
    ({0, 1}, "00000003"),
    ({31, 32}, "00000001,80000000"),
    ({64}, "00000001,00000000,00000000"),
]


@pytest.mark.parametrize(("some", "mask"), MASKS)
def test_masks(some: set[int], mask: str) -> None:
    assert rps.format_mask(some) == mask
    assert rps.parse_mask(mask + "\n") == some


@pytest.mark.parametrize(
    ("words", "some"), [("0", {0}), ("0-3", {0, 1, 2, 3}), ("0-1,8", {0, 1, 8}), ("7,0-1,3-4", {0, 1, 3, 4, 7})]
)
def test_lists(words: str, some: set[int]) -> None:
    assert cpu_list(words) == some
    assert cpu_list(rps.format_cpus(some)) == some


@pytest.mark.parametrize("words", ["", "x", "auto", "1-", "-1", "3-1", "1,,2", "0-8192", "1 2", "99999999999"])
def test_invalid_cpu_lists_are_refused(words: str) -> None:
    with pytest.raises(ValueError, match='write "0-3,8", "all" or "none"'):
        cpu_list(words)


@pytest.mark.parametrize(
    ("words", "there", "chosen"),
    [
        ("all", {0, 1}, {0, 1}),
        ("none", {0, 1}, set()),
        ("1,5", {0, 1}, {1}),
        ("all", {0}, set()),
        ("0", {0}, set()),
        ("8-9", {0, 1}, set()),
    ],
)
def test_cpus_are_chosen_from_the_existing_ones(words: str, there: set[int], chosen: set[int]) -> None:
    assert rps.select_cpus(words, there) == chosen


def test_the_cpus_of_this_machine_are_read(tmp_path: Path) -> None:
    file = tmp_path / "online"
    file.write_text("0-3,5\n")
    assert rps.online_cpus(file) == {0, 1, 2, 3, 5}
    assert 0 in rps.online_cpus()


def test_the_sysctl_is_restored(tmp_path: Path) -> None:
    file = tmp_path / "rps_default_mask"
    file.write_text("c\n")
    assert rps.has_default_mask(file)
    with rps.default_cpus({0, 1}, file) as steered:
        assert (steered, file.read_text()) == ({0, 1}, "00000003")
    assert file.read_text() == "c"


def test_an_empty_mask_is_restored_in_short_form(tmp_path: Path) -> None:
    """Old kernels truncate long masks, and do not accept their own output."""
    file = tmp_path / "rps_default_mask"
    file.write_text("00000000,00000000,\n")
    with rps.default_cpus({0}, file):
        pass
    assert file.read_text() == "0"


def test_without_cpus_the_sysctl_is_not_written(tmp_path: Path) -> None:
    with rps.default_cpus(set(), tmp_path / "missing"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_without_the_sysctl_is_reported(tmp_path: Path, caplog: LogCaptureFixture) -> None:
    assert not rps.has_default_mask(tmp_path / "missing")
    with rps.default_cpus({0, 1}, tmp_path / "missing") as steered:
        done = True
    assert (done, steered) == (True, set())
    assert "No such file or directory: received flows stay on the CPU that receives them" in caplog.text


def test_the_cpus_of_an_interface_are_read(tmp_path: Path) -> None:
    for queue, mask in (("rx-0", "3\n"), ("rx-1", "00000000,00000005\n")):
        (tmp_path / "lo/queues" / queue).mkdir(parents=True)
        (tmp_path / "lo/queues" / queue / "rps_cpus").write_text(mask)
    (tmp_path / "lo/ifindex").write_text("1\n")
    assert rps.cpus_of("lo", tmp_path) == {0, 1, 2}
    assert rps.cpus_of("other", tmp_path) is None
    (tmp_path / "lo/ifindex").write_text("7\n")  # one of that name, of another network namespace
    assert rps.cpus_of("lo", tmp_path) is None


def test_the_sysctl_is_restored_after_an_error(tmp_path: Path) -> None:
    file = tmp_path / "rps_default_mask"
    file.write_text("0\n")
    with pytest.raises(ZeroDivisionError), rps.default_cpus({0, 1}, file):
        _ = 1 // 0
    assert file.read_text() == "0"
