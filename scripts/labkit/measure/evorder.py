# SPDX-License-Identifier: BSD-2-Clause
"""Counts reordering and loss per EV at the last switch ports before a host (bpf/lab/evorder.bpf.c).

with EvOrder(lab, "h0", "h2") as order:
    …
    order.read()            # the counts since the beginning
"""

import struct
from dataclasses import dataclass, replace
from types import TracebackType

from labkit.cluster.api import Lab
from labkit.faults.tc_hook import Attached
from labkit.places import lab_object
from mrcd.config.sizes import MAX_EVS_PER_PEER
from mrcd.errors import MachineError
from mrcd.kernel import libbpf

OBJECT = lab_object("evorder")
PROGRAM = "lab_evorder"
EV = struct.Struct("=QQqIHH")  # struct evorder: packets, reordered, missing, next, begun, hop_limit


@dataclass(frozen=True)
class Seen:
    """Totals over all EVs, in wire packets."""

    packets: int = 0
    reordered: int = 0
    missing: int = 0
    evs: int = 0  # EVs that carried packets
    hop_limits: frozenset[int] = frozenset()  # of the last packet on each EV

    def since(self, before: "Seen") -> "Seen":
        """Returns the counts between two readings."""
        return replace(
            self,
            packets=self.packets - before.packets,
            reordered=self.reordered - before.reordered,
            missing=self.missing - before.missing,
        )


class EvOrder:
    """Attached for the length of a block. Only for encapsulation usid or ecmp; any granularity."""

    def __init__(self, lab: Lab, source: str, target: str) -> None:
        self._lab, self._source, self._target = lab, source, target
        self._object = 0
        self._attached = Attached("witness")

    def __enter__(self) -> "EvOrder":
        if not OBJECT.exists():
            raise MachineError(f"{OBJECT} is missing: the lab's order program is not compiled", hint="make build")
        libbpf.use_bcc()
        config = self._lab.fabric.config
        self._object = libbpf.open_object(OBJECT)
        try:
            maps = libbpf.maps_of(self._object)
            rodata = next(m for name, m in maps.items() if name.endswith(".rodata"))
            settings = struct.pack("=II", config.host(self._source).id, config.cluster.udp_port)
            libbpf.set_initial_value(rodata, settings)
            libbpf.load_object(self._object)
            program = libbpf.program_fd(self._object, PROGRAM)
            for link in self._lab.fabric.links:
                if link.lower.node == self._target:
                    self._attached.attach(program, self._lab.ns(link.upper.node), link.upper.port, "egress")
            self._table = libbpf.map_fd(maps["evorders"])
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def read(self) -> Seen:
        """Returns the counts since the beginning."""
        raw = libbpf.lookup_all(self._table, MAX_EVS_PER_PEER, EV.size)
        evs = [e for e in EV.iter_unpack(raw) if e[0]]
        packets, reordered, missing = (sum(e[i] for e in evs) for i in range(3))
        return Seen(packets, reordered, missing, len(evs), frozenset(e[5] for e in evs))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._attached.remove()
        if self._object:
            libbpf.close_object(self._object)
            self._object = 0
