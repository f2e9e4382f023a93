"""Switches rx-checksum off on NICs where XDP pops packets, and on again afterwards.

The names are on record in the run directory: a restart of mrcd must not forget what it has changed, and `mrcctl detach
--force` undoes it without mrcd.
"""

import contextlib
import json
import logging
import os
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

from mrcd.errors import KernelError, MachineError, MrcdError
from mrcd.net.drivers import RX_CHECKSUM, Device
from mrcd.net.netlink import set_offload

FILE = "rx-checksum.json"  # in the run directory
log = logging.getLogger("mrcd")

_NAME_MOST = 15  # characters of an interface's name


class ReceiveChecksums:
    """The NICs whose rx-checksum was on before mrcd switched it off."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = _read(path)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def before(self, name: str, device: Device) -> Device:
        """A NIC as it was before mrcd changed it."""
        if name not in self._names:
            return device
        return replace(device, offloads={**device.offloads, RX_CHECKSUM: True})

    def switch_off(self, name: str) -> None:
        """Switch a NIC's off. Raises MachineError, KernelError."""
        known = name in self._names
        self._record(self._names | {name})  # first: whatever happens next, it is undone
        try:
            set_offload(name, {RX_CHECKSUM: False})
        except MrcdError as e:
            if not known:
                self._record(self._names - {name})
            hint = 'set hook = "auto" or "tc" for this host in the configuration'
            if isinstance(e, KernelError):
                raise KernelError(f"switch {RX_CHECKSUM} of {name} off", e.errno, hint=hint) from None
            raise MachineError(e.args[0], hint=hint) from None

    def restore(self, keep: AbstractSet[str] = frozenset()) -> None:
        """Switch them on again, but those of `keep`: nothing is popped by XDP at the others any more."""
        for name in sorted(self._names - keep):
            try:
                set_offload(name, {RX_CHECKSUM: True})
                log.info("%s: %s is on again", name, RX_CHECKSUM)
            except MrcdError as e:
                log.warning("%s: %s stays off: %s", name, RX_CHECKSUM, e.args[0])
        if self._names - keep:
            self._record(self._names & keep)

    def forget(self, name: str) -> None:
        """Switch one on again, if mrcd has switched it off."""
        self.restore(self._names - {name})

    def _record(self, names: AbstractSet[str]) -> None:
        self._names = frozenset(names)
        try:
            if names:
                new = self._path.with_name(self._path.name + ".new")
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(new, flags, 0o644), "w") as f:
                    json.dump(sorted(names), f)
                new.rename(self._path)
            else:
                self._path.unlink(missing_ok=True)
        except OSError as e:
            log.warning("%s: %s: a restart will not know whose %s was on", self._path, e.strerror, RX_CHECKSUM)


def _read(path: Path) -> frozenset[str]:
    """Root reads what a user who is not may replace: by a link, or a pipe."""
    with contextlib.suppress(OSError, ValueError):
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as f:
            names = json.load(f)
        if isinstance(names, list):
            return frozenset(n for n in names if isinstance(n, str) and 0 < len(n) <= _NAME_MOST)
    return frozenset()
