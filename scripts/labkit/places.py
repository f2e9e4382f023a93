# SPDX-License-Identifier: BSD-2-Clause
"""Finds the files of the lab in the repository."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def lab_object(name: str) -> Path:
    """Returns the compiled object of one of the lab's own programs, bpf/lab/NAME.bpf.c."""
    return REPOSITORY / "build" / f"{name}.bpf.o"


def end_program(name: str) -> Path:
    """Returns a program that runs inside a host of the lab: NAME.py in labkit/traffic/."""
    return Path(__file__).parent / "traffic" / f"{name}.py"
