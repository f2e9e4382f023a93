# SPDX-License-Identifier: BSD-2-Clause
"""Reads how many IPv6 packets arrived on an interface for addresses to which the kernel has no route."""

from pathlib import Path

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
