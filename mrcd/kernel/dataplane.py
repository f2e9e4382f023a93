# SPDX-License-Identifier: BSD-2-Clause
"""Loads the eBPF object, pins its tables, and replaces the programs and tables of an earlier run.

Programs and tables are pinned below one directory named after the ABI version, so they forward without the daemon. A
restart replaces the programs in place (bpf_link_update) and keeps the tables. Only `mrcctl detach` detaches anything.
"""

import contextlib
import logging
import os
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mrcd.config.sizes import MAX_PREFIXES
from mrcd.errors import KernelError, MachineError, MrcdError
from mrcd.fabric.topology import Plan
from mrcd.kernel import abi, btf, features, libbpf
from mrcd.kernel.enums import EvState, Reason
from mrcd.kernel.links import Links
from mrcd.kernel.migration import migrate, own_layouts
from mrcd.kernel.object_file import object_path
from mrcd.kernel.pinned import Tables, change_field, read_node, wire_of
from mrcd.kernel.pins import PinDescriptors, ensure_bpffs, locked, remove, version_of
from mrcd.kernel.settings import classes, health, settings, table_sizes

log = logging.getLogger(__name__)

_NO_EV = 0xFFFFFFFF
_DUMMY_PACKET = bytes(12) + b"\x86\xdd" + b"\x60" + bytes(127)  # of which programs that the daemon runs make theirs
_PROGRAMS = (
    *("mrc_push", "mrc_probe", "mrc_timer", "mrc_pop", "mrc_pop_xdp", "mrc_unsent"),
    *("mrc_sweep", "mrc_set_states", "mrc_tick", "mrc_probe_links"),
)


def pin_directory(bpffs: Path) -> Path:
    """Returns the directory of this ABI version's maps and links."""
    return bpffs / "mrcd" / f"abi{abi.ABI_VERSION}"


