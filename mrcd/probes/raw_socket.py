# SPDX-License-Identifier: BSD-2-Clause
"""Opens packet sockets at the plane NICs: they send frames, and receive diagnostic MRC packets before tc ingress."""

import ctypes as ct
import errno
import fcntl
import select
import socket
import struct
import time
from collections.abc import Iterable

from mrcd.errors import KernelError, MachineError

ETH_P_ALL = 0x0003
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 26, 33, 35
_SIOCGIFFLAGS, _IFF_RUNNING = 0x8913, 0x40  # netdevice(7)
_BUFFER = 1 << 24  # bytes
_LONGEST = 1 << 17  # bytes of a frame

# Operations of classic BPF. Loads: absolute, relative to X, into X.
_LDH, _LDB, _LDH_X, _LDB_X, _LDX = 0x28, 0x30, 0x48, 0x50, 0x01
_MUL, _ADD, _ADD_X, _TAX = 0x24, 0x04, 0x0C, 0x07
_JEQ, _JSET, _RET = 0x15, 0x45, 0x06


def packet_filter(udp_port: int, flag: int) -> bytes:
    """Return an array of struct sock_filter that accepts MRC packets with this bit in mrc_hdr.flags.

    They are IPv6 UDP packets with an optional VLAN tag and an optional SRH before UDP, and no other header.
    """
    ip6, udp, accept, reject = 7, 17, 21, 22
    lines = [  # operation, constant, the next line if true, and if false; 0 is the line below
        (_LDX, 0, 0, 0),
        (_LDH, 12, 0, 0),
        (_JEQ, 0x86DD, ip6, 0),
        (_JEQ, 0x8100, 0, reject),
        (_LDX, 4, 0, 0),
        (_LDH, 16, 0, 0),
        (_JEQ, 0x86DD, 0, reject),
        (_LDB_X, 20, 0, 0),  # ip6: next header
        (_JEQ, socket.IPPROTO_UDP, udp, 0),
        (_JEQ, socket.IPPROTO_ROUTING, 0, reject),
        (_LDB_X, 54, 0, 0),  # next header after the routing header
        (_JEQ, socket.IPPROTO_UDP, 0, reject),
        (_LDB_X, 55, 0, 0),  # length of the routing header
        (_MUL, 8, 0, 0),
        (_ADD, 8, 0, 0),
        (_ADD_X, 0, 0, 0),
        (_TAX, 0, 0, 0),
        (_LDH_X, 56, 0, 0),  # udp: destination port
        (_JEQ, udp_port, 0, reject),
        (_LDB_X, 64, 0, 0),
        (_JSET, flag, accept, reject),
        (_RET, 0x40000, 0, 0),  # accept: more bytes than the longest frame has
        (_RET, 0, 0, 0),
    ]
    return b"".join(
        struct.pack("HBBI", operation, yes and yes - at - 1, no and no - at - 1, constant)
        for at, (operation, constant, yes, no) in enumerate(lines)
    )


def open_socket(interface: str, protocol: int = 0, code: bytes = b"") -> socket.socket:
    """Return a packet socket at an interface; with `code` (packet_filter) it receives accepted packets only.

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
        s.bind((interface, protocol))
    except OSError as e:
        s.close()
        raise KernelError(f"open a packet socket at {interface}", e.errno or errno.EINVAL) from None
    return s


class Taps:
    """Receives the frames that arrive at some interfaces and that a filter accepts."""

    def __init__(self, interfaces: Iterable[str], code: bytes) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._poll = select.poll()
        try:
            for name in interfaces:
                s = open_socket(name, ETH_P_ALL, code)
                self._sockets[s.fileno()] = s
                self._poll.register(s, select.POLLIN)
        except MachineError:
            self.close()
            raise

    def close(self) -> None:
        """Close the sockets."""
        for s in self._sockets.values():
            s.close()

    def wait(self, timeout_s: float) -> list[tuple[bytes, int]]:
        """Return the frames that have arrived, each with its CLOCK_REALTIME in ns.

        Without any, wait for the first, at most `timeout_s`.
        """
        found = []
        for fd, _ in self._poll.poll(max(0, timeout_s) * 1000):
            for _ in range(256):  # then read the other sockets
                try:
                    data, ancillary, _, address = self._sockets[fd].recvmsg(_LONGEST, 256)
                except BlockingIOError:
                    break
                except OSError as e:
                    if e.errno == errno.ENETDOWN:  # reported once, when the interface goes down
                        break
                    raise
                if address[2] != socket.PACKET_OUTGOING:
                    found.append((data, _arrived_ns(ancillary)))
        return found


def _arrived_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    for level, what, value in ancillary:
        if (level, what) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
            seconds, nanoseconds = struct.unpack("qq", value[:16])
            return int(seconds * 1_000_000_000 + nanoseconds)
    return time.time_ns()


def name_of(ifindex: int, otherwise: str) -> str:
    """Return the name of an interface; `otherwise` if it no longer exists."""
    try:
        return socket.if_indextoname(ifindex)
    except OSError:
        return otherwise


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
