"""On which CPUs the kernel handles what an interface has received: receive packet steering (RPS)."""

import logging
import os
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path

from mrcd import libbpf
from mrcd.checks import cpu_list
from mrcd.errors import KernelError

log = logging.getLogger("mrcd")

_NET = Path("/sys/class/net")
_DEFAULT = Path("/proc/sys/net/core/rps_default_mask")
_ONLINE = Path("/sys/devices/system/cpu/online")

# Some 2 us on bare metal. Where a hypervisor has to send it (11 to 16 us) what RPS spreads costs more than it saves.
DEAR_NS = 6_000
_RUNS, _OTHERS = 64, 4


def online(path: Path = _ONLINE) -> set[int]:
    """Those that there are, as the kernel lists them."""
    return cpu_list(path.read_text(encoding="ascii").strip())


def choices(words: str, there: set[int]) -> list[set[int]]:
    """What overlay.rps_cpus lets be, of those `there`, the wanted first. None where there is but one CPU. Pure."""
    if words == "none" or len(there) < 2:
        return [set()]
    if words == "auto":
        return [there, set()]
    return [there if words == "all" else cpu_list(words) & there]


def chosen(words: str, there: set[int], *, bursts: bool) -> set[int]:
    """One of them. Where whole bursts come (`bursts`), each with an interrupt of its own, it goes by what that costs
    here, which takes some milliseconds to find out; packets that come one by one share interrupts.
    """
    wanted, *rest = choices(words, there)
    if not rest or not bursts:
        return wanted
    try:
        took = interrupt_ns(there)
    except (KernelError, OSError) as e:
        log.info("what an interrupt of another CPU costs is not known: %s", e)
        return wanted
    if took <= DEAR_NS:
        return wanted
    log.info(
        "an interrupt of another CPU takes %.0f us here, more than it saves: received flows are handled where they "
        'come in; overlay.rps_cpus = "all" spreads them all the same',
        took / 1000,
    )
    return rest[0]


def interrupt_ns(there: Iterable[int]) -> int:
    """What it costs to have another CPU do nothing, and hear that it has, beside doing so oneself: the quickest tenth
    of some. So it is the interrupts, and not from which sleep an idle CPU has to wake, or who had to wait for whom.
    """
    allowed = os.sched_getaffinity(0)
    own = min(allowed)
    others = sorted(set(there) - {own})[:_OTHERS]
    program = libbpf.load_noop()
    try:
        os.sched_setaffinity(0, {own})
        mine, theirs = ([libbpf.run_on(program, c) for _ in range(_RUNS) for c in some] for some in ([own], others))
    finally:
        os.sched_setaffinity(0, allowed)
        os.close(program)
    return quickest(theirs) - quickest(mine)


def quickest(times: Iterable[int]) -> int:
    """What the quickest tenth of them stays below. Pure."""
    found = sorted(times)
    return found[len(found) // 10]


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


@contextmanager
def steering(cpus: AbstractSet[int], path: Path = _DEFAULT) -> Iterator[None]:
    """A block in which interfaces are made whose received flows spread over these CPUs, each on one. If there are none,
    or the kernel does not let it, they stay where they come in.

    By a sysctl, for the files of an interface are root's alone, and /sys may be another network namespace's.
    """
    before = ""
    if cpus:
        try:
            before = path.read_text(encoding="ascii").strip()
            path.write_text(mask(cpus), encoding="ascii")
        except OSError as e:  # before Linux 6.3 there is none
            log.warning("%s: %s: received flows are handled where they come in", path, e.strerror)
    try:
        yield
    finally:
        if before:
            try:
                path.write_text(before if before.strip("0,") else "0", encoding="ascii")
            except OSError as e:
                log.warning("%s stays %s, and was %s: %s", path, mask(cpus), before, e.strerror)


def steered(interface: str, root: Path = _NET) -> set[int]:
    """Over which CPUs an interface's flows are spread. Empty: none, or /sys is another network namespace's."""
    queues = (root / interface / "queues").glob("rx-*/rps_cpus")
    try:
        return set().union(*(of_mask(q.read_text(encoding="ascii")) for q in queues))
    except OSError:
        return set()
