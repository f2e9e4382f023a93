# SPDX-License-Identifier: BSD-2-Clause
"""Maps the pinned tables as numpy arrays, so that an entry needs neither a system call nor a copy."""

import contextlib
import errno
import math
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.errors import KernelError, MachineError
from mrcd.kernel import abi, enums, libbpf, ring_buffer


class Tables:
    """Arrays over the mapped tables. Their contents change while the programs count.

    evs   (peers, evs_per_peer) abi.EV        path_stats (peers, evs_per_peer) abi.PATH_STATS
    peers (peers,) abi.PEER                   rxs     (peers, evs_per_peer) abi.RX
    node  () abi.NODE                         reports  (peers,) abi.REPORTS
    planes (8,) abi.PLANE                     srhs    (peers × evs_per_peer or 1,) abi.SRH
    watches (peers,) abi.WATCH                clock   () abi.CLOCK
    auths  (peers,) abi.AUTH                  replays (peers,) abi.REPLAY
    links  (rows × 16 planes,) abi.LINK        copies  (peers,) abi.COPIES
    """

    def __init__(self, pins: Path, *, writable: bool) -> None:
        self._pins = pins
        self.written: object = None
        """The paths (Plan.paths) that write_tables.write_peers has written into them; None while it writes."""
        self._maps: list[mmap.mmap] = []
        self.peers = self._map("mrc_peers", abi.PEER, writable)
        n = len(self.peers)
        self.evs = self._map("mrc_evs", abi.EV, writable).reshape(n, -1)
        self.path_stats = self._map("mrc_path_stats", abi.PATH_STATS, writable).reshape(n, -1)
        self.rxs = self._map("mrc_rxs", abi.RX, writable).reshape(n, -1)
        self.auths = self._map("mrc_auths", abi.AUTH, writable)
        self.replays = self._map("mrc_replays", abi.REPLAY, writable)
        self.copies = self._map("mrc_copies", abi.COPIES, writable)
        self.reports = self._map("mrc_reports", abi.REPORTS, writable)
        self.srhs = self._map("mrc_srhs", abi.SRH, writable)
        self.planes = self._map("mrc_planes", abi.PLANE, writable)
        self.links = self._map("mrc_links", abi.LINK, writable)
        self.node = self._map("mrc_node", abi.NODE, writable)[0:1].reshape(())
        self.watches = self._map("mrc_watches", abi.WATCH, writable)
        self.clock = self._map("mrc_clock", abi.CLOCK, writable)[0:1].reshape(())
        names = ("drops", "histograms", "prefixes", "events", "transitions", "probes_sent", "unsent_packets")
        self._fds = {name: libbpf.get(pins / f"mrc_{name}") for name in names}  # of tables that are not mapped

    def _map(self, name: str, dtype: abi.Layout, writable: bool) -> NDArray[np.void]:
        path = self._pins / name
        if not path.exists():
            raise MachineError(f"no table is pinned at {path}", hint="start mrcd; it creates the tables")
        with libbpf.opened(path) as fd:
            _, value_size, entries = libbpf.map_info(fd)
            if value_size != dtype.itemsize:
                raise MachineError(
                    f"table {name} has entries of {value_size} bytes, this version knows {dtype.itemsize}",
                    hint="another version of mrcd made the tables; use the mrcctl of that version",
                )
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            area = mmap.mmap(fd, _pages(entries * value_size), flags=mmap.MAP_SHARED, prot=access)
        self._maps.append(area)
        return np.frombuffer(area, dtype=dtype, count=entries)

    def _per_cpu(self, name: str, *shape: int, dtype: Any = np.uint64) -> NDArray[Any]:
        """Returns the entries of a table that has one per CPU, (*shape, CPUs).

        A list of a former mrcd may be shorter: the rest is 0.
        """
        size, entries = np.dtype(dtype).itemsize * libbpf.possible_cpus(), math.prod(shape)
        if len(shape) == 1:
            entries = min(entries, libbpf.map_info(self._fds[name])[2])
        raw = libbpf.lookup_all(self._fds[name], entries, size)
        return np.frombuffer(raw.ljust(math.prod(shape) * size, b"\0"), dtype).reshape(*shape, -1)

    def drops(self) -> dict[str, int]:
        """Returns the dropped packets by reason, summed over all CPUs."""
        counts = self._per_cpu("drops", len(enums.Drop)).sum(axis=1).tolist()
        return {r.text: n for r, n in zip(enums.Drop, counts, strict=True) if r is not enums.Drop.NONE}

    def probes_sent(self) -> dict[str, int]:
        """Returns the probe requests sent, by kind, summed over all CPUs."""
        counts = self._per_cpu("probes_sent", len(enums.ProbeKind)).sum(axis=1).tolist()
        return {kind.text: count for kind, count in zip(enums.ProbeKind, counts, strict=True)}

    def unsent_packets(self) -> list[int]:
        """Returns per plane the data packets that a queueing discipline of this host dropped."""
        found: list[int] = self._per_cpu("unsent_packets", abi.MAX_PLANES).sum(axis=1).tolist()
        return found

    def histograms(self) -> NDArray[np.uint64]:
        """Returns the counts, summed over all CPUs, (enums.HISTOGRAMS, abi.BUCKETS)."""
        counts = self._per_cpu("histograms", enums.HISTOGRAMS, abi.BUCKETS)
        return np.asarray(counts.sum(axis=2, dtype=np.uint64))

    def transitions(self) -> NDArray[np.void]:
        """Returns the state changes as abi.CHANGES, (new EvState, Reason), summed over all CPUs."""
        each = self._per_cpu("transitions", len(enums.EvState), len(enums.Reason), dtype=abi.CHANGES)
        found = np.zeros(each.shape[:2], abi.CHANGES)
        for name in abi.CHANGES.names or ():
            found[name] = each[name].sum(axis=2, dtype=np.uint64)
        return found

    def fill(self) -> dict[str, tuple[int, int]]:
        """Returns pairs of (entries in use, capacity) by the kind of entry; for events, unread bytes and capacity."""
        _, value_size, size = libbpf.map_info(self._fds["prefixes"])
        return {
            "peers": (int((self.peers["configured"] != 0).sum()), self.peers.size),
            "evs": (int((self.evs["configured"] != 0).sum()), self.evs.size),
            "prefixes": (libbpf.count_keys(self._fds["prefixes"], abi.PREFIX.itemsize, value_size), size),
            "events": ring_buffer.fill(self._fds["events"]),
        }

    def unread_events(self) -> NDArray[np.void]:
        """Returns the unread events of the ring buffer as abi.EVENT, without consuming them."""
        return np.frombuffer(b"".join(ring_buffer.unread(self._fds["events"])), abi.EVENT)

    def close(self) -> None:
        """Unmaps the tables. The arrays must not be used afterwards."""
        for name in [name for name, value in vars(self).items() if isinstance(value, np.ndarray)]:
            delattr(self, name)
        for area in self._maps:
            with contextlib.suppress(BufferError):  # a caller still has a view, which unmaps the area when it is freed
                area.close()
        self._maps.clear()
        for fd in self._fds.values():
            os.close(fd)


