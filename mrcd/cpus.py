"""On which CPUs the kernel handles what an interface has received: receive packet steering (RPS)."""

import asyncio
import errno
import logging
import os
import socket
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from mrcd import libbpf
from mrcd.checks import cpu_list
from mrcd.errors import KernelError

log = logging.getLogger("mrcd")

_NET = Path("/sys/class/net")
_DEFAULT = Path("/proc/sys/net/core/rps_default_mask")
_ONLINE = Path("/sys/devices/system/cpu/online")

# Where a hypervisor has to send it (11 us were measured) one for each burst costs more than spreading saves.
DEAR_NS = 6_000
_RUNS, _LEAST_RUNS, _MOST_S = 64, 10, 0.02
_BYTES = 1 << 20  # a millisecond of work, or less


def online(path: Path = _ONLINE) -> set[int]:
    """Those that there are, as the kernel lists them."""
    return cpu_list(path.read_text(encoding="ascii").strip())


def chosen(setting: str, there: set[int]) -> set[int]:
    """What overlay.rps_cpus means, of those `there`: none where there is but one, which has no choice. Pure."""
    if setting == "none" or len(there) < 2:
        return set()
    return there if setting in ("auto", "all") else cpu_list(setting) & there


async def interrupts_are_dear(there: set[int]) -> bool:
    """Whether to interrupt another CPU for each burst costs more than RPS saves. Says what it finds."""
    if len(there) < 2:
        return False
    try:
        with ThreadPoolExecutor(1) as thread:  # of its own, which ends: it stays on one CPU
            took = await asyncio.get_running_loop().run_in_executor(thread, interrupt_ns, there)
    except (KernelError, OSError, RuntimeError) as e:
        log.info("received flows spread over all CPUs: what interrupts cost is not known: %s", e)
        return False
    what = "spread over all CPUs" if took <= DEAR_NS else "stay on the CPUs on which they come in where these are busy"
    log.info('received flows %s (rps_cpus = "auto"): to interrupt another CPU takes %.1f us', what, took / 1000)
    return took > DEAR_NS


def interrupt_ns(there: Iterable[int]) -> int:
    """What it costs to have another CPU, which is busy, do nothing, and to hear that it has, beside doing so oneself:
    the quickest tenth of some. Pins the thread that calls this. Raises OSError if it may use one CPU only, KernelError.
    """
    own, other, *_ = sorted(os.sched_getaffinity(0) & set(there)) + [None] * 2
    if own is None or other is None:
        raise OSError(errno.ENODEV, "mrcd may use no other CPU")
    mine: list[int] = []
    theirs: list[int] = []
    with _busy(other), libbpf.noop() as program:
        os.sched_setaffinity(0, {own})
        until = time.monotonic() + _MOST_S
        while len(theirs) < _RUNS and (len(theirs) < _LEAST_RUNS or time.monotonic() < until):
            mine.append(libbpf.run_on(program, own))
            theirs.append(libbpf.run_on(program, other))
    return max(0, quickest(theirs) - quickest(mine))


@contextmanager
def _busy(cpu: int) -> Iterator[None]:
    """A block in which a CPU does not sleep: some poll then, and are told without an interrupt."""
    begun, over, zeros = threading.Event(), threading.Event(), bytes(_BYTES)

    def work() -> None:
        with suppress(OSError):
            os.sched_setaffinity(0, {cpu})
        while not over.is_set():
            begun.set()
            zlib.crc32(zeros)  # without the interpreter's lock

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait(1)
    try:
        yield
    finally:
        over.set()
        thread.join()


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
