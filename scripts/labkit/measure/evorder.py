# SPDX-License-Identifier: BSD-2-Clause
"""Counts reordering and loss per EV at the last switch ports before a host (bpf/lab/evorder.bpf.c).

with watching(lab, "h0", "h2") as order:
    …
    order.read()            # the counts since the beginning
"""

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from labkit.cluster.api import Lab
from labkit.faults import tc_hook
from mrcd.config.sizes import MAX_EVS_PER_PEER
from mrcd.kernel import libbpf

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
    """The counts of all EVs since the beginning."""

    def __init__(self, table: int) -> None:
        self._table = table

    def read(self) -> Seen:
        """Returns the totals."""
        raw = libbpf.lookup_all(self._table, MAX_EVS_PER_PEER, EV.size)
        evs = [e for e in EV.iter_unpack(raw) if e[0]]
        packets, reordered, missing = (sum(e[i] for e in evs) for i in range(3))
        return Seen(packets, reordered, missing, len(evs), frozenset(e[5] for e in evs))


@contextlib.contextmanager
def watching(lab: Lab, source: str, target: str) -> Iterator[EvOrder]:
    """A block in which the program counts. Only for encapsulation usid or ecmp; any granularity."""
    libbpf.use_bcc()
    config = lab.fabric.config
    settings = struct.pack("=II", config.host(source).id, config.cluster.udp_port)
    with contextlib.ExitStack() as undo:
        obj = undo.enter_context(tc_hook.loaded("evorder", settings))
        attached = tc_hook.Attached("witness")
        undo.callback(attached.remove)
        for link in lab.fabric.links:
            if link.lower.node == target:
                program = libbpf.program_fd(obj, "lab_evorder")
                attached.attach(program, lab.ns(link.upper.node), link.upper.port, "egress")
        yield EvOrder(tc_hook.map_fd(obj, "evorders"))
