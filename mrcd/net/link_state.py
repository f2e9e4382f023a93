# SPDX-License-Identifier: BSD-2-Clause
"""Reads whether an interface exists, is switched on and has a carrier, by an ioctl that needs no privilege."""

import fcntl
import socket
import struct
from enum import StrEnum

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
