# SPDX-License-Identifier: BSD-2-Clause
"""Configures receive packet steering (RPS): the CPUs on which the kernel processes received packets."""

import logging
import socket
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path

from mrcd.config.cluster_file import cpu_list
from mrcd.net import sysctls

log = logging.getLogger("mrcd")

_NET = Path("/sys/class/net")
_DEFAULT_MASK = sysctls.NET / "core/rps_default_mask"
_ONLINE = Path("/sys/devices/system/cpu/online")


def online_cpus(path: Path = _ONLINE) -> set[int]:
    """Returns the CPUs that are online."""
    return cpu_list(path.read_text(encoding="ascii").strip())


def select_cpus(setting: str, online: set[int]) -> set[int]:
    """Returns the online CPUs that overlay.rps_cpus selects; none if only one CPU is online. Pure."""
    if setting == "none" or len(online) < 2:
        return set()
    return online if setting == "all" else cpu_list(setting) & online


def format_mask(cpus: Iterable[int]) -> str:
    """Returns CPUs as a mask of sysfs: hexadecimal words of 32 bits, the highest first. Pure."""
    bits = sum(1 << cpu for cpu in cpus)
    found: list[str] = []
    while bits or not found:
        found.append(f"{bits & 0xFFFFFFFF:08x}")
        bits >>= 32
    return ",".join(reversed(found))


def parse_mask(text: str) -> set[int]:
    """Returns the CPUs of a mask of sysfs. Pure."""
    bits = int(text.strip().replace(",", ""), 16)
    return {cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1}


def format_cpus(cpus: Iterable[int]) -> str:
    """Returns CPUs as ranges: 0-3,8. Pure."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in spans)


def has_default_mask(path: Path = _DEFAULT_MASK) -> bool:
    """Returns whether the kernel has the sysctl rps_default_mask (Linux 6.3), which a daemon without root can write."""
    return path.exists()


@contextmanager
def default_cpus(cpus: AbstractSet[int], path: Path = _DEFAULT_MASK) -> Iterator[AbstractSet[int]]:
    """Opens a block: interfaces created in it distribute received flows over these CPUs, each flow on one of them.

    Yields the CPUs that were set; none if the kernel refuses, and flows stay on the CPU that receives them. This uses a
    sysctl because only root can write an interface's files in /sys, and /sys may show another network namespace.
    """
    before = ""
    if cpus:
        try:
            before = path.read_text(encoding="ascii").strip()
            path.write_text(format_mask(cpus), encoding="ascii")
        except OSError as e:
            log.warning("%s: %s: received flows stay on the CPU that receives them (no RPS)", path, e.strerror)
            cpus = set()
    try:
        yield cpus
    finally:
        if before:
            try:
                path.write_text(before if before.strip("0,") else "0", encoding="ascii")
            except OSError as e:
                log.warning("%s: cannot restore %s: %s", path, before, e.strerror)


def cpus_of(interface: str, root: Path = _NET) -> set[int] | None:
    """Returns the CPUs over which an interface's received flows are distributed.

    None if they are unknown because /sys shows another network namespace, which may have an interface of this name.
    """
    try:
        if int((root / interface / "ifindex").read_text(encoding="ascii")) != socket.if_nametoindex(interface):
            return None
        queues = (root / interface / "queues").glob("rx-*/rps_cpus")
        masks = [parse_mask(q.read_text(encoding="ascii")) for q in queues]
    except OSError:
        return None
    return set().union(*masks) if masks else None
