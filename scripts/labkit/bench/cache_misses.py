# SPDX-License-Identifier: BSD-2-Clause
"""Sends packets to more peers than a CPU's caches hold, and measures one wait for memory.

The wait is measured in place: for each packet a program looks up one EV of the full table and waits for it, once
always the same EV and once a random one.
"""

import ctypes as ct
import random
import struct
from collections.abc import Sequence
from statistics import median

from labkit.bench import packet_sender
from labkit.cluster.observe import Document
from mrcd.kernel import abi, libbpf

SETS = (16, 64, 256, 1024)  # peers
RUN = 16  # packets to a peer before those to the next peer, as in a flow's bursts
_SCHED_CLS = 3  # enum bpf_prog_type
_LOOK_UP, _TIME, _RANDOM = 1, 5, 7  # enum bpf_func_id
_PSEUDO_MAP_FD = 1  # source register of a 64-bit load of a map


def among(everyone: Sequence[int], peers: int) -> list[int]:
    """Returns `peers` peers in random order, repeatedly in new orders, one packet each."""
    chance = random.Random(peers)
    some = chance.sample(list(everyone), peers)
    return [p for _ in range(-(-4 * packet_sender.BATCH // peers)) for p in chance.sample(some, peers)]


def in_runs(everyone: Sequence[int]) -> list[int]:
    """Returns all peers, `RUN` packets to each in a row."""
    return [p for p in everyone for _ in range(RUN)]


def load(evs: int, entries: int, *, anywhere: bool) -> int:
    """Loads a tc program that waits for the state of one EV of a table: a random one, or always the first.

    `evs` is the table's descriptor; `entries`, a power of two, is its size. The caller closes the descriptor.
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
        _instruction(0x15, 0, offset=2),  # no entry: go to the end
        _instruction(0x61, 1, 0, abi.EV.fields["state"][1]),  # type: ignore[index]
        _instruction(0x85, immediate=_TIME),  # a CPU reads its clock only after all earlier loads
        _instruction(0xB7, 0, immediate=-1),  # r0 = TC_ACT_UNSPEC: continue with the next program
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
    """Returns the least cost of a packet in mrc_push that waits for one EV outside of the caches.

    The cost with one peer is the base. All values are ns, of the same rounds. Pure.
    """
    waits = [b - a for a, b in zip(same, anywhere, strict=True)]
    return {
        "wait_ns": median(waits),
        "min_wait_ns": min(waits),
        "max_wait_ns": max(waits),
        "least_ratio": 1 + median(w / p for w, p in zip(waits, push, strict=True)),
    }
