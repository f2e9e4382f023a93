"""Load, pin, attach and replace the programs.

Everything that forwards is pinned below one directory named after the ABI version, so it outlives
the daemon. Starting again replaces programs in place (bpf_link_update) and keeps the tables; only
`detach` takes anything down.
"""

import contextlib
import ctypes as ct
import errno
import logging
import os
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mrcd import abi, libbpf
from mrcd.errors import KernelError, MachineError
from mrcd.objects import object_path
from mrcd.topology import Plan, srh_bytes

log = logging.getLogger(__name__)

BPFFS_MAGIC = 0xCAFE4A11
CLSACT_HANDLE, CLSACT_PRIORITY = 0x4D52, 0x4D52
PREFIXES_MAX = 65536

Point = Literal["ingress", "egress", "xdp", "xdp-generic"]


def pin_directory(bpffs: Path) -> Path:
    """Where this ABI's maps and links are pinned."""
    return bpffs / "mrcd" / f"abi{abi.ABI_VERSION}"


def ensure_bpffs(path: Path) -> None:
    """Mount a BPF file system at `path` unless one is there."""
    libc = ct.CDLL(None, use_errno=True)
    path.mkdir(parents=True, exist_ok=True)
    buffer = ct.create_string_buffer(256)
    if libc.statfs(os.fsencode(path), buffer) == 0:
        (kind,) = struct.unpack_from("q", buffer.raw)
        if kind & 0xFFFFFFFF == BPFFS_MAGIC:
            return
    if libc.mount(b"bpf", os.fsencode(path), b"bpf", ct.c_ulong(0), None) != 0:
        raise KernelError(f"mount a BPF file system at {path}", ct.get_errno())


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = libbpf.get(path)
    try:
        yield fd
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Attachment:
    """One program at one hook. `name` is the pin's name, stable over restarts."""

    name: str
    program: str
    interface: str
    ifindex: int
    point: Point


def _tc_point(attachment: Attachment) -> int:
    return libbpf.TC_INGRESS if attachment.point == "ingress" else libbpf.TC_EGRESS


