# SPDX-License-Identifier: BSD-2-Clause
"""Reads an interface's state by an ioctl that needs no privilege, and how many unroutable packets arrived on it."""

import fcntl
import socket
import struct
from enum import StrEnum
from pathlib import Path

_SIOCGIFFLAGS = 0x8913  # netdevice(7)
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_IFREQ = "16sH22x"


class LinkState(StrEnum):
    """The state of an interface."""

    MISSING = "missing"
    DISABLED = "disabled"  # administratively down
    NO_CARRIER = "no_carrier"
    UP = "up"


def link_state(interface: str) -> LinkState:
    """Returns the state of an interface of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            answer = fcntl.ioctl(s, _SIOCGIFFLAGS, struct.pack(_IFREQ, interface.encode(), 0))
        except OSError:
            return LinkState.MISSING
    _, flags = struct.unpack(_IFREQ, answer)
    if not flags & _IFF_UP:
        return LinkState.DISABLED
    return LinkState.UP if flags & _IFF_RUNNING else LinkState.NO_CARRIER


_COUNTERS = Path("/proc/net/dev_snmp6")
_NO_ROUTE = "Ip6InNoRoutes"


def unroutable_packets(interface: str, counters: Path = _COUNTERS) -> int:
    """Returns the packets since the interface exists; 0 if it does not, or has no IPv6.

    A host with a default route drops such packets without counting them.
    """
    try:
        lines = (counters / interface).read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(_NO_ROUTE)), 0)
