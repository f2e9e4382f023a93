# SPDX-License-Identifier: BSD-2-Clause
"""Changes the machine's network for the lab: namespaces, batches, sysctls and mounts.

A network namespace is entered with setns(2) alone. `ip netns exec` would also mount a new /sys, which
hides every bpffs below it.
"""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mrcd.errors import KernelError, MachineError

NETNS_DIR = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_MNT_DETACH = 2
_SIOCGIFFLAGS = 0x8913
_IFF_RUNNING = 0x40
_BACKLOG = Path("/proc/sys/net/core/netdev_max_backlog")
_ROOM = 100_000  # packets
_libc = ctypes.CDLL(None, use_errno=True)


def enter(namespace: str) -> None:
    """Moves this thread into a network namespace permanently. Raises KernelError."""
    try:
        fd = os.open(NETNS_DIR / namespace, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        raise KernelError(f"open network namespace {namespace}", e.errno or 0, hint="is the lab up?") from None
    try:
        _setns(fd, namespace)
    finally:
        os.close(fd)


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Runs a block, and the processes it starts, in a network namespace. Affects this thread only."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(namespace)
        try:
            yield
        finally:
            _setns(home, "of this thread before")
    finally:
        os.close(home)


def _setns(fd: int, what: str) -> None:
    if _libc.setns(fd, _CLONE_NEWNET):
        raise KernelError(f"enter network namespace {what}", ctypes.get_errno())


@contextmanager
def room_for_packets() -> Iterator[None]:
    """A block in which each CPU's queue of received packets has room for those of all namespaces, which share it."""
    before = int(_BACKLOG.read_text(encoding="ascii"))
    if before >= _ROOM:  # by another program's block, or by the administrator
        yield
        return
    _BACKLOG.write_text(str(_ROOM), encoding="ascii")
    try:
        yield
    finally:
        _BACKLOG.write_text(str(before), encoding="ascii")


def existing() -> list[str]:
    """Returns the names of all network namespaces of the machine."""
    return sorted(p.name for p in NETNS_DIR.iterdir()) if NETNS_DIR.is_dir() else []


def identity(namespace: str) -> int:
    """Returns the inode that /proc/PID/ns/net shows for processes in a namespace."""
    return (NETNS_DIR / namespace).stat().st_ino


def batch(tool: Sequence[str], lines: Iterable[str]) -> None:
    """Runs a list of `ip` or `tc` commands in one process. Raises MachineError with the refused line."""
    script = list(lines)
    if not script:
        return
    # close_fds: the child shares the lab's lock (state.py), so nobody cleans up while it works after this process died.
    argv = [*tool, "-batch", "-"]
    done = subprocess.run(argv, input="\n".join(script) + "\n", text=True, capture_output=True, close_fds=False)
    if done.returncode:
        # The last words are "Command failed -:LINE".
        line = done.stderr.rstrip().rpartition(":")[2]
        refused = script[int(line) - 1] if line.isdigit() and 0 < int(line) <= len(script) else "(unknown line)"
        why = done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"exit code {done.returncode}"
        raise MachineError(f"{tool[0]} {refused}: {why}")


def batch_in(namespace: str, tool: Sequence[str], lines: Iterable[str]) -> None:
    """Runs `batch` inside a namespace."""
    script = list(lines)
    if script:
        with inside(namespace):
            batch(tool, script)


def write_sysctls(settings: Iterable[tuple[str, str]]) -> None:
    """Writes /proc/sys/net/… of the current namespace. Raises MachineError."""
    for path, value in settings:
        try:
            Path("/proc/sys/net", path).write_text(value, encoding="ascii")
        except OSError as e:
            raise MachineError(f"sysctl net/{path} = {value}: {e.strerror}") from None


_SWAP_RPS = """
mount -t sysfs sysfs /sys || exit
while [ $# -gt 0 ]; do
    for file in "/sys/class/net/$1/queues"/rx-*/rps_cpus; do
        was=$(cat "$file") && echo "$2" >"$file" || exit
    done
    echo "$1 $was"
    shift 2
done
"""


def swap_rps(masks: dict[str, str]) -> dict[str, str]:
    """Sets the RPS CPUs (a sysfs mask) of all receive queues of interfaces of the current namespace.

    Returns the previous masks of their last queues. Raises MachineError.
    """
    # sysfs shows the network namespace of the process that mounts it.
    argv = ["unshare", "--mount", "sh", "-c", _SWAP_RPS, "sh", *(word for pair in masks.items() for word in pair)]
    done = subprocess.run(argv, text=True, capture_output=True)
    if done.returncode:
        raise MachineError(f"set rps_cpus of {', '.join(masks)}: {done.stderr.strip()}")
    was = dict[str, str]()
    for line in done.stdout.splitlines():
        name, _, was[name] = line.partition(" ")
    return was


@contextmanager
def congestion_control_allowed(name: str, lock: Path) -> Iterator[None]:
    """A block in which namespaces may choose a TCP congestion control that the machine restricts.

    Only the root namespace may set a restricted algorithm as default (EPERM elsewhere), and the list of restricted
    algorithms is one for the whole machine. The list is restored afterwards; the choices stay.
    `lock` is a directory; its lock serialises all labs of the machine.
    """
    path = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    fd = os.open(lock, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        before = path.read_text(encoding="ascii").split()
        if name not in before:
            path.write_text(" ".join([*before, name]), encoding="ascii")
        try:
            yield
        finally:
            if name not in before:
                path.write_text(" ".join(before), encoding="ascii")
    finally:
        os.close(fd)


def sent_bytes() -> dict[str, int]:
    """Returns the bytes sent so far by each interface of the current namespace."""
    lines = Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return {name.strip(): int(counters.split()[8]) for name, _, counters in (line.partition(":") for line in lines)}


def interfaces() -> set[str]:
    """Returns the names of the interfaces of the current namespace."""
    return {name for _, name in socket.if_nameindex()}


def running(interface: str) -> bool:
    """Returns whether the interface is up, with carrier and started queues (IFF_RUNNING, netdevice(7))."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sH14x", interface.encode(), 0)
        flags: int = struct.unpack_from("H", fcntl.ioctl(s, _SIOCGIFFLAGS, request), 16)[0]
    return bool(flags & _IFF_RUNNING)


def mount_bpffs(path: Path) -> None:
    """Mounts a BPF file system; keeps one that is mounted there already."""
    path.mkdir(parents=True, exist_ok=True)
    if os.path.ismount(path):
        return
    if _libc.mount(b"bpf", os.fsencode(path), b"bpf", 0, b"mode=0700"):
        raise KernelError(f"mount a bpffs on {path}", ctypes.get_errno())


def unmount_below(root: Path) -> None:
    """Unmounts everything below a directory, innermost first. Raises KernelError."""
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        points = [Path(_unescape(line.split()[4])) for line in f]
    for point in sorted((p for p in points if p.is_relative_to(root)), key=lambda p: len(p.parts), reverse=True):
        if _libc.umount2(os.fsencode(point), _MNT_DETACH):
            raise KernelError(f"unmount {point}", ctypes.get_errno())


def _unescape(field: str) -> str:
    """Decodes mountinfo's octal escapes of blanks and backslashes."""
    return field.encode().decode("unicode_escape")
