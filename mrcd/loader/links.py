"""What is attached: links, which are pinned, and filters where the kernel has no TCX; replaced in place."""

import contextlib
import errno
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mrcd.bpf import libbpf
from mrcd.bpf.pins import PinDescriptors
from mrcd.errors import KernelError

Point = Literal["ingress", "egress", "xdp", "xdp-generic", "tracepoint"]

_NOT_THERE = FileNotFoundError, NotADirectoryError  # somebody took the BPF file system away


@dataclass(frozen=True)
class Attachment:
    """One program at one hook. `name` is the pin's, stable over restarts and renamed interfaces. The object says which
    tracepoint is a program's, which is of no interface."""

    name: str
    program: str
    interface: str
    ifindex: int
    point: Point


def _tc_point(attachment: Attachment) -> int:
    return libbpf.TC_INGRESS if attachment.point == "ingress" else libbpf.TC_EGRESS


class Links:
    """The attachments of one data plane, by name."""

    def __init__(self, pins: Path) -> None:
        self.pins = pins
        self._links = pins / "links"
        self._filtered = pins / "clsact"  # a mark: filters are attached, which nothing pins
        self._programs: dict[str, int] = {}  # descriptors
        self._filters: dict[str, Attachment] = {}  # attached by clsact: nothing pins these
        self._held = PinDescriptors()  # links
        self.changed = False  # something was attached, or replaced

    def attach(self, wanted: Attachment) -> str:
        """Attach, or replace in place. Returns how: "tcx", "clsact", "xdp" or "tracepoint"."""
        how = self._trace(wanted) if wanted.point == "tracepoint" else self._attach(wanted)
        self.changed = True
        return how

    def _trace(self, wanted: Attachment) -> str:
        """No program is replaced at a tracepoint: the new one is there before the old one goes. Linux 6.1 refuses
        a program that is there already (EEXIST)."""
        program = self._programs[wanted.program]
        if wanted.name in self._held and libbpf.link_program(self._held[wanted.name]) == libbpf.program_id(program):
            self._pin_link(wanted.name)
            return "tracepoint"
        fd = libbpf.create_link(program, 0, libbpf.RAW_TRACEPOINT)
        self._drop(wanted.name)
        self._held.add(wanted.name, fd)
        self._pin_link(wanted.name)
        return "tracepoint"

    def _attach(self, wanted: Attachment) -> str:
        path = self._links / wanted.name
        prog_fd = self._programs[wanted.program]
        xdp = wanted.point.startswith("xdp")
        if (wanted.name in self._held or path.exists()) and self._replace(path, wanted, prog_fd):
            self._pin_link(wanted.name)
            return "xdp" if xdp else "tcx"
        if xdp:
            self._leave_other_mode(wanted)
        try:
            fd = self._create(wanted, prog_fd)
        except KernelError as e:
            if xdp or e.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            libbpf.attach_clsact(
                prog_fd, wanted.ifindex, _tc_point(wanted), libbpf.CLSACT_HANDLE, libbpf.CLSACT_PRIORITY
            )
            self._filters[wanted.name] = wanted
            with contextlib.suppress(*_NOT_THERE):  # as for links: `lost` tells
                self._filtered.mkdir(exist_ok=True)
            return "clsact"
        self._held.add(wanted.name, fd)
        self._pin_link(wanted.name)
        return "xdp" if xdp else "tcx"

    def _pin_link(self, name: str) -> None:
        with contextlib.suppress(KernelError):  # it forwards all the same; `lost` tells, until it can be pinned
            self._held.pin(name, self._links)

    def _leave_other_mode(self, wanted: Attachment) -> None:
        """An interface has one XDP program, and a link keeps its mode: ours in another mode goes first.
        Meanwhile mrc_pop at tc does the work."""
        for path in self.pins.parent.glob("abi*/links/pop-xdp*"):  # another version's too
            with libbpf.opened(path) as fd:
                same = libbpf.link_ifindex(fd) == wanted.ifindex
            if same:
                path.unlink()
                self._held.discard(path.name)

    def _replace(self, path: Path, wanted: Attachment, prog_fd: int) -> bool:
        if wanted.name not in self._held:  # an earlier daemon's
            self._held.add(wanted.name, libbpf.get(path))
        fd = self._held[wanted.name]
        if libbpf.link_ifindex(fd) == wanted.ifindex:
            try:
                libbpf.update_link(fd, prog_fd)
                return True
            except KernelError as e:
                if e.errno != errno.ENOLINK:
                    raise
        self._drop(wanted.name)  # its interface is gone, or came back as another one
        return False

    def _drop(self, name: str) -> None:
        """Let a link go, which detaches it."""
        with contextlib.suppress(*_NOT_THERE):
            (self._links / name).unlink()
        self._held.discard(name)

    def _create(self, wanted: Attachment, prog_fd: int) -> int:
        if wanted.point == "xdp":
            return libbpf.create_link(prog_fd, wanted.ifindex, libbpf.XDP, libbpf.XDP_FLAGS_DRV_MODE)
        if wanted.point == "xdp-generic":
            return libbpf.create_link(prog_fd, wanted.ifindex, libbpf.XDP, libbpf.XDP_FLAGS_SKB_MODE)
        kind = libbpf.TCX_INGRESS if wanted.point == "ingress" else libbpf.TCX_EGRESS
        return libbpf.create_link(prog_fd, wanted.ifindex, kind)

    def attached(self) -> bool:
        """Whether anything of ours is attached, by another version too."""
        others = (path for what in ("links/*", "clsact") for path in self.pins.parent.glob(f"abi*/{what}"))
        return bool(self._filters) or any(self._linked()) or self._filtered.exists() or any(others)

    def _linked(self) -> set[str]:
        """Names of what is attached by links, pinned or not."""
        with contextlib.suppress(*_NOT_THERE):
            return {*self._held, *(p.name for p in self._links.iterdir())}
        return set(self._held)

    def pushes(self) -> bool:
        """Whether mrc_push is attached, by this run or an earlier one."""
        return any(name.startswith("push") for name in (*self._linked(), *self._filters))

    def detach_others(self, keep: set[str], hooks: Iterable[tuple[int, Point]] = ()) -> list[str]:
        """Remove every attachment of ours that is not in `keep`. Returns the names removed.

        `hooks` (ifindex, point) are searched for clsact filters of an earlier run, which nothing pins.
        """
        removed = sorted(self._linked() - keep)
        for name in removed:
            self._drop(name)
        kept = {(a.ifindex, a.point) for name, a in self._filters.items() if name in keep}
        for name in self._filters.keys() - keep:
            removed.append(name)
            a = self._filters.pop(name)
            libbpf.detach_clsact(a.ifindex, _tc_point(a), libbpf.CLSACT_HANDLE, libbpf.CLSACT_PRIORITY)
        if self._filtered.exists() or not self.pins.exists():  # without pins nothing says that there are none
            for ifindex, point in set(hooks) - kept:
                tc_point = libbpf.TC_INGRESS if point == "ingress" else libbpf.TC_EGRESS
                libbpf.detach_clsact(ifindex, tc_point, libbpf.CLSACT_HANDLE, libbpf.CLSACT_PRIORITY)
            if not self._filters:
                with contextlib.suppress(*_NOT_THERE):
                    self._filtered.rmdir()
        return removed
