# SPDX-License-Identifier: BSD-2-Clause
"""Records processes that the lab starts, by pid and start time, and ends exactly those.

A record is a small file "PID START\\n", START being field 22 of /proc/PID/stat (clock ticks after
boot). A reused pid does not match, and is never signalled.
"""

import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from labkit.cluster import netns


class Process(NamedTuple):
    """A process, identified also after its pid is reused."""

    pid: int
    start: int


def _stat(pid: int) -> tuple[str, int] | None:
    """Returns (state, start time) of a process, None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command's name may contain anything, even ") "
    return fields[0], int(fields[19])


def record_self(path: Path) -> None:
    """Records the calling process; exec(2) changes neither pid nor start time."""
    stat = _stat(os.getpid())
    assert stat is not None, "/proc is not mounted"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{os.getpid()} {stat[1]}\n", encoding="ascii")


def read_record(path: Path) -> Process | None:
    """Returns the recorded process, None if there is no (whole) record."""
    try:
        pid, start = path.read_text(encoding="ascii").split()
        return Process(int(pid), int(start))
    except (OSError, ValueError):
        return None


def alive(process: Process) -> bool:
    """Returns whether that same process still exists and is no zombie."""
    stat = _stat(process.pid)
    return stat is not None and stat[1] == process.start and stat[0] not in "ZX"


def end(processes: Iterable[Process], patience_s: float = 3.0) -> list[Process]:
    """Sends SIGTERM, and SIGKILL to those left after `patience_s`. Returns those that had to be killed."""
    open_fds: dict[int, Process] = {}
    killed = []
    try:
        for process in processes:
            fd = _pidfd(process)
            if fd is not None:
                open_fds[fd] = process
                signal.pidfd_send_signal(fd, signal.SIGTERM)
        for fd in _unfinished(set(open_fds), patience_s):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            killed.append(open_fds[fd])
        _unfinished({fd for fd, p in open_fds.items() if p in killed}, 1.0)
    finally:
        for fd in open_fds:
            os.close(fd)
    return killed


def _pidfd(process: Process) -> int | None:
    """Returns a pidfd of exactly this process; None if it is gone."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return None
    if alive(process):  # checked after opening: the pidfd can no longer refer to another process
        return fd
    os.close(fd)
    return None


def _unfinished(fds: set[int], patience_s: float) -> set[int]:
    """Waits for processes to end. Returns the pidfds of those that have not. A pidfd is readable at the end."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    left = set(fds)
    deadline = time.monotonic() + patience_s
    while left and (wait := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(wait * 1000):
            poll.unregister(fd)
            left.discard(fd)
    return left


def inhabitants(namespaces: Iterable[str]) -> list[tuple[str, int, str]]:
    """Returns (namespace, pid, command) of every process in these network namespaces."""
    inodes = {netns.identity(n): n for n in namespaces}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            inode = (entry / "ns/net").stat().st_ino
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # the process has ended
            continue
        if inode in inodes:
            found.append((inodes[inode], int(entry.name), command))
    return found
