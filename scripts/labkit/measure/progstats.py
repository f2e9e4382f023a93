# SPDX-License-Identifier: BSD-2-Clause
"""Reads the kernel's statistics of loaded programs: run time (kernel.bpf_stats_enabled) and size."""

import contextlib
import ctypes as ct
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from mrcd.kernel import libbpf

_RUN_TIME = 0  # enum bpf_stats_type
_SCHED_CLS = 3  # enum bpf_prog_type
# struct bpf_prog_info (linux/bpf.h): offsets of its fields, in bytes.
_SIZES, _NAME, _RUN, _VERIFIED, _INFO_BYTES = 16, 64, 192, 216, 232
_NAME_BYTES = 16
# r0 = -1 (TC_ACT_UNSPEC: continue with the next program); exit
_EMPTY = struct.pack("<BBhi", 0xB7, 0, 0, -1) + struct.pack("<BBhi", 0x95, 0, 0, 0)


class Runs(NamedTuple):
    """Counts over all CPUs since the program was loaded, while statistics were on; or between two readings."""

    ns: int
    number: int

    def since(self, before: Self) -> "Runs":
        """Returns the counts since an earlier reading."""
        return Runs(self.ns - before.ns, self.number - before.number)

    @property
    def mean_ns(self) -> float | None:
        """Returns the mean time of a run, the overhead of the statistics included; None without a run."""
        return self.ns / self.number if self.number else None


class Size(NamedTuple):
    """The size of a loaded program."""

    name: str
    instructions: int  # BPF instructions after the verifier's rewriting
    machine_code_bytes: int
    verified_instructions: int  # instructions that the verifier processed, on all paths


@contextlib.contextmanager
def counting() -> Iterator[None]:
    """A block in which the kernel measures the run time of every program. Raises KernelError."""
    fd = libbpf.check("enable run-time statistics", libbpf.lib().bpf_enable_stats(_RUN_TIME))
    try:
        yield
    finally:
        os.close(fd)


def runs(program: int) -> Runs:
    """Returns the runs of the program behind a descriptor."""
    return Runs(*struct.unpack_from("QQ", _info(program), _RUN))


def size(program: int) -> Size:
    """Returns the size of the program behind a descriptor."""
    raw = _info(program)
    machine_code, instructions = struct.unpack_from("II", raw, _SIZES)
    name = raw[_NAME : _NAME + _NAME_BYTES].partition(b"\0")[0].decode()
    return Size(name, instructions // 8, machine_code, struct.unpack_from("I", raw, _VERIFIED)[0])


@contextlib.contextmanager
def linked(pin: Path) -> Iterator[int]:
    """A block with a descriptor of the program that a pinned link attaches."""
    with libbpf.opened(pin) as link:
        program = _opened(libbpf.link_program(link))
    try:
        yield program
    finally:
        os.close(program)


@contextlib.contextmanager
def held(pid: int) -> Iterator[dict[str, int]]:
    """A block with name → descriptor of the programs that a process holds, directly or by links; one of each name."""
    numbers = set()
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):  # the process has closed it
            numbers |= {int(n) for n in re.findall(r"^prog_id:\s*(\d+)", path.read_text(encoding="ascii"), re.M)}
    programs = [_opened(n) for n in sorted(numbers)]
    try:
        yield {size(fd).name: fd for fd in programs}
    finally:
        for fd in programs:
            os.close(fd)


def load_empty() -> int:
    """Loads a tc program that does nothing: its time is the statistics' overhead. The caller closes the descriptor."""
    return libbpf.check(
        "load an empty program",
        libbpf.lib().bpf_prog_load(_SCHED_CLS, b"empty", b"Dual BSD/GPL", _EMPTY, ct.c_size_t(2), None),
    )


def _opened(number: int) -> int:
    return libbpf.check(f"open program {number}", libbpf.lib().bpf_prog_get_fd_by_id(number))


def _info(fd: int) -> bytes:
    room, size = ct.create_string_buffer(_INFO_BYTES), ct.c_uint32(_INFO_BYTES)
    libbpf.check("read a program's information", libbpf.lib().bpf_obj_get_info_by_fd(fd, room, ct.byref(size)))
    return room.raw
