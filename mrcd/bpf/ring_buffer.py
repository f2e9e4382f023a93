"""Looking into a ring buffer map without taking anything out of it (linux/bpf.h, BPF_MAP_TYPE_RINGBUF).

What nobody has read is kept for the next daemon; mrcctl may show it meanwhile.
"""

import mmap
import struct

from mrcd.bpf import libbpf

_PAGE = mmap.PAGESIZE
_HEADER = 8
_BUSY, _DISCARD = 1 << 31, 1 << 30
_POSITION = struct.Struct("Q")


def fill(fd: int) -> tuple[int, int]:
    """Bytes that nobody has read, and bytes there are."""
    _, used, size = _look(fd)
    return used, size


def unread(fd: int) -> list[bytes]:
    """The records that nobody has read, oldest first. Those of a moment ago may be missing."""
    data, used, _ = _look(fd)
    return records(data[:used])


def records(data: bytes) -> list[bytes]:
    """The records in a stretch of the ring, up to one that is being written. Pure."""
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


def _look(fd: int) -> tuple[bytes, int, int]:
    """The unread bytes, how many they are, and the size of the ring."""
    size = libbpf.map_info(fd)[2]
    with (
        mmap.mmap(fd, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ) as consumer,
        # The kernel maps the data twice in a row: no record is cut in two.
        mmap.mmap(fd, _PAGE + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE) as producer,
    ):
        (start,) = _POSITION.unpack_from(consumer)
        (end,) = _POSITION.unpack_from(producer)
        first = _PAGE + start % size
        used = min(max(0, end - start), size)
        return producer[first : first + used], used, size
