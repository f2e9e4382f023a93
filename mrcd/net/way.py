# SPDX-License-Identifier: BSD-2-Clause
"""Says which route the kernel takes to a peer, and whether it is mrcd's. Pure; netlink.py asks."""

import os
from dataclasses import dataclass

from mrcd.net.messages import PROTOCOL, TABLE_MAIN, Route


@dataclass(frozen=True)
class Way:
    """The route that the kernel takes from an address of this host to one of a peer; or why it takes none."""

    destination: str
    source: str | None = None
    error: int = 0  # errno
    table: int = 0
    protocol: int = 0
    is_local: bool = False
    dst: str = ""  # prefix
    metric: int = 0
    interface: str = ""

    def follows(self, route: Route) -> bool:
        """Returns whether it is this route of mrcd, or one of mrcd's to a longer prefix within its destination."""
        is_ours = not self.error and (self.table, self.protocol) == (TABLE_MAIN, PROTOCOL)
        return is_ours and (self.dst != route.dst or self.metric == route.metric)

    @property
    def words(self) -> str:
        """Returns what the kernel does with packets to the peer."""
        if self.error:
            return f"refuses packets to {self.destination} ({os.strerror(self.error)})"
        if self.is_local:
            return f"takes {self.destination} for an address of this host ({self.interface})"
        by = f"{self.dst} dev {self.interface}" + (f" metric {self.metric}" if self.metric else "")
        where = "" if self.table == TABLE_MAIN else f" of table {self.table}, to which a rule leads"
        return f"takes the route {by}{where}"

    @property
    def command(self) -> str:
        """Returns the command that shows the same."""
        return f"ip route get fibmatch {self.destination}" + (f" from {self.source}" if self.source else "")
