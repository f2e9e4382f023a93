"""The other end of the pipe: who only writes now and then must notice that it has gone without writing."""

import os
import select
import stat
import sys
import threading

_BROKEN_PIPE = 141  # 128 + SIGPIPE, as where a write meets it


def leave_with_reader() -> None:
    """End this process as soon as the reader of its standard output, if that is a pipe, has gone (`| grep -m1`)."""
    try:
        fd = sys.stdout.fileno()
    except (OSError, ValueError):  # none of the kernel's
        return
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        threading.Thread(target=_wait, args=(fd,), daemon=True).start()


def _wait(fd: int) -> None:
    gone = select.poll()
    gone.register(fd, 0)  # of itself it tells of POLLERR: nobody can read any more
    gone.poll()
    os._exit(_BROKEN_PIPE)
