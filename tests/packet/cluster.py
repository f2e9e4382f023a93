"""The cluster that the bench's host is one of, and the hardware addresses at its wires."""

from dataclasses import dataclass

import pytest

from mrcd.config import Steering

PLANES, SLOTS = 4, 4
EVS = PLANES * SLOTS
ALL_PORTS = (1 << PLANES) - 1

CLUSTER = """
[cluster]
planes = 4
t0s = 2
t1s = 4
evs_per_peer = 16
mtu = 1500
steering = "{steering}"
[[hosts]]
name = "h0"
id = 0
t0 = 0
port = 0
prefixes = ["10.99.0.1/32", "fd00:99::1/128"]
[[hosts]]
name = "h1"
id = 1
t0 = 0
port = 1
prefixes = ["10.99.0.2/32", "fd00:99::2/128"]
[[hosts]]
name = "h2"
id = 2
t0 = 1
port = 0
prefixes = ["10.99.0.3/32", "fd00:99::3/128"]
[[hosts]]
name = "h5"
id = 5
t0 = 1
port = 1
prefixes = ["10.99.0.6/32", "fd00:99::6/128"]
"""
H0, H1, H2, H5 = 0, 1, 2, 5


@dataclass(frozen=True)
class Setup:
    """A cluster to load the programs for: steering, width of a peer's table, lines of [health], and what follows."""

    steering: Steering = "usid"
    health: str = ""
    evs: int = EVS
    more: str = ""

    @property
    def text(self) -> str:
        """The configuration file."""
        cluster = CLUSTER.format(steering=self.steering).replace("evs_per_peer = 16", f"evs_per_peer = {self.evs}")
        return f"{cluster}[health]\n{self.health}\n{self.more}"


def nic_mac(plane: int) -> str:
    """MAC of this host's NIC."""
    return f"02:00:00:00:00:{plane:02x}"


def wire_mac(plane: int) -> str:
    """MAC of the T0 at the other end."""
    return f"02:00:00:00:01:{plane:02x}"


all_steerings = pytest.mark.parametrize("bench", ["usid", "srh", "ecmp"], indirect=True)
