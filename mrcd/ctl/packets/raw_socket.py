# SPDX-License-Identifier: BSD-2-Clause
"""Opens packet sockets at the plane NICs, which send frames and receive them before tc ingress."""

import ctypes as ct
import errno
import fcntl
import os
import select
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

from mrcd.errors import KernelError, MachineError

ETH_P_ALL = 0x0003
_SOL_PACKET, _PACKET_AUXDATA = 263, 8
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 26, 33, 35
_TP_STATUS_VLAN_VALID = 1 << 4
_SIOCGIFFLAGS, _IFF_RUNNING = 0x8913, 0x40  # netdevice(7)
_BUFFER = 1 << 24  # bytes
_LONGEST = 1 << 17  # bytes of a frame


@dataclass(frozen=True)
class Arrival:
    """A captured frame. `vlan` is the tag that the kernel removed; `ns` is the kernel's CLOCK_REALTIME."""

    key: int
    data: bytes
    ns: int
    outgoing: bool
    vlan: int | None
    length: int


def open_socket(interface: str, protocol: int = 0, code: bytes = b"") -> socket.socket:
    """Return a packet socket at an interface; with `code` (socket_filter.py) it receives accepted packets only.

    Raises MachineError if there is no such interface or the kernel refuses.
    """
    try:
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    except PermissionError:
        raise MachineError("only root may open packet sockets", hint="run mrcctl as root or with CAP_NET_RAW") from None
    try:
        if code:
            kept = ct.create_string_buffer(code)
            program = struct.pack("HP", len(code) // 8, ct.addressof(kept))
            s.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        if protocol:
            s.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
            s.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            s.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        s.bind((interface, protocol))
    except OSError as e:
        s.close()
        raise KernelError(f"open a packet socket at {interface}", e.errno or errno.EINVAL) from None
    return s


class Taps:
    """Receives the frames that pass some interfaces. Use as a context manager."""

    def __init__(self, interfaces: Iterable[tuple[int, str]], code: bytes) -> None:
        """`interfaces` has a key and a name for each; `code` is a filter of socket_filter.py."""
        self._sockets: dict[int, tuple[int, socket.socket]] = {}
        self._poll = select.poll()
        try:
            for key, name in interfaces:
                s = open_socket(name, ETH_P_ALL, code)
                self._sockets[s.fileno()] = key, s
                self._poll.register(s, select.POLLIN)
        except MachineError:
            self.close()
            raise

    def __enter__(self) -> "Taps":
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets."""
        for _, s in self._sockets.values():
            s.close()

    def wait(self, timeout_s: float) -> list[Arrival]:
        """Return the frames that have arrived; without any, wait for the first, at most `timeout_s`."""
        found = []
        for fd, _ in self._poll.poll(max(0, timeout_s) * 1000):
            key, s = self._sockets[fd]
            for _ in range(256):  # then read the other sockets
                try:
                    data, ancillary, _, address = s.recvmsg(_LONGEST, 256)
                except BlockingIOError:
                    break
                except OSError as e:
                    if e.errno == errno.ENETDOWN:  # reported once, when the interface goes down
                        break
                    raise
                found.append(_arrival(key, data, ancillary, address[2]))
        return found


def _arrival(key: int, data: bytes, ancillary: list[tuple[int, int, bytes]], kind: int) -> Arrival:
    ns, vlan, length = time.time_ns(), None, len(data)
    for level, what, value in ancillary:
        if (level, what) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, nanoseconds = struct.unpack("qq", value[:16])
            ns = seconds * 1_000_000_000 + nanoseconds
        elif (level, what) == (_SOL_PACKET, _PACKET_AUXDATA):
            status, length, _, _, _, tci, _ = struct.unpack("IIIHHHH", value[:20])
            vlan = tci & 0xFFF if status & _TP_STATUS_VLAN_VALID else None
    return Arrival(key, data, ns, kind == socket.PACKET_OUTGOING, vlan, length)


def name_of(ifindex: int, otherwise: str) -> str:
    """Return the name of an interface; `otherwise` if it no longer exists."""
    try:
        return socket.if_indextoname(ifindex)
    except OSError:
        return otherwise


def hardware_address(s: socket.socket) -> bytes:
    """Return the MAC address of the interface that a packet socket is bound to."""
    return bytes(s.getsockname()[4][:6])


def has_carrier(interface: str) -> bool | None:
    """Return whether an interface is up and has a carrier; None if it does not exist. Raises KernelError."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
        try:
            answer = fcntl.ioctl(s, _SIOCGIFFLAGS, struct.pack("16sH14x", interface.encode(), 0))
        except OSError as e:
            if e.errno == errno.ENODEV:
                return None
            raise KernelError(f"read the flags of {interface}", e.errno or 0) from None
    flags = struct.unpack("16sH14x", answer)[1]
    return bool(flags & _IFF_RUNNING)


def random_token() -> int:
    """Return a random 32-bit number that identifies this run's packets."""
    return int.from_bytes(os.urandom(4), "big")
