# SPDX-License-Identifier: BSD-2-Clause
"""Finds the path that the kernel's fallback route takes from one host to another."""

import json
from dataclasses import dataclass
from ipaddress import IPv6Address

from labkit.cluster import observe
from labkit.cluster.api import Lab
from mrcd.errors import MachineError
from mrcd.fabric.topology import UDT4
from mrcd.net.routes import with_function


@dataclass(frozen=True)
class KernelPath:
    """A path: the sender, and what it crosses there."""

    sender: str
    plane: int
    t0: int  # the sender's
    t1: int


def find(lab: Lab, sender: str, receiver: str) -> KernelPath:
    """Returns the path of IPv4 packets between two hosts that are detached. Raises MachineError."""
    source, target = (str(lab.fabric.config.host(h).prefixes[0].network_address) for h in (sender, receiver))
    done = lab.exec(sender, ["ip", "-json", "route", "get", target, "from", source], check=True)
    segment = IPv6Address(json.loads(done.stdout)[0].get("segs", ["::"])[-1])
    for path in observe.paths(lab, sender, receiver):
        if with_function(IPv6Address(path["segments"][-1]), UDT4) == segment:
            return KernelPath(sender, path["plane"], lab.fabric.config.host(sender).t0, path["t1"])
    raise MachineError(
        f"{sender} has no SRv6 route of the kernel to {receiver}", hint="are the hosts detached? see ip route there"
    )
