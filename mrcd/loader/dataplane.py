"""Load, pin, attach and replace the programs.

Everything that forwards is pinned below one directory named after the ABI version, so it outlives
the daemon. Starting again replaces programs in place (bpf_link_update) and keeps the tables; only
`detach` takes anything down.
"""

import contextlib
import logging
import os
import secrets
import struct
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mrcd.bpf import btf, libbpf
from mrcd.bpf.object_file import object_path
from mrcd.bpf.pins import Held, ensure_bpffs, locked, remove, version_of
from mrcd.errors import KernelError, MachineError, MrcdError
from mrcd.fabric.topology import Plan
from mrcd.loader import features
from mrcd.loader.links import Links
from mrcd.loader.migration import carry
from mrcd.loader.settings import classes, settings
from mrcd.tables import abi
from mrcd.tables.abi import EvState, Reason
from mrcd.tables.pinned import Tables, change_field, read_node

log = logging.getLogger(__name__)

PREFIXES_MAX = 65536
_LEAST_PEERS, _PEERS_STEP = 64, 8  # rows of the peers' tables
_EVENTS_BYTES = 256 * 1024  # 5,000 events
_NO_EV = 0xFFFFFFFF
_PROGRAMS = (
    *("mrc_push", "mrc_probe", "mrc_timer", "mrc_pop", "mrc_pop_xdp", "mrc_unsent"),
    *("mrc_sweep", "mrc_set_states", "mrc_tick"),
)


def pin_directory(bpffs: Path) -> Path:
    """Where this ABI's maps and links are pinned."""
    return bpffs / "mrcd" / f"abi{abi.ABI_VERSION}"


