# SPDX-License-Identifier: BSD-2-Clause
"""Attaches programs by pinned links, or by clsact filters if the kernel has no TCX, and replaces them in place."""

import contextlib
import errno
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mrcd.errors import KernelError
from mrcd.kernel import libbpf
from mrcd.kernel.libbpf import LinkInfo
from mrcd.kernel.pins import PinDescriptors

Point = Literal["ingress", "egress", "xdp", "xdp-generic", "tracepoint"]

_PIN_MISSING = FileNotFoundError, NotADirectoryError  # another program has unmounted the BPF file system


@dataclass(frozen=True)
class Attachment:
    """One program at one hook.

    `name` is the name of the pin: it stays the same over restarts and when interfaces are renamed. A program at a
    tracepoint has no interface; the object names its tracepoint.
    """

    name: str
    program: str
    interface: str
    ifindex: int
    point: Point


def _tc_point(attachment: Attachment) -> int:
    return libbpf.TC_INGRESS if attachment.point == "ingress" else libbpf.TC_EGRESS


def _link_id(fd: int) -> int:
    return int(libbpf.fill(LinkInfo(), fd).id)


class Links:
    """The attachments of one data plane, by pin name."""

    def __init__(self, pins: Path) -> None:
        self.pins = pins
        self._links = pins / "links"
        self._clsact_mark = pins / "clsact"  # exists if clsact filters, which have no pins, are attached
        self._programs: dict[str, int] = {}  # descriptors, by program name
        self._filters: dict[str, Attachment] = {}  # attached by clsact, without a pin
        self._link_fds = PinDescriptors()  # links
        self.changed = False  # a program was attached or replaced

    def attach(self, wanted: Attachment) -> str:
        """Attaches a program, or replaces it in place. Returns the method: "tcx", "clsact", "xdp" or "tracepoint"."""
        how = self._trace(wanted) if wanted.point == "tracepoint" else self._attach(wanted)
        self.changed = True
        return how

    def _trace(self, wanted: Attachment) -> str:
        """Attaches a program to a tracepoint before the old program is detached: no link replaces programs there.

        Linux 6.1 refuses a program that is attached already (EEXIST).
        """
        program = self._programs[wanted.program]
        own_id = libbpf.program_id(program)
        if wanted.name in self._link_fds and libbpf.link_program(self._link_fds[wanted.name]) == own_id:
            self._pin_link(wanted.name)
            return "tracepoint"
        fd = libbpf.create_link(program, 0, libbpf.RAW_TRACEPOINT)
        self._detach(wanted.name)
        self._link_fds.add(wanted.name, fd)
        self._pin_link(wanted.name)
        return "tracepoint"

    def _attach(self, wanted: Attachment) -> str:
        path = self._links / wanted.name
        prog_fd = self._programs[wanted.program]
        xdp = wanted.point.startswith("xdp")
        if (wanted.name in self._link_fds or path.exists()) and self._replace(path, wanted, prog_fd):
            self._pin_link(wanted.name)
            return "xdp" if xdp else "tcx"
        if xdp:
            self._leave_other_mode(wanted)
        try:
            fd = self._create(wanted, prog_fd)
        except KernelError as e:
            if xdp or e.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            libbpf.attach_clsact(prog_fd, wanted.ifindex, _tc_point(wanted))
            self._filters[wanted.name] = wanted
            with contextlib.suppress(*_PIN_MISSING):  # as for links: missing_pin() reports it
                self._clsact_mark.mkdir(exist_ok=True)
            return "clsact"
        self._link_fds.add(wanted.name, fd)
        self._pin_link(wanted.name)
        return "xdp" if xdp else "tcx"

    def _pin_link(self, name: str) -> None:
        path, fd = self._links / name, self._link_fds[name]
        with contextlib.suppress(KernelError):  # the program runs without the pin; missing_pin() reports it
            if path.exists():
                with libbpf.opened(path) as pinned:
                    is_other = _link_id(pinned) != _link_id(fd)
                if is_other:  # of programs that a failed reload has attached
                    path.unlink()
            self._link_fds.pin(name, self._links)

    def _leave_other_mode(self, wanted: Attachment) -> None:
        """Detaches mrcd's XDP program in another mode: an interface has one XDP program, and a link keeps its mode.

        Meanwhile mrc_pop at tc pops the packets.
        """
        for path in self.pins.parent.glob("abi*/links/pop-xdp*"):  # also of another ABI version
            with libbpf.opened(path) as fd:
                same = libbpf.link_ifindex(fd) == wanted.ifindex
            if same:
                path.unlink()
                self._link_fds.discard(path.name)

    def _replace(self, path: Path, wanted: Attachment, prog_fd: int) -> bool:
        if wanted.name not in self._link_fds:  # attached by an earlier daemon
            self._link_fds.add(wanted.name, libbpf.get(path))
        fd = self._link_fds[wanted.name]
        if libbpf.link_ifindex(fd) == wanted.ifindex:
            try:
                libbpf.update_link(fd, prog_fd)
                return True
            except KernelError as e:
                if e.errno != errno.ENOLINK:
                    raise
        self._detach(wanted.name)  # its interface is gone, or exists again with another ifindex
        return False

    def _detach(self, name: str) -> None:
        """Removes a link's pin and descriptor, which detaches the program."""
        with contextlib.suppress(*_PIN_MISSING):
            (self._links / name).unlink()
        self._link_fds.discard(name)

    def _create(self, wanted: Attachment, prog_fd: int) -> int:
        if wanted.point == "xdp":
            return libbpf.create_link(prog_fd, wanted.ifindex, libbpf.XDP, libbpf.XDP_FLAGS_DRV_MODE)
        if wanted.point == "xdp-generic":
            return libbpf.create_link(prog_fd, wanted.ifindex, libbpf.XDP, libbpf.XDP_FLAGS_SKB_MODE)
        kind = libbpf.TCX_INGRESS if wanted.point == "ingress" else libbpf.TCX_EGRESS
        return libbpf.create_link(prog_fd, wanted.ifindex, kind)

    def attached(self) -> bool:
        """Returns whether a program of mrcd, of any ABI version, is attached."""
        others = (path for what in ("links/*", "clsact") for path in self.pins.parent.glob(f"abi*/{what}"))
        return bool(self._filters) or any(self._linked()) or self._clsact_mark.exists() or any(others)

    def _linked(self) -> set[str]:
        """Returns the names of the attached links, with and without a pin."""
        with contextlib.suppress(*_PIN_MISSING):
            return {*self._link_fds, *(p.name for p in self._links.iterdir())}
        return set(self._link_fds)

    def missing_filter(self) -> str:
        """Returns the name of a clsact filter that another program has removed; empty if there is none.

        A filter whose interface is gone is not missing. Raises KernelError.
        """
        for name, a in self._filters.items():
            point = _tc_point(a)
            if libbpf.query_clsact(a.ifindex, point) is None:
                with contextlib.suppress(OSError):
                    socket.if_indextoname(a.ifindex)
                    return name
        return ""

    def has_push(self) -> bool:
        """Returns whether mrc_push is attached, by this run or an earlier one."""
        return any(name.startswith("push") for name in (*self._linked(), *self._filters))

    def detach_others(self, keep: set[str], hooks: Iterable[tuple[int, Point]] = ()) -> list[str]:
        """Removes every attachment of mrcd that is not in `keep`. Returns the names of those removed.

        `hooks` (ifindex, point) are searched for clsact filters of an earlier run, which have no pins.
        """
        removed = sorted(self._linked() - keep)
        for name in removed:
            self._detach(name)
        kept = {(a.ifindex, a.point) for name, a in self._filters.items() if name in keep}
        for name in self._filters.keys() - keep:
            removed.append(name)
            a = self._filters.pop(name)
            if (a.ifindex, a.point) not in kept:  # a hook has one filter of mrcd, whatever its name
                libbpf.detach_clsact(a.ifindex, _tc_point(a))
        if self._clsact_mark.exists() or not self.pins.exists():  # without pins, filters may exist anywhere
            for ifindex, point in set(hooks) - kept:
                tc_point = libbpf.TC_INGRESS if point == "ingress" else libbpf.TC_EGRESS
                libbpf.detach_clsact(ifindex, tc_point)
            if not self._filters:
                with contextlib.suppress(*_PIN_MISSING):
                    self._clsact_mark.rmdir()
        return removed
