# SPDX-License-Identifier: BSD-2-Clause
"""Copies the states of peers and paths from old tables to the new tables that replace them.

A new size or a new ABI version needs new tables. Their counters start at zero on both ends. A path keeps its state: a
failed or denied path stays so, and a good path carries traffic without another probe.

A path is identified by its addresses, not by its number. Records of another version have another layout: a daemon
leaves its layouts in running.json for the next one, because reading the kernel's BTF takes CAP_SYS_ADMIN.
"""

import mmap
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.errors import MachineError
from mrcd.kernel import abi, btf, libbpf
from mrcd.kernel.enums import EvState
from mrcd.kernel.pinned import Tables

_PEER = ("heard_ns", "plane_mask", "plane_mask_ns", "status", "generation")
_PEER_IF_KNOWN = ("key_ids", "plain_ns")  # older versions have none of these, nor mrc_auths
_AUTH = ("clock_ns", "status")
_EV = ("state", "state_since_ns", "reason", "flaps", "weight")
_PATH = ("configured", "dst", "plane", "srh_len")
_AT_ONCE = 32  # peers: their EVs fit into a CPU cache

Records = NDArray[np.void]


def own_layouts() -> dict[str, Any]:
    """Returns the layouts of this version's records for JSON, by the names of their tables."""
    layouts = {"mrc_peers": abi.PEER, "mrc_evs": abi.EV, "mrc_srhs": abi.SRH, "mrc_auths": abi.AUTH}
    return {name: np.lib.format.dtype_to_descr(layout) for name, layout in layouts.items()}


def _layout(told: Any) -> np.dtype[np.void] | None:
    """Returns a layout of own_layouts(), perhaps of another version; None if it is none."""
    try:
        return np.dtype([(name, kind, *map(tuple, shape)) for name, kind, *shape in told])
    except (TypeError, ValueError):
        return None


def migrate(
    old: Path,
    tables: Tables,
    replaced_hosts: AbstractSet[int] = frozenset(),
    layouts: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[int]:
    """Copies states from the tables pinned at `old` to `tables`, which hold the plan and are not in use yet.

    Rows in `replaced_hosts` are not copied: another host has their address now. `layouts` are those of the old tables;
    without them the kernel is asked. Yields the row of each peer after it is copied. Raises KernelError and
    MachineError if the old tables cannot be read.
    """
    with ExitStack() as opened:

        def mapped(name: str) -> Records:
            return opened.enter_context(_mapped(old / name, _layout(layouts.get(name))))

        peers, evs, srhs = mapped("mrc_peers"), mapped("mrc_evs"), mapped("mrc_srhs")
        auths = mapped("mrc_auths") if (old / "mrc_auths").exists() else None
        missing = {"configured", "address", *_PEER} - set(peers.dtype.names or ())
        missing |= {*_PATH, *_EV} - set(evs.dtype.names or ())
        if missing or len(evs) % len(peers):
            raise MachineError(f"the tables at {old} lack {', '.join(sorted(missing)) or 'equal rows per peer'}")
        width = len(evs) // len(peers)
        known = {_addresses(peers[row]): row for row in np.flatnonzero(peers["configured"]).tolist()}
        both = [
            (row, known[addresses])
            for row in np.flatnonzero(tables.peers["configured"]).tolist()
            if row not in replaced_hosts and (addresses := _addresses(tables.peers[row])) in known
        ]
        for some in (both[n : n + _AT_ONCE] for n in range(0, len(both), _AT_ONCE)):
            rows, before = np.array(some).T
            for name in (*_PEER, *(n for n in _PEER_IF_KNOWN if n in (peers.dtype.names or ()))):
                tables.peers[name][rows] = peers[name][before]
            if auths is not None:  # else this host would refuse packets until it knows the peer's clock
                for name in set(_AUTH) & set(auths.dtype.names or ()):
                    tables.auths[name][rows] = auths[name][before]
            copied = _copy_unchanged(tables.evs, rows, evs.reshape(-1, width)[before])
            for (row, its), is_copied in zip(some, copied, strict=True):
                if not is_copied:
                    old_evs = evs[its * width : (its + 1) * width]
                    _copy_matching(tables, row, _paths(old_evs, srhs, its * width))
                yield row


def _addresses(peer: np.void) -> bytes:
    """Returns the plane addresses of a peer, without the planes behind its last: versions differ in their number."""
    return bytes(peer["address"].tobytes().rstrip(b"\0"))


def _copy_unchanged(evs: Records, rows: NDArray[np.int64], old: Records) -> NDArray[np.bool_]:
    """Copies all EVs of the peers whose EVs are the same paths under the same numbers. Returns which peers these are.

    `old` are the EVs of the peers in `rows`, (peers, EVs).
    """
    new = evs[rows]
    if new.shape != old.shape:
        return np.zeros(len(rows), bool)
    same = np.asarray(~new["srh_len"].any(axis=1))
    for name in _PATH:
        same &= (new[name] == old[name]).reshape(len(rows), -1).all(axis=1)
    configured = new["configured"][same] != 0
    for name in _EV:
        evs[name][rows[same]] = np.where(configured, old[name][same], new[name][same])
    state = evs["state"][rows[same]]
    evs["state"][rows[same]] = np.where(state == EvState.SKIP, EvState.GOOD, state)
    return same


def _copy_matching(tables: Tables, row: int, old_paths: dict[tuple[bytes, int], Records]) -> None:
    """Copies the EVs of a peer one by one to the EVs with the same path."""
    width = tables.evs.shape[1]
    for key, record in _paths(tables.evs[row], tables.srhs, row * width).items():
        old = old_paths.get(key)
        if old is None:
            continue
        for name in _EV:
            record[name] = old[name]
        if old["state"] == EvState.SKIP:  # SKIP is temporary, and depends on counters that start again
            record["state"] = EvState.GOOD


def _paths(evs: Records, srhs: Records, first: int) -> dict[tuple[bytes, int], Records]:
    """Returns a peer's configured records by path (destination, SRH and plane) and index among records of that path.

    Without source routing, several EVs have the same path and differ by their number only.
    """
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
def _mapped(path: Path, layout: np.dtype[np.void] | None) -> Iterator[Records]:
    """Maps a pinned table of any version for reading, and yields its records."""
    with libbpf.opened(path) as fd:
        shape = btf.map_shape(fd)
        dtype = layout if layout is not None and layout.itemsize == shape.value_size else btf.values(fd)
        if dtype is None or dtype.itemsize != shape.value_size:
            raise MachineError(f"{path}: the kernel has no BTF for its layout")
        size = -(-shape.entries * shape.value_size // mmap.PAGESIZE) * mmap.PAGESIZE
        area = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    yield np.frombuffer(area, dtype=dtype, count=shape.entries)  # the area is unmapped with its last view
