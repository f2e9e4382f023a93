# SPDX-License-Identifier: BSD-2-Clause
"""Sends many packets by few system calls: UDP to many hosts, or given frames."""

import socket
from collections.abc import Sequence

from labkit.traffic.udpend import Messages, opened, sockaddr
from mrcd.errors import KernelError

BATCH = 1024
_PORT = 9  # discard (RFC 863)


class PacketSender:
    """A socket and its packets. Create it in the network namespace that it sends in."""

    def __init__(self, out: socket.socket, messages: Messages) -> None:
        self._out, self._messages = out, messages

    def send(self, packets: int) -> int:
        """Sends the next packets, in turn. Returns how many. Raises KernelError."""
        left = packets
        try:
            while left > 0:
                left -= self._messages.send(self._out.fileno(), left)
        except OSError as e:
            raise KernelError("send many packets", e.errno or 0) from None
        return packets

    def close(self) -> None:
        """Closes the socket."""
        self._out.close()


def udp(source: str, targets: Sequence[str], payload: int) -> PacketSender:
    """Returns a sender of UDP packets to these addresses in turn."""
    out = opened(source)
    out.bind((source, 0))
    return PacketSender(out, Messages([bytes(payload)], [sockaddr(t, _PORT) for t in targets], BATCH))


def frames(interface: str, contents: Sequence[bytes]) -> PacketSender:
    """Returns a sender of Ethernet frames through an interface, in turn."""
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    out.bind((interface, 0))
    return PacketSender(out, Messages(contents, most=BATCH))
