# SPDX-License-Identifier: BSD-2-Clause
"""Switches rx-checksum off on NICs where XDP pops packets, and on again afterwards.

A file in the run directory records the names of these NICs. So a restarted mrcd knows what it has changed, and
`mrcctl detach --force` can restore it without mrcd.
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

_MAX_NAME = 15  # characters of an interface's name


class ReceiveChecksums:
    """The NICs whose rx-checksum was on before mrcd switched it off."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = _read(path)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def before(self, name: str, device: Device) -> Device:
        """Returns a NIC's device data as they were before mrcd changed rx-checksum."""
        if name not in self._names:
            return device
        return replace(device, offloads={**device.offloads, RX_CHECKSUM: True})

    def switch_off(self, name: str) -> None:
        """Switches rx-checksum of a NIC off. Raises MachineError, KernelError."""
        is_recorded = name in self._names
        self._record(self._names | {name})  # first, so that a failure afterwards can be undone
        try:
            set_offload(name, {RX_CHECKSUM: False})
        except MrcdError as e:
            if not is_recorded:
                self._record(self._names - {name})
            hint = 'set hook = "auto" or "tc" for this host in the configuration'
            if isinstance(e, KernelError):
                raise KernelError(f"switch {RX_CHECKSUM} of {name} off", e.errno, hint=hint) from None
            raise MachineError(e.args[0], hint=hint) from None

    def restore(self, keep: AbstractSet[str] = frozenset()) -> None:
        """Switches rx-checksum on again, except on the NICs in `keep`, where XDP still pops packets."""
        failed = set[str]()
        for name in sorted(self._names - keep):
            try:
                set_offload(name, {RX_CHECKSUM: True})
                log.info("%s: switched %s on again", name, RX_CHECKSUM)
            except MrcdError as e:
                failed.add(name)  # it may be back later: renamed, or out of another namespace
                log.warning("%s: %s stays off: %s", name, RX_CHECKSUM, e.args[0])
        if self._names - keep - failed:
            self._record(self._names & (keep | failed))

    def forget(self, name: str) -> None:
        """Switches rx-checksum of a NIC on again, if mrcd has switched it off."""
        self.restore(self._names - {name})

    def save(self) -> None:
        """Writes the file again, if there is anything to record."""
        self._record(self._names)

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
            log.warning("%s: %s: a restart of mrcd will not restore %s", self._path, e.strerror, RX_CHECKSUM)


def _read(path: Path) -> frozenset[str]:
    """Returns the recorded names. Follows no link and opens no pipe: another user may have replaced the file."""
    with contextlib.suppress(OSError, ValueError):
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as f:
            names = json.load(f)
        if isinstance(names, list):
            return frozenset(n for n in names if isinstance(n, str) and 0 < len(n) <= _MAX_NAME)
    return frozenset()
