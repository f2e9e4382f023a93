# SPDX-License-Identifier: BSD-2-Clause
"""Reads an interface's state by an ioctl that needs no privilege, and how many packets arrived on it."""

import fcntl
import socket
import struct
from enum import StrEnum
from pathlib import Path

_SIOCGIFFLAGS, _SIOCGIFMTU = 0x8913, 0x8921  # netdevice(7)
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_IFREQ, _IFREQ_MTU = "16sH22x", "16si20x"
_SYSCTLS = Path("/proc/sys/net/ipv6/conf")


class LinkState(StrEnum):
    """The state of an interface."""

    MISSING = "missing"
    DISABLED = "disabled"  # administratively down
    NO_CARRIER = "no_carrier"
    NO_IPV6 = "no_ipv6"  # by its sysctl disable_ipv6
    SMALL_MTU = "small_mtu"
    UP = "up"


def link_state(interface: str, mtu: int = 0, sysctls: Path = _SYSCTLS) -> LinkState:
    """Returns the state of an interface of this network namespace, which should have this MTU."""
    name = interface.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            _, flags = struct.unpack(_IFREQ, fcntl.ioctl(s, _SIOCGIFFLAGS, struct.pack(_IFREQ, name, 0)))
            _, size = struct.unpack(_IFREQ_MTU, fcntl.ioctl(s, _SIOCGIFMTU, struct.pack(_IFREQ_MTU, name, 0)))
        except OSError:
            return LinkState.MISSING
    if not flags & _IFF_UP:
        return LinkState.DISABLED
    if not flags & _IFF_RUNNING:
        return LinkState.NO_CARRIER
    if size < mtu:
        return LinkState.SMALL_MTU
    return LinkState.NO_IPV6 if _is_set(sysctls / interface / "disable_ipv6") else LinkState.UP


def _is_set(sysctl: Path) -> bool:
    try:
        return sysctl.read_text(encoding="ascii").strip() == "1"
    except OSError:  # the kernel has no IPv6, or the interface has just gone
        return False


_DEVICES = Path("/proc/net/dev")


def received_packets(interface: str, devices: Path = _DEVICES) -> int:
    """Returns the packets since the interface exists; 0 if it does not."""
    try:
        lines = devices.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    names = (line.split(":", 1) for line in lines[2:])
    return next((int(counts.split()[1]) for name, counts in names if name.strip() == interface), 0)


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