class Dataplane:
    """The loaded object. Descriptors live as long as this; pins live on."""

    def __init__(self, plan: Plan, bpffs: Path) -> None:
        self.plan = plan
        self.pins = pin_directory(bpffs)
        self._links = self.pins / "links"
        self._obj = 0
        self._programs: dict[str, int] = {}
        self._filters: dict[str, Attachment] = {}  # attached by clsact: nothing pins these
        self.fresh = False  # the counters started at zero
        ensure_bpffs(bpffs)
        self._links.mkdir(parents=True, exist_ok=True)

    def load(self) -> None:
        """Load the object on top of the pinned tables; tables of another size start anew."""
        self._obj = libbpf.open_object(object_path())
        maps = libbpf.maps_of(self._obj)
        rodata = next(m for name, m in maps.items() if name.endswith(".rodata"))
        libbpf.set_initial_value(rodata, self._settings(libbpf.initial_size(rodata)))
        made: dict[str, int] = {}
        for name, entries in self._sizes().items():
            libbpf.set_map_size(maps[name], entries)
            if not self._reuse(maps[name], self.pins / name, entries):
                made[name] = maps[name]
        try:
            libbpf.load_object(self._obj)
        except KernelError:
            libbpf.close_object(self._obj)
            raise
        for name, m in made.items():
            libbpf.pin(libbpf.map_fd(m), self.pins / name)
        for name in ("mrc_push", "mrc_pop", "mrc_pop_xdp", "mrc_sweep"):
            self._programs[name] = libbpf.program_fd(self._obj, name)
        self.fresh = bool({"mrc_evs", "mrc_rxs", "mrc_node"} & made.keys())
        self._prefix_fd = libbpf.map_fd(maps["mrc_prefixes"])
        if self.fresh:
            node = struct.pack("IIII", secrets.randbelow(2**32 - 1) + 1, 0, 0, 0)
            libbpf.update_elem(libbpf.map_fd(maps["mrc_node"]), struct.pack("I", 0), node)

    def close(self) -> None:
        """Let go of the object; what is pinned goes on."""
        if self._obj:
            libbpf.close_object(self._obj)
            self._obj = 0

    def _settings(self, size: int) -> bytes:
        c = self.plan.config.cluster
        srh = any(srh_bytes(len(e.segments)) for p in self.plan.peers for e in p.evs)
        value = struct.pack(
            "IIIIHHI",
            c.planes,
            c.evs_per_peer,
            c.evs_per_plane,
            self.plan.inner_mtu,
            self.plan.host.id,
            c.udp_port,
            srh,
        )
        if len(value) != size:
            raise MachineError(
                f"the object's settings have {size} bytes, mrcd knows {len(value)}",
                hint="the object is from another version: run `make build`, or reinstall",
            )
        return value

    def _sizes(self) -> dict[str, int]:
        peers, evs = self.plan.config.max_peers, self.plan.config.cluster.evs_per_peer
        srh = any(len(e.segments) > 1 for p in self.plan.peers for e in p.evs)
        return {
            "mrc_evs": peers * evs,
            "mrc_rxs": peers * evs,
            "mrc_srhs": peers * evs if srh else 1,
            "mrc_peers": peers,
            "mrc_planes": abi.MAX_PLANES,
            "mrc_node": 1,
            "mrc_rotations": peers,
            "mrc_drops": len(abi.Drop),
            "mrc_prefixes": PREFIXES_MAX,
        }

    def _reuse(self, m: int, path: Path, entries: int) -> bool:
        """Take over a pinned map of the right size; unpin one of a wrong size."""
        if not path.exists():
            return False
        with _opened(path) as fd:
            if libbpf.map_info(fd)[2] == entries:
                libbpf.reuse_map(m, fd)
                return True
        log.warning("table %s has another size now; its counters start at zero", path.name)
        path.unlink()
        return False

    # ---- prefixes ----

    def set_prefixes(self, wanted: dict[bytes, int]) -> None:
        """Make the overlay trie hold exactly `wanted`: key of struct mrc_prefix → host id."""
        size = abi.PREFIX.itemsize
        for key, host_id in wanted.items():
            libbpf.update_elem(self._prefix_fd, key, struct.pack("I", host_id))
        for key in libbpf.keys(self._prefix_fd, size):
            if key not in wanted:
                libbpf.delete_elem(self._prefix_fd, key)

    # ---- attach ----

    def attach(self, wanted: Attachment) -> str:
        """Attach, or replace in place. Returns how: "tcx", "clsact" or "xdp"."""
        path = self._links / wanted.name
        prog_fd = self._programs[wanted.program]
        if path.exists() and self._replace(path, wanted, prog_fd):
            return "xdp" if wanted.point.startswith("xdp") else "tcx"
        try:
            fd = self._create(wanted, prog_fd)
        except KernelError as e:
            if wanted.point.startswith("xdp") or e.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            libbpf.attach_clsact(prog_fd, wanted.ifindex, _tc_point(wanted), CLSACT_HANDLE, CLSACT_PRIORITY)
            self._filters[wanted.name] = wanted
            return "clsact"
        try:
            libbpf.pin(fd, path)
        finally:
            os.close(fd)
        return "xdp" if wanted.point.startswith("xdp") else "tcx"

    def _replace(self, path: Path, wanted: Attachment, prog_fd: int) -> bool:
        with _opened(path) as fd:
            if libbpf.link_ifindex(fd) == wanted.ifindex:
                try:
                    libbpf.update_link(fd, prog_fd)
                    return True
                except KernelError as e:
                    if e.errno != errno.ENOLINK:
                        raise
        path.unlink()  # its interface is gone, or came back as another one
        return False

    def _create(self, wanted: Attachment, prog_fd: int) -> int:
        if wanted.point == "xdp":
            return libbpf.create_link(prog_fd, wanted.ifindex, libbpf.XDP, libbpf.XDP_FLAGS_DRV_MODE)
        if wanted.point == "xdp-generic":
            return libbpf.create_link(prog_fd, wanted.ifindex, libbpf.XDP, libbpf.XDP_FLAGS_SKB_MODE)
        kind = libbpf.TCX_INGRESS if wanted.point == "ingress" else libbpf.TCX_EGRESS
        return libbpf.create_link(prog_fd, wanted.ifindex, kind)

    def detach_others(self, keep: set[str]) -> list[str]:
        """Remove every attachment of ours that is not in `keep`. Returns the names removed."""
        removed = [p.name for p in sorted(self._links.iterdir()) if p.name not in keep]
        for name in removed:
            (self._links / name).unlink()
        for name in self._filters.keys() - keep:
            a = self._filters.pop(name)
            libbpf.detach_clsact(a.ifindex, _tc_point(a), CLSACT_HANDLE, CLSACT_PRIORITY)
            removed.append(name)
        return removed

    # ---- sweep ----

    _SWEEP_PACKET = bytes(12) + b"\x86\xdd" + b"\x60" + bytes(127)

    def sweep(self, host_id: int) -> int:
        """Send a probe request on every EV of a peer; returns how many went out."""
        ctx = struct.pack("III", 0, 0, host_id)
        return libbpf.run_program(self._programs["mrc_sweep"], self._SWEEP_PACKET, ctx=ctx)[0]