class Dataplane(Links):
    """The loaded object. close() closes its descriptors; the pins stay."""

    def __init__(self, plan: Plan, bpffs: Path, *, lock: int | None = None, program: Path | None = None) -> None:
        """Makes a data plane that is not loaded yet.

        `lock`: a descriptor of the lock on the pins, if this data plane succeeds another one.
        `program`: an object with the same tables to load instead of mrcd's own.
        """
        self.plan = plan
        self._bpffs = bpffs
        self._program = program
        super().__init__(pin_directory(bpffs))
        self.tables = self.pins  # directory of the tables in use
        self._obj = 0
        self._ring: libbpf.Ring | None = None
        self.fresh = False  # the tables are new, and their counters start at zero
        self.replaced: Path | None = None  # directory of the tables that these replace
        self.wire = 0  # wire version of the loaded programs
        self.other_wire: Path | None = None  # mrc_node of attached programs that speak another one
        ensure_bpffs(bpffs)
        self._links.mkdir(parents=True, exist_ok=True)
        self._lock = locked(self.pins.parent) if lock is None else os.dup(lock)

    def successor(self, plan: Plan) -> "Dataplane":
        """Returns a data plane for another plan, not loaded yet, that takes over this one's attachments.

        The caller closes this one afterwards.
        """
        if self.missing_pin():
            self.restore_pins()
        new = Dataplane(plan, self._bpffs, lock=self._lock)
        new._link_fds = PinDescriptors(self._link_fds)
        new._filters = dict(self._filters)
        return new

    def load(self) -> None:
        """Loads the object with the pinned tables.

        If a table needs another size, all tables are created anew beside the old ones. The attached programs use the
        old tables until commit(), which the caller calls when all new programs are attached.

        Raises MachineError if the object has another version; nothing is changed then.
        """
        path = self._program or object_path()
        self._obj = libbpf.open_object(path)
        try:
            with btf.of_object(path) as types:
                abi.check_version(types, path)
                self.wire = btf.enumerators(types, "mrc_version")["MRC_VERSION_WIRE"]
        except MrcdError:
            self.close()
            raise
        maps = libbpf.maps_of(self._obj)
        _finish_commit(self.pins)
        self.other_wire = self._other_wire()
        peers = self._shape("mrc_peers")
        sizes = table_sizes(self.plan, peers.entries if peers else 0)
        rodata = next(m for name, m in maps.items() if name.endswith(".rodata"))
        self._write_settings(rodata, sizes["mrc_peers"])
        found = {name: self._shape(name) for name in sizes}
        self.fresh = found != {name: btf.declared_shape(maps[name], entries) for name, entries in sizes.items()}
        if self.fresh and any(found.values()):
            log.warning("the tables need other sizes than before: their counters start at zero")
        for name, entries in sizes.items():
            libbpf.set_map_size(maps[name], entries)
            if not self.fresh:
                with libbpf.opened(self.pins / name) as fd:
                    libbpf.reuse_map(maps[name], fd)
        # These caches are not pinned: they are soon filled again.
        libbpf.set_map_size(maps["mrc_dst_cache"], libbpf.possible_cpus() * abi.DST_ENTRIES)
        for name in ("mrc_paces", "mrc_selections", "mrc_plane_losses"):
            libbpf.set_map_size(maps[name], sizes["mrc_peers"])
        refused = features.refused_programs()
        for name in refused:
            libbpf.leave_out(self._obj, name)
        try:
            libbpf.load_object(self._obj)
        except KernelError:
            self.close()
            raise
        if self.fresh:
            self._pin_new({name: maps[name] for name in sizes})
        self._programs.update({name: libbpf.program_fd(self._obj, name) for name in _PROGRAMS if name not in refused})
        self._prefix_fd, self._node_fd = libbpf.map_fd(maps["mrc_prefixes"]), libbpf.map_fd(maps["mrc_node"])
        libbpf.update_elem(libbpf.map_fd(maps["mrc_classes"]), struct.pack("I", 0), classes(self.plan).tobytes())
        self.write_health(self.plan)
        self._ring = libbpf.Ring(libbpf.map_fd(maps["mrc_events"]))

    def _other_wire(self) -> Path | None:
        previous = _previous_node(self.pins)
        if previous is None or not self.attached():
            return None
        try:
            return previous if wire_of(read_node(previous)["status"]) != self.wire else None
        except KernelError:  # _new_node() says so
            return None

    def program(self, name: str) -> int:
        """Returns the descriptor of a loaded program, which close() closes."""
        return self._programs[name]

    def programs(self) -> dict[str, int]:
        """Returns the descriptors of all loaded programs by name; they are closed with this object."""
        return dict(self._programs)

    def map_fd(self, name: str) -> int:
        """Returns the descriptor of a map of the loaded object; it is closed with this object."""
        return libbpf.map_fd(libbpf.maps_of(self._obj)[name])

    def global_data(self) -> int:
        """Returns the descriptor of the programs' global variables (.bss), which close() closes."""
        return self._section(".bss")

    def _section(self, name: str) -> int:
        return libbpf.map_fd(next(m for n, m in libbpf.maps_of(self._obj).items() if n.endswith(name)))

    def write_health(self, plan: Plan) -> None:
        """Changes [health] in the loaded programs, at once."""
        libbpf.update_elem(self._section(".data.health"), bytes(4), health(plan).tobytes())

    def _pin_new(self, maps: dict[str, int]) -> None:
        """Pins new tables beside the old ones. take_over() copies the states of paths and peers later."""
        self.tables = self.pins / "next"
        self.tables.mkdir(exist_ok=True)
        for name, m in maps.items():
            (self.tables / name).unlink(missing_ok=True)
            libbpf.pin(libbpf.map_fd(m), self.tables / name)
        previous = _previous_node(self.pins)
        self.replaced = previous.parent if previous else self.replaced
        node = _new_node(previous)
        libbpf.update_elem(libbpf.map_fd(maps["mrc_node"]), struct.pack("I", 0), node.tobytes())

    def take_over(
        self,
        tables: Tables,
        replaced_hosts: AbstractSet[int] = frozenset(),
        layouts: Mapping[str, Any] = MappingProxyType({}),
    ) -> Iterator[int]:
        """Copies the states in the previous tables to new tables, except for the rows in `replaced_hosts`.

        `layouts` are those of the last daemon. `tables` already hold the peers and their paths. Yields each row after
        it is filled, because the work is long: paths with SRHs are compared one by one.
        """
        if not self.fresh or self.replaced is None or self.tables == self.pins:
            return
        if self.replaced.is_relative_to(self.pins):  # of this version
            layouts = own_layouts()
        try:
            for row in migrate(self.replaced, tables, replaced_hosts, layouts):
                self.refresh(row)
                yield row
        except MrcdError as e:
            log.warning("%s; all paths are probed again before use", e.args[0])

    @contextlib.contextmanager
    def replacing_programs(self, node: NDArray[np.void]) -> Iterator[None]:
        """Opens a block in which programs are attached and detached one after the other. `node` is in these tables.

        If programs with other tables are attached, no program answers probes in the block. Each would report the
        counts of its own tables only, and the peers would take packets at the other NICs for lost. If no program is
        attached, none answers either, because the peers would send to NICs without a program.

        After a failure half-way, probes stay unanswered until a later block succeeds.
        """
        generation = int(node["generation"])
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
                node["generation"] = generation
            raise
        node["generation"] = generation or _random_number()

    @property
    def is_committed(self) -> bool:
        """Returns whether these tables are pinned in their final place, or were until a successor's replaced them."""
        return self.tables == self.pins

    def commit(self) -> None:
        """Makes these tables the pinned ones: all attached programs use them now."""
        if self.tables != self.pins:
            self.tables.rename(self.pins / "commit")  # after an interruption here, the next start finishes the commit
            _finish_commit(self.pins)
            self.tables = self.pins
        self.remove_staged()
        for other in self.pins.parent.glob("abi*"):  # attachments and tables of another version
            if other != self.pins:
                remove(other)

    def repin_tables(self) -> None:
        """Pins these tables again, after a successor replaced their pins and failed."""
        maps = libbpf.maps_of(self._obj)
        for name in table_sizes(self.plan):
            (self.pins / name).unlink(missing_ok=True)
            libbpf.pin(libbpf.map_fd(maps[name]), self.pins / name)

    # ---- pins that another program removed ----

    def missing_pin(self) -> str:
        """Returns the first pin that is missing, with the reason; empty if all pins exist."""
        locked_directory = os.fstat(self._lock)
        try:
            directory = self.pins.parent.stat()
        except OSError as e:
            return f"{self.pins.parent}: {e.strerror}"
        if not os.path.samestat(locked_directory, directory):
            return f"{self.pins.parent} was replaced by another directory"
        wanted = [self.tables / n for n in table_sizes(self.plan)] + [self._links / n for n in self._link_fds]
        return next((f"{path} does not exist" for path in wanted if not path.exists()), "")

    def restore_pins(self) -> None:
        """Pins everything again that has lost its pin; mounts a BPF file system if none is mounted.

        Raises MachineError, KernelError.
        """
        ensure_bpffs(self._bpffs)
        try:
            for directory in (self._links, self.tables, *([self._clsact_mark] if self._filters else [])):
                directory.mkdir(parents=True, exist_ok=True)
            if not os.path.samestat(os.fstat(self._lock), self.pins.parent.stat()):
                lock = locked(self.pins.parent)
                os.close(self._lock)
                self._lock = lock
        except OSError as e:
            raise MachineError(f"{e.filename}: {e.strerror}") from None
        maps = libbpf.maps_of(self._obj)
        for name in table_sizes(self.plan):
            if not (self.tables / name).exists():
                libbpf.pin(libbpf.map_fd(maps[name]), self.tables / name)
        for name in self._link_fds:
            self._link_fds.pin(name, self._links)

    def remove_staged(self) -> None:
        """Removes new tables that were not committed."""
        staged = self.pins / "next"
        if staged.exists():  # a start has failed
            for path in staged.iterdir():
                path.unlink()
            staged.rmdir()

    def _shape(self, name: str) -> btf.Shape | None:
        """Returns the shape of a pinned table; None if there is none."""
        if not (self.pins / name).exists():
            return None
        with libbpf.opened(self.pins / name) as fd:
            return btf.map_shape(fd)

    def close(self) -> None:
        """Closes the object and its descriptors; pinned programs keep forwarding."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        if self._obj:
            libbpf.close_object(self._obj)
            self._obj = 0
        self._link_fds.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _settings(self, peers: int) -> NDArray[np.void]:
        netns = Path("/proc/thread-self/ns/net").stat().st_ino
        return settings(self.plan, features.kernel_has(), peers, netns, secrets.token_bytes(16))

    def _write_settings(self, rodata: int, peers: int) -> None:
        """Makes the plan the constants of the programs: the map `rodata`, before they are loaded."""
        value, size = self._settings(peers), libbpf.initial_size(rodata)
        if value.nbytes != size:
            raise MachineError(
                f"the object's settings have {size} bytes, this mrcd needs {value.nbytes}",
                hint="another version of mrcd built the object: run `make build`, or reinstall",
            )
        libbpf.set_initial_value(rodata, value.tobytes())

    # ---- prefixes ----

    def set_prefixes(self, wanted: dict[bytes, int]) -> None:
        """Makes the overlay trie hold exactly `wanted`: key of struct mrc_prefix → host id and policy.

        New keys first, so that traffic finds one all the time, unless the trie has no room for old and new ones.
        """
        present = set(libbpf.keys(self._prefix_fd, abi.PREFIX.itemsize))
        obsolete = present - wanted.keys()
        has_room = len(present | wanted.keys()) <= MAX_PREFIXES
        for key in () if has_room else obsolete:
            libbpf.delete_elem(self._prefix_fd, key)
        for key, host_id in wanted.items():
            libbpf.update_elem(self._prefix_fd, key, struct.pack("I", host_id))
        for key in obsolete if has_room else ():
            libbpf.delete_elem(self._prefix_fd, key)
        # A new epoch makes the programs discard cached results of the trie.
        node = np.frombuffer(libbpf.lookup_elem(self._node_fd, bytes(4), abi.NODE.itemsize) or b"", abi.NODE).copy()
        node["epoch"] = _random_number()
        libbpf.update_elem(self._node_fd, bytes(4), node.tobytes())

    # ---- programs that the daemon runs ----

    def sweep(self, host_id: int, first: int = 0, count: int = 0) -> int:
        """Sends a probe request on every EV of a peer that needs one, and one request for a report.

        `count`, if not 0, limits the EVs to those from `first` on; after the last EV follows the first. Returns the
        number of requests sent.
        """
        context = _context(host_id, first, count)
        return libbpf.run_program(self._programs["mrc_sweep"], _DUMMY_PACKET, ctx=context)[0]

    def tick(self) -> float:
        """Runs the tick, which serves the due deadlines of all peers. Returns the seconds until the next tick."""
        return libbpf.run_program(self._programs["mrc_tick"], _DUMMY_PACKET)[0] / 1e6

    def set_state(self, host_id: int, ev: int, state: EvState, reason: Reason, leave: Iterable[EvState]) -> bool:
        """Changes the state of an EV and reports an event, if its state is one of `leave`. Returns whether it was."""
        return bool(self._set_state(host_id, ev, state, reason, sum(1 << s for s in set(leave))))

    def refresh(self, host_id: int) -> None:
        """Recomputes a peer's usable EVs and deadlines after a change of links, ev_min_active or paths."""
        self._set_state(host_id, _NO_EV, 0, 0, 0)

    def _set_state(self, host_id: int, *words: int) -> int:
        context = _context(host_id, *words)
        return libbpf.run_program(self._programs["mrc_set_states"], _DUMMY_PACKET, ctx=context)[0]

    def probe_links(self, first: int, count: int) -> int:
        """Sends a probe on each of `count` links from `first` on, if one is due. Returns the number of probes sent."""
        return libbpf.run_program(self._programs["mrc_probe_links"], _DUMMY_PACKET, ctx=_context(0, first, count))[0]

    # ---- events ----

    def events_fd(self) -> int:
        """Returns a descriptor that is readable if there are events."""
        assert self._ring is not None
        return self._ring.fileno()

    def events(self) -> NDArray[np.void]:
        """Returns the events since the last call, as abi.EVENT; after a start also those that no daemon has read."""
        assert self._ring is not None
        return np.frombuffer(b"".join(self._ring.records()), abi.EVENT)


