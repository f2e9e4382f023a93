"""Processes on record: started by us, known by pid and start time, ended by exactly that.

A record is a small file "PID START\\n", START being field 22 of /proc/PID/stat (clock ticks after
boot). A pid that was given to another process since does not match, and is never signalled.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from labkit.cluster import netns


class Process(NamedTuple):
    """A process that cannot be mistaken for another."""

    pid: int
    start: int


def _stat(pid: int) -> tuple[str, int] | None:
    """(state, start time) of a process, None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the command's name may contain anything, even ") "
    return fields[0], int(fields[19])


def record_self(path: Path) -> None:
    """Put the calling process on record; exec(2) changes neither pid nor start time."""
    stat = _stat(os.getpid())
    assert stat is not None, "/proc is not mounted"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{os.getpid()} {stat[1]}\n", encoding="ascii")


def read_record(path: Path) -> Process | None:
    """The process on record, None if there is no (whole) record."""
    try:
        pid, start = path.read_text(encoding="ascii").split()
        return Process(int(pid), int(start))
    except (OSError, ValueError):
        return None


def alive(process: Process) -> bool:
    """Is it still there, the same one, and no zombie?"""
    stat = _stat(process.pid)
    return stat is not None and stat[1] == process.start and stat[0] not in "ZX"


def start_in(
    namespace: str, argv: Sequence[str], record: Path, *, env: dict[str, str], output: IO[Any]
) -> "subprocess.Popen[bytes]":
    """Start a daemon in a network namespace, in a session of its own."""
    with netns.inside(namespace):
        return subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # The child records itself: whenever the lab itself is killed, no daemon is left unrecorded.
            preexec_fn=lambda: record_self(record),
        )


def end(processes: Iterable[Process], patience_s: float = 3.0) -> list[Process]:
    """SIGTERM, and SIGKILL to those still there after `patience_s`. Returns those that had to be killed."""
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
    """A handle on exactly this process; None if it is gone."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return None
    if alive(process):  # looked at after opening: from here on the handle cannot change its meaning
        return fd
    os.close(fd)
    return None


def _unfinished(fds: set[int], patience_s: float) -> set[int]:
    """Wait for processes to end; the handles of those that have not. A pidfd is readable at the end."""
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
    """(namespace, pid, command) of every process in these network namespaces."""
    inodes = {netns.identity(n): n for n in namespaces}
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            inode = (entry / "ns/net").stat().st_ino
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # ended meanwhile
            continue
        if inode in inodes:
            found.append((inodes[inode], int(entry.name), command))
    return found
