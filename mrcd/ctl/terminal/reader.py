# SPDX-License-Identifier: BSD-2-Clause
"""Ends mrcctl when the reader of its pipe exits, even if mrcctl writes nothing for a long time."""

import os
import select
import stat
import sys
import threading

_BROKEN_PIPE = 141  # 128 + SIGPIPE, the exit code of a failed write


def leave_with_reader() -> None:
    """End this process as soon as the reader of its standard output closes the pipe (`| grep -m1`)."""
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):  # stdout has no file descriptor
        return
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        threading.Thread(target=_wait, args=(fd,), daemon=True).start()


def _wait(fd: int) -> None:
    gone = select.poll()
    gone.register(fd, 0)  # poll always reports POLLERR, which means that no reader is left
    gone.poll()
    os._exit(_BROKEN_PIPE)
