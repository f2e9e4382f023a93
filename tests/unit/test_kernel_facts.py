# SPDX-License-Identifier: BSD-2-Clause
"""Tests what is read of the kernel and NICs: features, others' programs, an mrc0 made otherwise, lost events, CPUs."""

import asyncio
import errno
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from _pytest.logging import LogCaptureFixture

from mrcd.config.cluster_file import cpu_list
from mrcd.ctl.commands.status import brief_lines, status_lines
from mrcd.errors import KernelError
from mrcd.kernel.enums import KernelHas
from mrcd.kernel.features import kernel_has, lacking, refused_programs
from mrcd.net import netlink, other_programs, rps
from mrcd.net.netlink import Netlink, made_with
from mrcd.net.nics import Nics


def test_features_match_whole_names(tmp_path: Path) -> None:
    btf = tmp_path / "vmlinux"
    btf.write_bytes(b"\0x_bpf_cast_to_kern_ctx\0bpf_cast_to_kern_ctx_y\0BPF_F_ADJ_ROOM_DECAP_L3_IPV4\0")
    assert kernel_has(btf) == KernelHas.DECAP_L3
    btf.write_bytes(b"\0bpf_cast_to_kern_ctx\0BPF_F_ADJ_ROOM_DECAP_L3_IPV4\0")
    assert kernel_has(btf) == KernelHas.DECAP_L3 | KernelHas.KERN_CTX


def test_without_btf_no_feature_is_found(tmp_path: Path) -> None:
    assert kernel_has(tmp_path / "vmlinux") == KernelHas(0)


def test_missing_features_are_named() -> None:
    everything = KernelHas.DECAP_L3 | KernelHas.KERN_CTX
    assert lacking(everything, frozenset(), has_rps=True) == []
    (words,) = lacking(everything, frozenset(), has_rps=False)
    assert "no RPS" in words
    assert len(lacking(KernelHas(0), frozenset({"mrc_unsent"}), has_rps=False)) == 4


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("none integrity [confidentiality]\n", {"mrc_unsent"}),
        ("none [integrity] confidentiality\n", set()),
        ("[none] integrity confidentiality\n", set()),
        (None, set()),
    ],
)
def test_what_lockdown_refuses_is_left_out(tmp_path: Path, text: str | None, refused: set[str]) -> None:
    file = tmp_path / "lockdown"
    if text is not None:
        file.write_text(text)
    assert refused_programs(file) == refused


@pytest.mark.parametrize(
    ("there", "found"),
    [
        ([], []),
        ([(7, None)], []),  # ours
        ([(3, "theirs"), (7, None), (9, None)], [("before", 3, "theirs"), ("after", 9, None)]),
        ([(0, "a u32 filter"), (7, None)], [("before", None, "a u32 filter")]),
        ([(3, None)], [("alone", 3, None)]),
    ],
)
def test_the_position_of_other_programs_is_found(
    there: list[other_programs.Program], found: list[tuple[str, int | None, str | None]]
) -> None:
    told = other_programs.documents("p0", "ingress", there, {7, 8})
    assert [(d["position"], d["program_id"], d["program"]) for d in told] == found


def test_status_lists_programs_in_front_first_and_numbers_unnamed_ones() -> None:
    told = other_programs.documents("p0", "ingress", [(3, None), (7, None), (9, "theirs")], {7})[::-1]
    status = {"other_programs": told, "pins": {"directory": "/x", "lost": "nothing is pinned at /x"}}
    lines = status_lines(status, colour=False)
    assert (
        "other BPF   program 3 at ingress of p0 (RUNS BEFORE MRCD'S); theirs at ingress of p0 (runs after mrcd's)"
        in lines
    )
    assert "pins        nothing is pinned at /x: see `mrcctl doctor`" in lines
    (brief,) = brief_lines(status, colour=False)
    assert brief.endswith("pins lost  other programs 2")


BOTH = {0, 1}


@pytest.mark.parametrize(
    ("alias", "warned"),
    [
        (made_with(2, BOTH), False),
        (made_with(2, set()), True),
        (made_with(1, BOTH), True),
        (None, True),
    ],
)
def test_an_mrc0_made_with_other_settings_is_reported(alias: str | None, warned: bool) -> None:
    said, nothing = list[str](), cast(Any, None)
    nics = Nics(nothing, nothing, said.append, nothing)
    nics.mrc0 = cast(Any, SimpleNamespace(name="mrc0", alias=alias))
    nics.warn_if_made_otherwise(2, BOTH)
    assert len(said) == warned
    for text in said:
        pattern = r"mrc0 was created with other queues or CPUs \((.*), and not (.*)\): .* `ip link del mrc0`.*"
        assert (found := re.fullmatch(pattern, text))
        assert found.groups() == (alias or "no alias", made_with(2, BOTH))


class Overrun:
    """Stands in for a socket that has lost messages."""

    async def __aenter__(self) -> "Overrun":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def bind(self, _: int) -> None:
        pass

    def get(self) -> "Overrun":
        return self

    def __aiter__(self) -> "Overrun":
        return self

    async def __anext__(self) -> Any:
        raise OSError(errno.ENOBUFS, "No buffer space available")


def test_lost_events_end_the_watch_with_the_kernel_s_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink, "AsyncIPRoute", Overrun)

    async def watch() -> list[Any]:
        return [change async for change in Netlink.watch(None)]  # type: ignore[arg-type]

    with pytest.raises(KernelError, match=r"watch links and neighbours: .*ENOBUFS"):
        asyncio.run(watch())


# ---- CPUs ----


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
