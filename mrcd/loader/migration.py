"""What new tables take over from those in whose place they come: what is known of peers and paths.

Tables are made anew when their size is another, or their ABI version. Then counters start at zero, on both
ends, but a path that had failed or was denied is the same path, and one that was good need not wait to be
probed. A path is known by where it leads, not by its number; the old records are read by the layout that the
kernel knows of them (BTF), so they may be another version's.
"""

import mmap
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mrcd.bpf import btf, libbpf
from mrcd.errors import MachineError
from mrcd.tables.abi import EvState
from mrcd.tables.pinned import Tables

_PEER = ("heard_ns", "plane_mask", "plane_mask_ns", "status", "generation")
_EV = ("state", "state_since_ns", "reason", "flaps", "weight")
_PATH = ("configured", "dst", "plane", "srh_len")

Records = NDArray[np.void]


def carry(old: Path, tables: Tables, replaced_hosts: AbstractSet[int] = frozenset()) -> Iterator[int]:
    """Copy what is known from the tables pinned at `old` into `tables`, which are filled and not in use yet.
    An address may be another host's now: that of `replaced_hosts`, rows of the new tables.

    Yields the row of each peer that was known, when it is copied. Raises MachineError if the old tables cannot be read.
    """
    with ExitStack() as opened:
        peers, evs, srhs = (opened.enter_context(_mapped(old / f"mrc_{name}")) for name in ("peers", "evs", "srhs"))
        missing = {"configured", "address", *_PEER} - set(peers.dtype.names or ())
        missing |= {*_PATH, *_EV} - set(evs.dtype.names or ())
        if missing or len(evs) % len(peers):
            raise MachineError(f"the tables at {old} do not tell {', '.join(sorted(missing)) or 'peer from peer'}")
        width = len(evs) // len(peers)
        known = {peers[row]["address"].tobytes(): row for row in np.flatnonzero(peers["configured"]).tolist()}
        for row in np.flatnonzero(tables.peers["configured"]).tolist():
            before = known.get(tables.peers[row]["address"].tobytes())
            if before is None or row in replaced_hosts:
                continue
            for name in _PEER:
                tables.peers[name][row] = peers[name][before]
            old_evs = evs[before * width : (before + 1) * width]
            if not _carry_as_they_are(tables.evs[row], old_evs):
                _carry_paths(tables, row, _paths(old_evs, srhs, before * width))
            yield row


def _carry_as_they_are(evs: Records, old: Records) -> bool:
    """Where a peer's EVs are the same paths in the same places, told without looking at each. False if not."""
    if len(evs) != len(old) or evs["srh_len"].any() or any((evs[name] != old[name]).any() for name in _PATH):
        return False
    there = evs["configured"] != 0
    for name in _EV:
        evs[name] = np.where(there, old[name], evs[name])
    evs["state"][evs["state"] == EvState.SKIP] = EvState.GOOD
    return True


def _carry_paths(tables: Tables, row: int, was: dict[tuple[bytes, int], Records]) -> None:
    width = tables.evs.shape[1]
    for key, record in _paths(tables.evs[row], tables.srhs, row * width).items():
        old = was.get(key)
        if old is None:
            continue
        for name in _EV:
            record[name] = old[name]
        if old["state"] == EvState.SKIP:  # for a while only, by what was counted
            record["state"] = EvState.GOOD


def _paths(evs: Records, srhs: Records, first: int) -> dict[tuple[bytes, int], Records]:
    """The configured records of a peer by their path: destination, SRH and plane, and which one of these it is
    (without source routing, several EVs differ by their number alone)."""
    found: dict[tuple[bytes, int], Records] = {}
    count: dict[bytes, int] = {}
    for i in np.flatnonzero(evs["configured"]).tolist():
        record = evs[i : i + 1].reshape(())
        length = int(record["srh_len"])
        srh = srhs[first + i]["bytes"][:length].tobytes() if length else b""
        path = bytes([int(record["plane"])]) + record["dst"].tobytes() + srh
        found[path, count.get(path, 0)] = record
        count[path] = count.get(path, 0) + 1
    return found


@contextmanager
def _mapped(path: Path) -> Iterator[Records]:
    """A pinned table of any version, to be read."""
    with libbpf.opened(path) as fd:
        shape, dtype = btf.map_shape(fd), btf.values(fd)
        if dtype is None or dtype.itemsize != shape.value_size:
            raise MachineError(f"the kernel does not know the layout of {path}")
        size = -(-shape.entries * shape.value_size // mmap.PAGESIZE) * mmap.PAGESIZE
        area = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    yield np.frombuffer(area, dtype=dtype, count=shape.entries)  # unmapped with the last view of it
