# SPDX-License-Identifier: BSD-2-Clause
"""Measures how far TCP data arrives out of order in a host (program lab_order, bpf/lab/order.bpf.c)."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Sequence

from labkit.cluster import netns
from labkit.faults import tc_hook
from mrcd.kernel import libbpf

BUCKETS = 32
ORDER = struct.Struct(f"=II{BUCKETS}Q")  # struct order
_ONLY = struct.pack("=I", 0)


class Order:
    """Counts for the newest flow: skbs (packets, or whole bursts) by their lateness."""

    def __init__(self, counts: int) -> None:
        self._counts = counts

    def late(self) -> list[int]:
        """Returns skbs by lateness: [0] in order, [n] late by 2^(n-1) to 2^n - 1 bytes."""
        raw = libbpf.lookup_elem(self._counts, _ONLY, ORDER.size)
        return list(ORDER.unpack(raw or bytes(ORDER.size))[2:])


@contextlib.contextmanager
def watching(namespace: str, ports: Sequence[str]) -> Iterator[Order]:
    """A block in which reordering is counted at these ports of a host. Raises MachineError."""
    with contextlib.ExitStack() as undo:
        obj = undo.enter_context(tc_hook.loaded("order"))
        program = libbpf.program_fd(obj, "lab_order")
        with netns.inside(namespace):
            for port in ports:
                link = libbpf.create_link(program, socket.if_nametoindex(port), libbpf.TCX_INGRESS)
                undo.callback(os.close, link)  # not pinned: it ends with its last descriptor
        yield Order(tc_hook.map_fd(obj, "orders"))


def share_late(late: Sequence[int]) -> float:
    """Returns the share of skbs that came late. Pure."""
    return sum(late[1:]) / sum(late) if sum(late) else 0.0


def percentile(late: Sequence[int], share: float) -> int:
    """Returns a lateness in bytes below which that share of skbs is: a power of two; 0 = in order. Pure."""
    wanted, seen = share * sum(late), 0
    for bucket, n in enumerate(late):
        seen += n
        if seen >= wanted:
            return 1 << bucket if bucket else 0
    return 0
