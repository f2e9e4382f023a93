# SPDX-License-Identifier: BSD-2-Clause
"""Fetches kernels from the distribution's packages into build/kernels: the newest of each series."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.entry import progress
from labkit.places import REPOSITORY
from mrcd.errors import MachineError

CACHE = REPOSITORY / "build/kernels"
SERIES = ("6.1", "6.12")  # Debian 12's default kernel, and that of its security and backports archives
ARM64 = ("6.1-arm64", "6.12-arm64", "6.12-arm64-16k")  # 16k: pages of 16 KiB
# Unsigned images have no dependencies. Cloud images lack 9p, rt images the timers.
_PACKAGE = r"linux-image-(\d+\.\d+)\.(\d+)\S*-{}-unsigned"


@dataclass(frozen=True)
class Kernel:
    """A kernel to boot."""

    series: str  # of SERIES or ARM64
    release: str  # as in uname -r
    root: Path  # boot/vmlinuz-RELEASE and lib/modules/RELEASE are below it

    @property
    def image(self) -> Path:
        """Returns the image that qemu boots."""
        return self.root / "boot" / f"vmlinuz-{self.release}"

    @property
    def is_arm64(self) -> bool:
        """Returns whether its machine must be emulated for its architecture."""
        return self.series in ARM64


def newest(names: Iterable[str], series: str) -> str | None:
    """Returns the package with the newest kernel of a series, of `names`; None if there is none. Pure."""
    number, _, flavour = series.partition("-")
    found = []
    for name in names:
        match = re.fullmatch(_PACKAGE.format(flavour or "amd64"), name)
        if match and match[1] == number and "-cloud-" not in name and "-rt-" not in name:
            found.append(([int(n) for n in re.findall(r"\d+", name)], name))
    return max(found)[1] if found else None


def kernel(series: str) -> Kernel:
    """Returns the newest kernel of a series that apt knows, fetched if necessary; else the newest fetched before.

    Raises MachineError.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        root = _from_apt(series)
    except MachineError as e:
        package = newest((f"linux-image-{p.parent.name}-unsigned" for p in CACHE.glob("*/complete")), series)
        if package is None:
            raise
        root = _root(package)
        progress(f"kernels: {e.args[0]}; taking {root.name}, which was fetched before")
    return _found(series, root)


def _from_apt(series: str) -> Path:
    """Fetches from apt. Package lists that are days old name packages that are gone, so they are updated once."""
    try:
        return _fetched(series)
    except MachineError:
        update_lists()
        return _fetched(series)


def _fetched(series: str) -> Path:
    package = newest(_output("apt-cache", "pkgnames", "linux-image-").split(), series)
    if package is None:
        hint = "scripts/set-up --arm64" if series in ARM64 else "apt-get update; see /etc/apt/sources.list*"
        raise MachineError(f"apt knows no kernel of {series}", hint=hint)
    root = _root(package)
    if not (root / "complete").exists():
        _fetch(package, root)
    return root


@cache
def update_lists() -> None:
    """Updates apt's package lists, once per process. Raises MachineError."""
    _run(["apt-get", "-q", "-q", "update"])


def _root(package: str) -> Path:
    return CACHE / package.removeprefix("linux-image-").removesuffix("-unsigned")


def _found(series: str, root: Path) -> Kernel:
    (modules,) = (root / "lib/modules").iterdir()
    return Kernel(series, modules.name, root)


def _fetch(package: str, root: Path) -> None:
    """Downloads and unpacks a package. The file `complete` marks a whole directory; an incomplete one is remade."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    _run(["apt-get", "-q", "-q", "-o", "APT::Sandbox::User=root", "download", package], cwd=root)
    (archive,) = root.glob("*.deb")
    _run(["dpkg", "-x", str(archive), str(root)])
    archive.unlink()
    (modules,) = (root / "lib/modules").iterdir()
    _run(["/sbin/depmod", "-b", str(root), modules.name])
    (root / "complete").touch()


def _output(*argv: str) -> str:
    return completed([*argv]).stdout


def _run(argv: list[str], cwd: Path | None = None) -> None:
    done = completed(argv, cwd)
    if done.returncode:
        raise MachineError(f"{' '.join(argv[:2])} failed: {done.stderr.strip()}", hint="apt-get update, then again")


def completed(argv: list[str], cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Return how a command ended, and its output. Raises MachineError if there is no such program."""
    try:
        return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    except FileNotFoundError:
        raise MachineError(f"there is no {argv[0]} here", hint="kernels come from Debian's packages") from None
    except subprocess.TimeoutExpired:
        raise MachineError(f"{' '.join(argv[:2])}: not finished after 600 s") from None
