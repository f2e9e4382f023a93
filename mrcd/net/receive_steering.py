"""On which CPUs the kernel handles what an interface has received: receive packet steering (RPS)."""

import logging
import socket
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path

from mrcd.config.checks import cpu_list

log = logging.getLogger("mrcd")

_NET = Path("/sys/class/net")
_DEFAULT = Path("/proc/sys/net/core/rps_default_mask")
_ONLINE = Path("/sys/devices/system/cpu/online")


def online(path: Path = _ONLINE) -> set[int]:
    """Those that there are, as the kernel lists them."""
    return cpu_list(path.read_text(encoding="ascii").strip())


def chosen(setting: str, there: set[int]) -> set[int]:
    """Return the CPUs that overlay.rps_cpus selects of those that are `there`; none if there is only one. Pure."""
    if setting == "none" or len(there) < 2:
        return set()
    return there if setting == "all" else cpu_list(setting) & there


def mask(cpus: Iterable[int]) -> str:
    """As sysfs takes it: hexadecimal words of 32 bits, the highest first. Pure."""
    bits = sum(1 << cpu for cpu in cpus)
    found: list[str] = []
    while bits or not found:
        found.append(f"{bits & 0xFFFFFFFF:08x}")
        bits >>= 32
    return ",".join(reversed(found))


def of_mask(text: str) -> set[int]:
    """The CPUs of a mask of sysfs. Pure."""
    bits = int(text.strip().replace(",", ""), 16)
    return {cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1}


def words(cpus: Iterable[int]) -> str:
    """Ranges: 0-3,8. Pure."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in spans)


def can_steer(path: Path = _DEFAULT) -> bool:
    """Whether this kernel lets a daemon that is not root choose CPUs; before Linux 6.3 it does not."""
    return path.exists()


@contextmanager
def steering(cpus: AbstractSet[int], path: Path = _DEFAULT) -> Iterator[AbstractSet[int]]:
    """A block in which interfaces are made whose received flows spread over these CPUs, each on one. Yields those that
    were set: none if the kernel does not let it, then flows stay where they come in.

    By a sysctl, for the files of an interface are root's alone, and /sys may be another network namespace's.
    """
    before = ""
    if cpus:
        try:
            before = path.read_text(encoding="ascii").strip()
            path.write_text(mask(cpus), encoding="ascii")
        except OSError as e:
            log.warning("%s: %s: received flows are handled where they come in", path, e.strerror)
            cpus = set()
    try:
        yield cpus
    finally:
        if before:
            try:
                path.write_text(before if before.strip("0,") else "0", encoding="ascii")
            except OSError as e:
                log.warning("%s is not %s again: %s", path, before, e.strerror)


def steered(interface: str, root: Path = _NET) -> set[int] | None:
    """Over which CPUs an interface's flows are spread. None: not known, for /sys is another network namespace's, which
    may have an interface of that name too."""
    try:
        if int((root / interface / "ifindex").read_text(encoding="ascii")) != socket.if_nametoindex(interface):
            return None
        queues = (root / interface / "queues").glob("rx-*/rps_cpus")
        masks = [of_mask(q.read_text(encoding="ascii")) for q in queues]
    except OSError:
        return None
    return set().union(*masks) if masks else None