def is_detached(record: np.void | NDArray[np.void]) -> bool:
    """Returns whether an administrator has detached the data plane of a host (mrc_node) or a peer (mrc_peer)."""
    return bool(int(record["status"]) & abi.STATUS_DETACHED)


def wire_of(status: "np.typing.ArrayLike") -> NDArray[np.int64]:
    """Returns the wire version that the status of a host tells, or those of hosts."""
    told = np.asarray(status, np.int64) >> abi.STATUS_WIRE & 0xFF
    return np.where(told == 0, _FIRST_WIRE, told)


def with_wire(status: int, wire: int) -> int:
    """Returns a status that tells this wire version."""
    return status & ~(0xFF << abi.STATUS_WIRE) | wire << abi.STATUS_WIRE


_FIRST_WIRE = 2  # of hosts that do not tell it
CHANGING = 0xFF
"""The wire version that a host tells while its programs are replaced by those of another one: it is no host's."""
_ARRAY = 2  # enum bpf_map_type
_ONLY_KEY = struct.pack("I", 0)
_HEAD = np.dtype([("generation", "u4"), ("plane_mask", "u4"), ("status", "u4")])
"""The fields of mrc_node in all ABI versions. To read the BTF of another version takes CAP_SYS_ADMIN."""


def read_node(pin: Path) -> NDArray[np.void]:
    """Returns a copy of the first fields of a pinned mrc_node of any version. Raises KernelError."""
    with libbpf.opened(pin) as fd:
        return _node(fd, pin)[1]


def change_field(pin: Path, field: str, change: Callable[[int], int]) -> int:
    """Changes one of the first fields of a pinned mrc_node of any version. Returns the previous value.

    Raises KernelError.
    """
    with libbpf.opened(pin) as fd:
        value, head = _node(fd, pin)
        if field not in (_HEAD.names or ()):
            raise KernelError(f"{pin} has no field {field}", errno.EINVAL)
        before = int(head[field])
        head[field] = change(before)
        libbpf.update_elem(fd, _ONLY_KEY, head.tobytes() + value[_HEAD.itemsize :])
    return before


def _node(fd: int, pin: Path) -> tuple[bytes, NDArray[np.void]]:
    """Returns the value of an mrc_node, and its first fields."""
    found = libbpf.info(fd)
    if (found.type, found.name) != (_ARRAY, b"mrc_node") or found.value_size < _HEAD.itemsize:
        raise KernelError(f"{pin} is not an mrc_node", errno.EINVAL)
    value = libbpf.lookup_elem(fd, _ONLY_KEY, found.value_size) or b""
    return value, np.frombuffer(value, _HEAD, 1).reshape(()).copy()


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def prefix_key(address: bytes, prefixlen: int) -> bytes:
    """Returns the key of the overlay trie for a network address of 4 or 16 bytes."""
    if len(address) == 4:
        address, prefixlen = bytes(10) + b"\xff\xff" + address, prefixlen + 96
    return struct.pack("I", prefixlen) + address
