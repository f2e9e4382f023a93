# SPDX-License-Identifier: BSD-2-Clause
"""Captures frames through a ring that the kernel shares with this process (TPACKET_V3).

The kernel copies a frame into the ring when it passes. A plain packet socket only keeps a reference; in the lab, where
hosts and switches share a kernel, it would show the frame as the next switch has changed it. The ring also has more
space for bursts.
"""

import contextlib
import mmap
import select
import socket
import struct
from collections.abc import Iterable, Iterator
from types import TracebackType

from mrcd.ctl.packets import raw_socket
from mrcd.ctl.packets.raw_socket import Arrival
from mrcd.errors import KernelError, MachineError

_SOL_PACKET, _RX_RING, _STATISTICS, _VERSION, _TPACKET_V3 = 263, 5, 6, 10, 2
_BLOCK, _BLOCKS = 1 << 18, 32  # bytes, blocks; a block holds a whole burst
_FRAME = 1 << 11  # bytes: the kernel requires it, and TPACKET_V3 ignores it
_RETIRE_MS = 20  # the kernel hands over a block that is not full after this
_USER, _VLAN_VALID = 0x1, 0x10
_STATUS_AT, _FIRST_AT = 8, 16  # in struct tpacket_block_desc: status, packets, offset of the first
_HEADER = struct.Struct("IIIIIIHHII")  # struct tpacket3_hdr, up to the tag
_LINK_AT = 48  # offset of struct sockaddr_ll
_KIND_AT = _LINK_AT + 10


class Rings:
    """A ring for each interface. Use as a context manager."""

    def __init__(self, interfaces: Iterable[tuple[int, str]], code: bytes) -> None:
        """`interfaces` has a key and a name for each; `code` is a filter of socket_filter.py. Raises MachineError."""
        self._rings: dict[int, _Ring] = {}
        self._poll = select.poll()
        try:
            for key, name in interfaces:
                ring = _Ring(key, name, code)
                self._rings[ring.socket.fileno()] = ring
                self._poll.register(ring.socket, select.POLLIN)
        except MachineError:
            self.close()
            raise

    def __enter__(self) -> "Rings":
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the rings."""
        for ring in self._rings.values():
            ring.close()

    def wait(self, timeout_s: float) -> list[Arrival]:
        """Return the frames that have arrived, by time; without any, wait for the first, at most `timeout_s`."""
        self._poll.poll(max(0, timeout_s) * 1000)
        found = [a for ring in self._rings.values() for a in ring.take()]
        return sorted(found, key=lambda a: a.ns)

    def lost(self) -> int:
        """Return the number of frames lost to a full ring since the last call."""
        return sum(ring.lost() for ring in self._rings.values())


class _Ring:
    def __init__(self, key: int, interface: str, code: bytes) -> None:
        self._key, self._next = key, 0
        # Bound to no protocol yet, so that no frame arrives before the ring exists.
        self.socket = raw_socket.open_socket(interface, 0, code)
        request = struct.pack("IIIIIII", _BLOCK, _BLOCKS, _FRAME, _BLOCK * _BLOCKS // _FRAME, _RETIRE_MS, 0, 0)
        try:
            self.socket.setsockopt(_SOL_PACKET, _VERSION, _TPACKET_V3)
            self.socket.setsockopt(_SOL_PACKET, _RX_RING, request)
            self._area = mmap.mmap(self.socket.fileno(), _BLOCK * _BLOCKS)
            self.socket.bind((interface, raw_socket.ETH_P_ALL))
        except OSError as e:
            self.socket.close()
            raise KernelError(f"make a ring for the packets of {interface}", e.errno or 0) from None

    def take(self) -> Iterator[Arrival]:
        """Yield the frames of the blocks that the kernel has handed over, and return the blocks to it."""
        for _ in range(_BLOCKS):
            block = self._next * _BLOCK
            status, packets, first = struct.unpack_from("III", self._area, block + _STATUS_AT)
            if not status & _USER:
                return
            at = block + first
            for _ in range(packets):
                step, arrival = self._packet(at)
                yield arrival
                at += step
            struct.pack_into("I", self._area, block + _STATUS_AT, 0)
            self._next = (self._next + 1) % _BLOCKS

    def _packet(self, at: int) -> tuple[int, Arrival]:
        step, seconds, nanoseconds, kept, length, status, mac, _, _, tci = _HEADER.unpack_from(self._area, at)
        data = self._area[at + mac : at + mac + kept]
        vlan = tci & 0xFFF if status & _VLAN_VALID else None
        outgoing = self._area[at + _KIND_AT] == socket.PACKET_OUTGOING
        return step, Arrival(self._key, data, seconds * 10**9 + nanoseconds, outgoing, vlan, length)

    def lost(self) -> int:
        _, drops, _ = struct.unpack("III", self.socket.getsockopt(_SOL_PACKET, _STATISTICS, 12))
        return int(drops)

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            self._area.close()
        self.socket.close()
