# SPDX-License-Identifier: BSD-2-Clause
"""Tests whether attachments forward without the daemon, and unread records of the ring buffer."""

import struct
from typing import Any

from mrcd.kernel.attachments import without_daemon
from mrcd.kernel.ring_buffer import records

PLANES = {0: 3, 1: 4}


def link(program: str, ifindex: int, **other: Any) -> dict[str, Any]:
    return {"program": program, "ifindex": ifindex, "interface": "x", "attached": ifindex != 0, "pinned": True, **other}


PUSH = link("mrc_push", 9, interface="mrc0")
ALL = [PUSH, link("mrc_pop", 3), link("mrc_pop", 4)]


def says(links: list[dict[str, Any]], *, detached: bool = False, encapsulation: str = "usid") -> tuple[bool, str]:
    document = without_daemon(links, PLANES, detached=detached, encapsulation=encapsulation)
    return document["works"], document["how"]


def test_a_host_with_all_programs_attached_forwards() -> None:
    assert says(ALL) == (True, "mrc_push at mrc0 and mrc_pop at 2 planes are pinned")
    assert says([PUSH, link("mrc_pop_xdp", 3), link("mrc_pop", 4)])[0]
    filters = [x | {"pinned": False} for x in ALL]
    assert says(filters) == (True, "mrc_push at mrc0 and mrc_pop at 2 planes are held by tc filters")


def test_filters_with_hidden_programs_are_recognised_by_their_hook() -> None:
    hidden = [x | {"program": None, "pinned": False} for x in ALL]
    assert says(hidden)[0]
    assert says(hidden[:1]) == (False, "mrc_pop is not attached to any plane")
    assert says(hidden[1:]) == (False, "mrc_push is not attached")


def test_a_plane_without_pop_is_named() -> None:
    assert says([PUSH, link("mrc_pop", 3)]) == (
        True, "mrc_push at mrc0 and mrc_pop at 1 planes are pinned; not at plane 1"
    )  # fmt: skip


def test_a_missing_or_removed_attachment_does_not_forward() -> None:
    assert says(ALL[1:]) == (False, "mrc_push is not attached")
    assert says([PUSH]) == (False, "mrc_pop is not attached to any plane")
    gone = link("mrc_push", 0)  # its interface was removed: the pin exists, the attachment does not
    assert says([gone, *ALL[1:]]) == (False, "mrc_push is not attached")


def test_a_detached_host_forwards_over_kernel_srv6_except_with_ecmp() -> None:
    assert says([], detached=True)[0]
    assert not says([], detached=True, encapsulation="ecmp")[0]


def test_records_of_a_ring() -> None:
    def record(data: bytes, flags: int = 0) -> bytes:
        return struct.pack("II", len(data) | flags, 0) + data + bytes(-len(data) % 8)

    discarded, busy = 1 << 30, 1 << 31
    ring = record(b"first") + record(b"nothing", discarded) + record(b"12345678")
    assert records(ring) == [b"first", b"12345678"]
    assert records(ring + record(b"being written", busy) + record(b"later")) == [b"first", b"12345678"]
    assert records(b"") == []
