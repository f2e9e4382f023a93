# SPDX-License-Identifier: BSD-2-Clause
"""Reads a ring buffer map without consuming its records (linux/bpf.h, BPF_MAP_TYPE_RINGBUF).

Unread records stay for the next daemon; mrcctl can show them meanwhile.
"""

import mmap
import struct

from mrcd.kernel import libbpf

_PAGE = mmap.PAGESIZE
_HEADER = 8
_BUSY, _DISCARD = 1 << 31, 1 << 30
_POSITION = struct.Struct("Q")


def fill(fd: int) -> tuple[int, int]:
    """Returns the unread bytes, and the size of the ring in bytes."""
    _, used, size = _read(fd)
    return used, size


def unread(fd: int) -> list[bytes]:
    """Returns the unread records, oldest first. Records that are being written are missing."""
    data, used, _ = _read(fd)
    return records(data[:used])


def records(data: bytes) -> list[bytes]:
    """Returns the records in a part of the ring, up to one that is being written. Pure."""
    found, at = [], 0
    while at + _HEADER <= len(data):
        (word,) = struct.unpack_from("I", data, at)
        if word & _BUSY:
            break
        length = word & ~_DISCARD
        if not word & _DISCARD:
            found.append(data[at + _HEADER : at + _HEADER + length])
        at += -(-(_HEADER + length) // 8) * 8
    return found


def _read(fd: int) -> tuple[bytes, int, int]:
    """Returns the unread data, its length, and the size of the ring in bytes."""
    size = libbpf.map_info(fd)[2]
    with (
        mmap.mmap(fd, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ) as consumer,
        # The kernel maps the data twice in a row, so that no record is split at the end.
        mmap.mmap(fd, _PAGE + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE) as producer,
    ):
        (start,) = _POSITION.unpack_from(consumer)
        (end,) = _POSITION.unpack_from(producer)
        first = _PAGE + start % size
        used = min(max(0, end - start), size)
        return producer[first : first + used], used, size