def _finish_commit(pins: Path) -> None:
    """Moves the pins of committed tables to their final place, also after an interrupted commit."""
    staged = pins / "commit"
    if staged.exists():
        for path in staged.iterdir():
            path.rename(pins / path.name)
        staged.rmdir()


def _previous_node(pins: Path) -> Path | None:
    """Returns the pin of the present mrc_node, else that of the newest ABI version; None if there is none."""
    others = sorted(pins.parent.glob("abi*/mrc_node"), key=version_of, reverse=True)
    return next((path for path in (pins / "mrc_node", *others) if path.exists()), None)


def _new_node(previous: Path | None) -> NDArray[np.void]:
    """Returns a new mrc_node with the plane mask and the status of the previous one."""
    node = np.zeros((), abi.NODE)
    if previous:
        try:
            old = read_node(previous)
            for field in ("plane_mask", "status"):
                node[field] = old[field]
        except (KernelError, ValueError) as e:  # an administrator's `detach` must not be lost
            node["status"] = abi.STATUS_DETACHED
            log.warning("%s: this host may have been detached; run `mrcctl attach` to attach it", e)
    node["generation"], node["epoch"] = _random_number(), _random_number()
    return node


def _random_number() -> int:
    """Returns a random number of 32 bits that is not 0."""
    return secrets.randbelow(2**32 - 1) + 1


_CONTEXT = struct.Struct("12I5I")


def _context(mark: int, *words: int) -> bytes:
    """Returns the beginning of struct __sk_buff: mark is its third word, cb[] are the 13th to the 17th."""
    return _CONTEXT.pack(0, 0, mark, *[0] * 9, *words, *[0] * (5 - len(words)))
