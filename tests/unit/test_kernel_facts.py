# SPDX-License-Identifier: BSD-2-Clause
"""Tests what is read of the kernel and NICs: features, others' programs, an mrc0 made otherwise, lost events."""

import asyncio
import errno
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mrcd.ctl.commands.status import brief_lines, status_lines
from mrcd.errors import KernelError
from mrcd.kernel.enums import KernelHas
from mrcd.kernel.features import kernel_has, lacking
from mrcd.net import netlink, other_programs
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
    assert lacking(everything, has_rps=True) == []
    (words,) = lacking(everything, has_rps=False)
    assert "no RPS" in words
    assert len(lacking(KernelHas(0), has_rps=False)) == 3


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
