# SPDX-License-Identifier: BSD-2-Clause
"""Makes faults that take more than one command: they go on until their end."""

import subprocess
import threading
from collections.abc import Sequence

from labkit.cluster import observe
from labkit.cluster.api import Lab


class ForeignPackets:
    """Packets of an address that the cluster file gives to no host."""

    ADDRESS = "198.51.100.1"

    def __init__(self) -> None:
        self._ping: subprocess.Popen[bytes] | None = None

    def begin(self, lab: Lab) -> None:
        """Gives h0 the address, and pings from it."""
        lab.exec("h0", ["ip", "address", "add", f"{self.ADDRESS}/32", "dev", "lo"], check=True)
        argv = ["ping", "-q", "-i0.05", f"-I{self.ADDRESS}", "10.99.0.3"]
        self._ping = lab.popen("h0", argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self, lab: Lab) -> None:
        """Undoes it."""
        if self._ping is not None:
            self._ping.kill()
            self._ping.wait()
        lab.exec("h0", ["ip", "address", "del", f"{self.ADDRESS}/32", "dev", "lo"], check=True)


class FlappingLink:
    """A link that fails for a moment each time its EVs have been in use for some seconds."""

    DEAD_S, WELL_S = 0.3, 4.5  # less than hold_down_max_ms: no flap is forgotten; enough for a diagnosis to end

    def __init__(self, target: str, hosts: Sequence[str]) -> None:
        self._target, self._hosts = target, hosts
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, lab: Lab) -> None:
        """Starts it."""
        self._is_over.clear()
        self._thread = threading.Thread(target=self._flap, args=(lab,), daemon=True)
        self._thread.start()

    def _flap(self, lab: Lab) -> None:
        while not self._is_over.is_set():
            lab.fail(self._target)
            self._is_over.wait(self.DEAD_S)
            lab.heal(self._target)
            while any(self._failed(lab, host) for host in self._hosts) and not self._is_over.wait(0.2):
                pass
            self._is_over.wait(self.WELL_S)

    def _failed(self, lab: Lab, host: str) -> int:
        return int(observe.client(lab, host).get("/v1/status")["evs"]["ASSUMED_BAD"])

    def end(self, lab: Lab) -> None:
        """Ends it, with a link that works."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
