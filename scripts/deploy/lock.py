# SPDX-License-Identifier: BSD-2-Clause
"""Reads pinned packages (`name==version` lines) and prints them with the hashes of the wheels that hosts may install.

Those are the wheels that pip takes for each Python and architecture of PYTHONS and MACHINES. Arguments: the platforms
of these wheels, without their architecture (PEP 600).
"""

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
_ASK = ["--quiet", "--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:"]
_ASK += ["--report", "-", "--target", "/nowhere"]


def wheels(pins: str, python: str, machine: str) -> list[tuple[str, str]]:
    """Returns (package, SHA-256) of the wheels of one Python and architecture."""
    argv = [sys.executable, "-m", "pip", "install", *_ASK, "--python-version", python, "--requirement", pins]
    argv += [word for glibc in sys.argv[1:] for word in ("--platform", f"{glibc}_{machine}")]
    report = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout)
    return [(i["metadata"]["name"], i["download_info"]["archive_info"]["hashes"]["sha256"]) for i in report["install"]]


def _normal(name: str) -> str:
    """Returns a package's name as PEP 503 normalizes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Entry point."""
    hashes: dict[str, set[str]] = defaultdict(set)
    with tempfile.NamedTemporaryFile("w") as file:
        pins = [line.strip() for line in sys.stdin if "==" in line]
        file.write("\n".join(pins))
        file.flush()
        for python in PYTHONS:
            for machine in MACHINES:
                for name, sha256 in wheels(file.name, python, machine):
                    hashes[_normal(name)].add(sha256)
    for pin in pins:
        found = [f"--hash=sha256:{sha256}" for sha256 in sorted(hashes[_normal(pin.partition("==")[0])])]
        if not found:
            sys.exit(f"{pin}: pip has found no wheel")
        print(" \\\n    ".join((pin, *found)))


if __name__ == "__main__":
    main()
