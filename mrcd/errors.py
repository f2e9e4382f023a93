# SPDX-License-Identifier: BSD-2-Clause
"""Defines the exceptions that mrcd and mrcctl show to users, with their exit statuses.

MrcdError                 has a message and, if one is known, a remedy (`hint`)
├── UsageError            the command line or the configuration is wrong        exit status 1
│   ├── ConfigError
│   │   └── UnknownHost
│   └── TakesRestart
└── MachineError          the daemon, the kernel or the machine refused         exit status 2
    ├── KernelError       has errno and the kernel's text for it
    ├── DaemonError       the daemon is down, or answered with an error
    └── CannotTell        a check has no result                                 exit status 3
"""

import errno
import itertools
import os
from collections.abc import Iterable


class MrcdError(Exception):
    """An error with a message for the user and, if one is known, the next step (`hint`)."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n  hint: {self.hint}" if self.hint else message


class UsageError(MrcdError):
    """The user gave wrong arguments or an unknown name."""

    exit_code = 1


class ConfigError(UsageError):
    """The configuration file is wrong; nothing was changed."""


class UnknownHost(ConfigError):
    """The configuration file has no host of this name, or several."""


class TakesRestart(UsageError):
    """A running daemon cannot take over the configuration, but a new one can; nothing was changed."""


class MachineError(MrcdError):
    """The kernel, the daemon or the file system refused an operation."""


class KernelError(MachineError):
    """A system call failed. `errno` is positive, as in errno.h."""

    def __init__(self, what: str, code: int, *, hint: str | None = None) -> None:
        self.errno = abs(code)
        name = errno.errorcode.get(self.errno, str(self.errno))
        super().__init__(f"{what}: {os.strerror(self.errno)} ({name})", hint=hint or _HINTS.get(self.errno))


class DaemonError(MachineError):
    """mrcd does not answer, or refused a request."""


class CannotTell(MachineError):
    """A check for a scheduler has no result, because what it reads does not answer."""

    exit_code = 3


def no_peer(name: str, peers: Iterable[str]) -> UsageError:
    """Returns an error for an unknown peer name. Its hint lists up to ten known peers."""
    some = ", ".join(itertools.islice(peers, 10))
    return UsageError(f"there is no peer {name!r}", hint=f"peers: {some}")


_HINTS = {
    errno.EPERM: "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
    errno.EACCES: "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
    errno.ENODEV: "check the interface names in the configuration with `ip link`",
}
