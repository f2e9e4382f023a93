# SPDX-License-Identifier: BSD-2-Clause
"""Loads the programs of an object, and reports whether the verifier accepts each and how much it verified."""

import ctypes as ct
from dataclasses import dataclass
from pathlib import Path

from mrcd.errors import KernelError
from mrcd.kernel import features, libbpf
from mrcd.kernel.libbpf import ProgramInfo

MAX_INSTRUCTIONS = 1_000_000  # BPF_COMPLEXITY_LIMIT_INSNS of include/linux/bpf.h, since Linux 5.2


@dataclass(frozen=True)
class Verdict:
    """The verifier's result for one program."""

    program: str
    instructions: int  # that the verifier processed; 0 if it rejected the program
    error: str = ""  # messages of the kernel and the verifier; empty if the program loads


def programs_of(obj: int) -> dict[str, int]:
    """Returns the programs of an opened object: name → `struct bpf_program *`."""
    found: dict[str, int] = {}
    program = libbpf.lib().bpf_object__next_program(ct.c_void_p(obj), None)
    while program:
        found[ct.string_at(libbpf.lib().bpf_program__name(ct.c_void_p(program))).decode()] = program
        program = libbpf.lib().bpf_object__next_program(ct.c_void_p(obj), ct.c_void_p(program))
    return found


def verify(path: Path, settings: bytes) -> list[Verdict]:
    """Returns a verdict per program, in the object's order. `settings`: its .rodata, by kernel/settings.py.

    Not of programs that are left out on this kernel.
    """
    obj = libbpf.open_object(path)
    try:
        names = [name for name in programs_of(obj) if name not in features.refused_programs()]
    finally:
        libbpf.close_object(obj)
    try:
        return _load(path, settings, names)
    except KernelError:  # one at a time tells which are refused
        return [_alone(path, settings, name) for name in names]


def _alone(path: Path, settings: bytes, name: str) -> Verdict:
    try:
        return _load(path, settings, [name])[0]
    except KernelError as e:
        return Verdict(name, 0, str(e.args[0]))


def _load(path: Path, settings: bytes, names: list[str]) -> list[Verdict]:
    """Loads these programs of an object, and no others. Raises KernelError."""
    obj = libbpf.open_object(path)
    try:
        rodata = next((m for n, m in libbpf.maps_of(obj).items() if n.endswith(".rodata")), 0)
        if rodata:
            libbpf.set_initial_value(rodata, settings)
        for name, program in programs_of(obj).items():
            libbpf.lib().bpf_program__set_autoload(ct.c_void_p(program), ct.c_bool(name in names))
        libbpf.load_object(obj)
        return [Verdict(n, libbpf.fill(ProgramInfo(), libbpf.program_fd(obj, n)).verified_insns) for n in names]
    finally:
        libbpf.close_object(obj)