def rows_for(needed: int, have: int) -> int:
    """Rows of the peers' tables. Other tables mean counters from zero: what is there (`have`, 0 = nothing) is kept
    while it is enough and not far too much; what grows takes room for an eighth more. Memory is for the EVs of
    all rows, so new tables are hardly larger than needed.
    """
    if needed <= have <= 2 * max(needed, _LEAST_PEERS):
        return have
    wanted = needed + needed // 8 if 0 < have < needed else needed
    return max(_LEAST_PEERS, -(-wanted // _PEERS_STEP) * _PEERS_STEP)


class Dataplane(Links):
    """The loaded object. Descriptors live as long as this; pins live on."""

    def __init__(self, plan: Plan, bpffs: Path, *, lock: int | None = None, program: Path | None = None) -> None:
        """`lock`: a descriptor of the lock on the pins, of a data plane that this one is to follow.
        `program`: another object than mrcd's own, with the same tables."""
        self.plan = plan
        self._bpffs = bpffs
        self._program = program
        super().__init__(pin_directory(bpffs))
        self.tables = self.pins  # where the tables in use are pinned
        self._obj = 0
        self._ring: libbpf.Ring | None = None
        self.fresh = False  # the counters started at zero
        self.replaced: Path | None = None  # where the tables are pinned in whose place these come
        ensure_bpffs(bpffs)
        self._links.mkdir(parents=True, exist_ok=True)
        self._lock = locked(self.pins.parent) if lock is None else os.dup(lock)

    def successor(self, plan: Plan) -> "Dataplane":
        """One for another plan, not loaded yet, that takes over what this one has attached; close this one then."""
        if self.lost():
            self.pin_what_is_lost()
        new = Dataplane(plan, self._bpffs, lock=self._lock)
        new._held = Held(self._held)
        new._filters = dict(self._filters)
        return new

    def load(self) -> None:
        """Load the object on top of the pinned tables.

        If a table must have another size all are made anew, beside the old ones: what is attached
        forwards with its own tables until `commit`, which comes when everything is attached.

        Raises MachineError if the object is of another version, before anything is touched.
        """
        path = self._program or object_path()
        self._obj = libbpf.open_object(path)
        found_abi = btf.enumerator(self._obj, "mrc_version", "MRC_VERSION_ABI")
        if found_abi != abi.ABI_VERSION:
            self.close()
            raise MachineError(
                f"{path} has tables of ABI version {found_abi or 'unknown'}, this mrcd knows {abi.ABI_VERSION}",
                hint="the object is from another version: run `make build`, or reinstall; nothing was changed",
            )
        maps = libbpf.maps_of(self._obj)
        self._finish_commit()
        peers = self._shape("mrc_peers")
        sizes = self.sizes(self.plan, peers.entries if peers else 0)
        rodata = next(m for name, m in maps.items() if name.endswith(".rodata"))
        libbpf.set_initial_value(rodata, self._settings(libbpf.initial_size(rodata), sizes["mrc_peers"]))
        found = {name: self._shape(name) for name in sizes}
        self.fresh = found != {name: btf.declared_shape(maps[name], entries) for name, entries in sizes.items()}
        if self.fresh and any(found.values()):
            log.warning("tables have other sizes than before: counters start at zero")
        for name, entries in sizes.items():
            libbpf.set_map_size(maps[name], entries)
            if not self.fresh:
                with libbpf.opened(self.pins / name) as fd:
                    libbpf.reuse_map(maps[name], fd)
        # Not pinned: these are soon full anew.
        libbpf.set_map_size(maps["mrc_dst_cache"], libbpf.possible_cpus() * abi.DST_ENTRIES)
        for name in ("mrc_paces", "mrc_selections", "mrc_plane_losses"):
            libbpf.set_map_size(maps[name], sizes["mrc_peers"])
        try:
            libbpf.load_object(self._obj)
        except KernelError:
            self.close()
            raise
        if self.fresh:
            self._pin_new({name: maps[name] for name in sizes})
        for name in _PROGRAMS:
            self._programs[name] = libbpf.program_fd(self._obj, name)
        self._prefix_fd, self._node_fd = libbpf.map_fd(maps["mrc_prefixes"]), libbpf.map_fd(maps["mrc_node"])
        libbpf.update_elem(libbpf.map_fd(maps["mrc_classes"]), struct.pack("I", 0), classes(self.plan).tobytes())
        self._ring = libbpf.Ring(libbpf.map_fd(maps["mrc_events"]))

    def program(self, name: str) -> int:
        """The descriptor of a loaded program; it is closed with this."""
        return self._programs[name]

    def global_data(self) -> int:
        """The descriptor of the programs' global variables, if they have any; it is closed with this."""
        return libbpf.map_fd(next(m for name, m in libbpf.maps_of(self._obj).items() if name.endswith(".bss")))

    def _pin_new(self, maps: dict[str, int]) -> None:
        """Pin new tables beside the old ones. What is known of paths and peers is taken over later (carry.py)."""
        self.tables = self.pins / "next"
        self.tables.mkdir(exist_ok=True)
        for name, m in maps.items():
            (self.tables / name).unlink(missing_ok=True)
            libbpf.pin(libbpf.map_fd(m), self.tables / name)
        node = np.zeros((), abi.NODE)
        nodes = [self.pins / "mrc_node", *sorted(self.pins.parent.glob("abi*/mrc_node"), key=version_of, reverse=True)]
        for path in [p for p in nodes if p.exists()][:1]:
            self.replaced = path.parent
            try:
                old = read_node(path)
                for field in ("plane_mask", "status"):
                    node[field] = old[field]
            except (KernelError, ValueError) as e:  # an administrator's word must not be forgotten
                node["status"] = abi.STATUS_DETACHED
                log.warning("%s: this host may have been detached; `mrcctl attach` brings it back", e)
        node["generation"], node["epoch"] = _number(), _number()
        libbpf.update_elem(libbpf.map_fd(maps["mrc_node"]), struct.pack("I", 0), node.tobytes())

    def take_over(self, tables: Tables, replaced_hosts: AbstractSet[int] = frozenset()) -> Iterator[int]:
        """Fill new tables, which have the peers and their paths, with the states of the tables before, but for the rows
        in `replaced_hosts`. Yields each row when it is filled: paths with SRHs are compared one by one."""
        if not self.fresh or self.replaced is None or self.tables == self.pins:
            return
        try:
            for row in carry(self.replaced, tables, replaced_hosts):
                self.refresh(row)
                yield row
        except MrcdError as e:
            log.warning("%s; all paths are probed anew", e.args[0])

    @contextlib.contextmanager
    def taking_places(self, node: NDArray[np.void]) -> Iterator[None]:
        """A block in which programs are attached and detached, one after the other, `node` being of these tables. Where
        others were attached with other tables none answers a probe meanwhile: each would report what its own tables
        have counted, and what the other NICs' have would look lost. Nor does one where none was attached: the peers
        would send to the other NICs, too. Where it fails half-way that stays so, until another block mends it."""
        number = int(node["generation"])
        other = self.replaced / "mrc_node" if self.replaced and self.tables != self.pins else None
        before = change_field(other, "generation", lambda _: 0) if other else 0
        if other or not self.attached():
            node["generation"] = 0
        self.changed = False
        try:
            yield
        except BaseException:
            if not self.changed:
                if other:
                    change_field(other, "generation", lambda _: before)
                node["generation"] = number
            raise
        node["generation"] = number or _number()

    def commit(self) -> None:
        """The programs attached now use these tables: new ones take the place of the old."""
        if self.tables != self.pins:
            self.tables.rename(self.pins / "commit")  # from here on it will be finished, by the next start if need be
            self._finish_commit()
            self.tables = self.pins
        self.forget_staged()
        for other in self.pins.parent.glob("abi*"):  # what another version left attached, and its tables
            if other != self.pins:
                remove(other)

    def pin_again(self) -> None:
        """Have these tables pinned, after a successor's have taken their place in vain."""
        maps = libbpf.maps_of(self._obj)
        for name in self.sizes(self.plan):
            (self.pins / name).unlink(missing_ok=True)
            libbpf.pin(libbpf.map_fd(maps[name]), self.pins / name)

    # ---- pins that somebody else took away ----

    def lost(self) -> str:
        """What is not pinned any more of what should be; empty if all is."""
        here = os.fstat(self._lock)
        try:
            there = self.pins.parent.stat()
        except OSError as e:
            return f"{self.pins.parent}: {e.strerror}"
        if not os.path.samestat(here, there):
            return f"{self.pins.parent} is another directory than it was"
        wanted = [self.tables / n for n in self.sizes(self.plan)] + [self._links / n for n in self._held]
        return next((f"{path}: not there" for path in wanted if not path.exists()), "")

    def pin_what_is_lost(self) -> None:
        """Pin it again, in a BPF file system that is mounted if need be. Raises MachineError, KernelError."""
        ensure_bpffs(self._bpffs)
        try:
            for directory in (self._links, self.tables, *([self._filtered] if self._filters else [])):
                directory.mkdir(parents=True, exist_ok=True)
            if not os.path.samestat(os.fstat(self._lock), self.pins.parent.stat()):
                lock = locked(self.pins.parent)
                os.close(self._lock)
                self._lock = lock
        except OSError as e:
            raise MachineError(f"{e.filename}: {e.strerror}") from None
        maps = libbpf.maps_of(self._obj)
        for name in self.sizes(self.plan):
            if not (self.tables / name).exists():
                libbpf.pin(libbpf.map_fd(maps[name]), self.tables / name)
        for name in self._held:
            self._held.pin(name, self._links)

    def forget_staged(self) -> None:
        """Remove new tables that were not committed."""
        staged = self.pins / "next"
        if staged.exists():  # of a start that failed
            for path in staged.iterdir():
                path.unlink()
            staged.rmdir()

    def _finish_commit(self) -> None:
        staged = self.pins / "commit"
        if staged.exists():
            for path in staged.iterdir():
                path.rename(self.pins / path.name)
            staged.rmdir()

    def _shape(self, name: str) -> btf.Shape | None:
        """What a pinned table is like; None if there is none."""
        if not (self.pins / name).exists():
            return None
        with libbpf.opened(self.pins / name) as fd:
            return btf.map_shape(fd)

    def close(self) -> None:
        """Let go of the object; what is pinned goes on."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        if self._obj:
            libbpf.close_object(self._obj)
            self._obj = 0
        self._held.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _settings(self, size: int, peers: int) -> bytes:
        netns = Path("/proc/thread-self/ns/net").stat().st_ino
        value = settings(self.plan, features.kernel_has(), peers, netns).tobytes()
        if len(value) != size:
            raise MachineError(
                f"the object's settings have {size} bytes, mrcd knows {len(value)}",
                hint="the object is from another version: run `make build`, or reinstall",
            )
        return value

    @staticmethod
    def sizes(plan: Plan, rows: int = 0) -> dict[str, int]:
        """Entries of every table that a plan needs, where the peers' tables have so many rows; 0 = there are none."""
        peers = rows_for(plan.config.max_peers, rows)
        evs = plan.config.cluster.evs_per_peer
        return {
            "mrc_evs": peers * evs,
            "mrc_path_stats": peers * evs,
            "mrc_rxs": peers * evs,
            "mrc_srhs": peers * evs if plan.needs_srh else 1,
            "mrc_peers": peers,
            "mrc_reports": peers,
            "mrc_watches": peers,
            "mrc_clock": 1,
            "mrc_probes_sent": len(abi.ProbeKind),
            "mrc_unsent_packets": abi.MAX_PLANES,
            "mrc_idle_timers": peers,
            "mrc_clone_jobs": 1,  # while programs are replaced one after the other, old and new share it
            "mrc_planes": abi.MAX_PLANES,
            "mrc_node": 1,
            "mrc_rotations": peers,
            "mrc_drops": len(abi.Drop),
            "mrc_histograms": abi.HISTOGRAMS * abi.BUCKETS,
            "mrc_transitions": len(EvState) * len(Reason),
            "mrc_events": _EVENTS_BYTES,
            "mrc_prefixes": PREFIXES_MAX,
        }

    # ---- prefixes ----

    def set_prefixes(self, wanted: dict[bytes, int]) -> None:
        """Make the overlay trie hold exactly `wanted`: key of struct mrc_prefix → host id and policy."""
        for key, host_id in wanted.items():
            libbpf.update_elem(self._prefix_fd, key, struct.pack("I", host_id))
        for key in [k for k in libbpf.keys(self._prefix_fd, abi.PREFIX.itemsize) if k not in wanted]:
            libbpf.delete_elem(self._prefix_fd, key)
        # Now the programs may not go by what they remember of it.
        only = struct.pack("I", 0)
        node = np.frombuffer(libbpf.lookup_elem(self._node_fd, only, abi.NODE.itemsize) or b"", abi.NODE).copy()
        node["epoch"] = _number()
        libbpf.update_elem(self._node_fd, only, node.tobytes())

    # ---- programs that the daemon runs ----

    _SOME_PACKET = bytes(12) + b"\x86\xdd" + b"\x60" + bytes(127)

    def sweep(self, host_id: int, first: int = 0, count: int = 0) -> int:
        """Send a probe request on every EV of a peer that is not to be passed over, or on those of the `count` from
        `first` on, round after the last; and one that asks for a report. Returns how many went out."""
        return libbpf.run_program(self._programs["mrc_sweep"], self._SOME_PACKET, ctx=_context(host_id, first, count))[
            0
        ]

    def tick(self) -> float:
        """Serve the deadlines of all peers. Returns after how many seconds it is to be called again."""
        return libbpf.run_program(self._programs["mrc_tick"], self._SOME_PACKET)[0] / 1e6

    def set_state(self, host_id: int, ev: int, state: EvState, reason: Reason, leave: Iterable[EvState]) -> bool:
        """Change the state of an EV if it is in one of `leave`; False if it is not. The ring buffer tells of it."""
        return bool(self._set_state(host_id, ev, state, reason, sum(1 << s for s in set(leave))))

    def refresh(self, host_id: int) -> None:
        """Have a peer's usable EVs and deadlines worked out anew: links, floor or paths are others."""
        self._set_state(host_id, _NO_EV, 0, 0, 0)

    def _set_state(self, host_id: int, *words: int) -> int:
        return libbpf.run_program(self._programs["mrc_set_states"], self._SOME_PACKET, ctx=_context(host_id, *words))[0]

    # ---- events ----

    def events_fd(self) -> int:
        """Readable when there are events."""
        assert self._ring is not None
        return self._ring.fileno()

    def events(self) -> NDArray[np.void]:
        """What the programs told since the last call, as abi.EVENT; after a start also what nobody read before."""
        assert self._ring is not None
        return np.frombuffer(b"".join(self._ring.records()), abi.EVENT)


def _number() -> int:
    """Another one each time, of 32 bits and never 0."""
    return secrets.randbelow(2**32 - 1) + 1


_CONTEXT = struct.Struct("12I5I")


def _context(mark: int, *words: int) -> bytes:
    """The beginning of struct __sk_buff: mark is its third word, cb[] the 13th and the four after it."""
    return _CONTEXT.pack(0, 0, mark, *[0] * 9, *words, *[0] * (5 - len(words)))
