"""Packets to more peers than a CPU's caches hold: in which order, and what one wait for memory takes.

What that wait takes is measured in place: a program that looks up one EV of the full table for each packet and waits
for it, once always the same and once one at random.
"""

import ctypes as ct
import random
import struct
from collections.abc import Sequence
from statistics import median

from labkit.bench import blast
from labkit.cluster.observe import Document
from mrcd.bpf import libbpf
from mrcd.tables import abi

SETS = (16, 64, 256, 1024)  # peers
RUN = 16  # packets to a peer before the next one's: the burst of a flow
_SCHED_CLS = 3  # enum bpf_prog_type
_LOOK_UP, _TIME, _RANDOM = 1, 5, 7  # enum bpf_func_id
_PSEUDO_MAP_FD = 1  # the source of a 64-bit constant that is a map


def among(everyone: Sequence[int], peers: int) -> list[int]:
    """So many of the peers in random order, again and again in another one, one packet each."""
    chance = random.Random(peers)
    some = chance.sample(list(everyone), peers)
    return [p for _ in range(-(-4 * blast.BATCH // peers)) for p in chance.sample(some, peers)]


def in_runs(everyone: Sequence[int]) -> list[int]:
    """All peers, `RUN` packets to each in a row."""
    return [p for p in everyone for _ in range(RUN)]


def load(evs: int, entries: int, *, anywhere: bool) -> int:
    """A program for tc that waits for the state of one EV of a table: at random, or always the first.

    `evs` is the table's descriptor, `entries`, a power of two, how many it has. The caller closes the descriptor.
    Raises KernelError.
    """
    code = [
        _instruction(0x85, immediate=_RANDOM),  # r0 = random
        _instruction(0x57, 0, immediate=entries - 1 if anywhere else 0),  # r0 &= …
        _instruction(0x63, 10, 0, -4),  # the key = r0
        _instruction(0x18, 1, _PSEUDO_MAP_FD, immediate=evs),  # r1 = the table
        _instruction(0),  # its other half
        _instruction(0xBF, 2, 10),  # r2 = r10
        _instruction(0x07, 2, immediate=-4),  # r2 = &key
        _instruction(0x85, immediate=_LOOK_UP),
        _instruction(0x15, 0, offset=2),  # none: to the end
        _instruction(0x61, 1, 0, abi.EV.fields["state"][1]),  # type: ignore[index]
        _instruction(0x85, immediate=_TIME),  # a CPU reads its clock when all earlier reads are done
        _instruction(0xB7, 0, immediate=-1),  # r0 = TC_ACT_UNSPEC: the next program's turn
        _instruction(0x95),
    ]
    made = libbpf.lib().bpf_prog_load(
        _SCHED_CLS, b"one_ev", b"Dual BSD/GPL", b"".join(code), ct.c_size_t(len(code)), None
    )
    return libbpf.check("load a program that looks up one EV", made)


def _instruction(code: int, to: int = 0, source: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    """struct bpf_insn"""
    return struct.pack("<BBhi", code, source << 4 | to, offset, immediate)


def floor(push: Sequence[float], same: Sequence[float], anywhere: Sequence[float]) -> Document:
    """What a packet of mrc_push costs at least if it waits for one EV that is in no cache, by what it costs with one
    peer: all ns, of the same rounds. Pure."""
    waits = [b - a for a, b in zip(same, anywhere, strict=True)]
    return {
        "wait_ns": median(waits),
        "min_wait_ns": min(waits),
        "max_wait_ns": max(waits),
        "least_ratio": 1 + median(w / p for w, p in zip(waits, push, strict=True)),
    }
