# SPDX-License-Identifier: BSD-2-Clause
"""Keeps every host of the lab sending to every other, at a low rate, so that each path carries traffic.

with Mesh(lab, rate=400):
    …
"""

import subprocess
import sys
from types import TracebackType
from typing import Any

from labkit.cluster.api import Lab
from labkit.places import end_program

PROGRAM = end_program("meshend")
PORT = 7100


class Mesh:
    """UDP packets from each host to each other one, `rate` per second and pair. Use as a context manager."""

    def __init__(self, lab: Lab, rate: int) -> None:
        self._lab, self._rate = lab, rate
        self._children: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> "Mesh":
        hosts = self._lab.fabric.hosts
        addresses = {h: f"10.99.0.{i + 1}" for i, h in enumerate(hosts)}
        for host in hosts:
            peers = [a for h, a in addresses.items() if h != host]
            argv = [sys.executable, "-I", str(PROGRAM), addresses[host], str(PORT), str(self._rate), *peers]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._children.append(self._lab.popen(host, argv, **pipes))
        for child in self._children:
            assert child.stdout is not None
            child.stdout.readline()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for child in self._children:
            assert child.stdin is not None
            child.stdin.close()
        for child in self._children:
            try:
                child.wait(3)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
