# SPDX-License-Identifier: BSD-2-Clause
"""Keeps every host of the lab sending to every other, at a low rate, so that each path carries traffic.

with Mesh(lab, rate=400):
    …
"""

import sys
from typing import Any

from labkit.cluster.api import Lab
from labkit.cluster.patience import patience
from labkit.places import end_program
from labkit.traffic.child import Child, Children
from mrcd.errors import MachineError

PROGRAM = end_program("udpend")
PORT = 7100
_START_S = patience(10.0)


class Mesh(Children):
    """UDP packets from each host to each other one, `rate` per second and pair. Use as a context manager.

    Their payload has `size` bytes. Two meshes at a time need different ports.
    """

    def __init__(self, lab: Lab, rate: int, size: int = 64, port: int = PORT) -> None:
        super().__init__(lab)
        self._words = [str(port), str(rate), str(size)]
        self._ready: set[str] = set()

    def _begin(self) -> None:
        hosts = self._lab.fabric.hosts
        addresses = {h: self._lab.fabric.address(h) for h in hosts}
        for host in hosts:
            peers = [a for h, a in addresses.items() if h != host]
            argv = [sys.executable, "-I", str(PROGRAM), "mesh", addresses[host], *self._words, *peers]
            self._start(host, argv)
        words = "a host of the mesh does not begin to send"
        self._wait(_START_S, lambda: self._ready == set(hosts), lambda: words, hint="scripts/lab status")

    def _take(self, child: Child, said: dict[str, Any]) -> None:
        self._ready.add(child.node)

    def _ended(self, child: Child) -> MachineError:
        return MachineError(f"the mesh ended by itself: {child.node}: {child.last_words}")
