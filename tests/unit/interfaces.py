# SPDX-License-Identifier: BSD-2-Clause
"""Makes interfaces as netlink reports them."""

from typing import Any

from mrcd.net.messages import Link

USUAL: dict[str, Any] = {
    "mac": "02:00:00:00:00:01", "enabled": True, "up": True, "mtu": 9100, "kind": None, "lower": None, "vlan": 0,
    "noarp": False,
}  # fmt: skip


def link(name: str = "p0", ifindex: int = 2, **other: object) -> Link:
    """Returns an interface: a NIC that is up, except for other fields."""
    return Link(name=name, ifindex=ifindex, **USUAL | other)
