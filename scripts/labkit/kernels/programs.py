# SPDX-License-Identifier: BSD-2-Clause
"""Checks the programs on one kernel: the verifier accepts them, and they pass the packet tests."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from labkit.places import REPOSITORY
from mrcd.config import cluster_file
from mrcd.fabric import topology
from mrcd.kernel import features, verify
from mrcd.kernel.object_file import object_path
from mrcd.kernel.settings import settings

HALF = verify.MAX_INSTRUCTIONS // 2  # head room: no program may need more

Say = Callable[..., None]


def programs(say: Say, _: Path) -> None:
    """Loads all programs: with the settings of a small cluster, and with all features and the largest tables."""
    for name, value in variants().items():
        for v in verify.verify(object_path(), value):
            ok = not v.error and v.instructions <= HALF
            words = v.error or f"{v.instructions} of {verify.MAX_INSTRUCTIONS} instructions verified"
            say("programs", f"{v.program}, {name}", ok, words, program=v.program, instructions=v.instructions)


def variants() -> dict[str, bytes]:
    """Returns the settings to verify the programs with, which are constants to the verifier."""
    has = features.kernel_has()
    small = settings(topology.plan(cluster_file.parse(cluster_file.EXAMPLE.replace('"srh"', '"usid"')), "a"), has)
    large = settings(topology.plan(cluster_file.parse(cluster_file.EXAMPLE), "a"), has)
    for name, number in {
        "classes": 1,
        "source_check": 1,
        "planes": 16,
        "evs_per_peer": 256,
        "evs_per_plane": 16,
    }.items():
        large[name] = number
    return {"least": small.tobytes(), "all features": large.tobytes()}


def packets(say: Say, results: Path) -> None:
    """Runs the repository's packet tests, each with its first parameters only; `make test` runs the others."""
    argv = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--maxfail=20", "-p", "no:cacheprovider"]
    argv += ["-p", "no:hypothesispytest"]  # not needed, and compiled for another machine than arm64.py emulates
    argv += ["tests/packet", "--one-of-each"]
    with (results / "packets").open("w", encoding="utf-8") as out:
        done = subprocess.run(argv, cwd=REPOSITORY, stdout=out, stderr=out, check=False)
    last = (results / "packets").read_text(encoding="utf-8").strip().splitlines()[-1]
    counts = ", ".join(re.findall(r"\d+ (?:failed|passed|skipped|errors?)", last))
    say("packets", "tests/packet", done.returncode == 0, last, cell=counts)
