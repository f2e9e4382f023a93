# SPDX-License-Identifier: BSD-2-Clause
"""Loads the lab's own programs, and attaches them at tc: by a TCX link, or by a clsact filter without TCX."""

import contextlib
import errno
import os
import socket
import zlib
from collections.abc import Iterator

from labkit.cluster import netns
from labkit.faults.targets import Hook
from labkit.places import lab_object
from mrcd.errors import KernelError, MachineError
from mrcd.kernel import libbpf

_LINKS = {"ingress": libbpf.TCX_INGRESS, "egress": libbpf.TCX_EGRESS}
_FILTERS = {"ingress": libbpf.TC_INGRESS, "egress": libbpf.TC_EGRESS}


@contextlib.contextmanager
def loaded(name: str, settings: bytes = b"") -> Iterator[int]:
    """A block with the loaded object of bpf/lab/NAME.bpf.c. `settings` are its read-only data. Raises MachineError."""
    path = lab_object(name)
    if not path.exists():
        raise MachineError(f"{path} is missing: a program of the lab is not compiled", hint="make build")
    obj = libbpf.open_object(path)
    try:
        if settings:
            libbpf.set_initial_value(next(m for n, m in libbpf.maps_of(obj).items() if n.endswith(".rodata")), settings)
        libbpf.load_object(obj)
        yield obj
    finally:
        libbpf.close_object(obj)


def map_fd(obj: int, name: str) -> int:
    """Returns the descriptor of a map of a loaded object."""
    return libbpf.map_fd(libbpf.maps_of(obj)[name])


def attach(program: int, namespace: str, interface: str, hook: Hook, owner: str) -> int | None:
    """Attaches a program. Returns a link's descriptor, whose close detaches it, or None for a filter (see `remove`).

    `owner` distinguishes several programs at one hook.
    """
    with netns.inside(namespace):
        index = socket.if_nametoindex(interface)
        try:
            return libbpf.create_link(program, index, _LINKS[hook])
        except KernelError as e:
            if e.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
        libbpf.attach_clsact(program, index, _FILTERS[hook], 1, _priority(owner))
    return None


def remove(namespace: str, interface: str, hook: Hook, owner: str) -> None:
    """Removes a filter; no error if its interface or namespace is gone."""
    try:
        with netns.inside(namespace):
            libbpf.detach_clsact(socket.if_nametoindex(interface), _FILTERS[hook], 1, _priority(owner))
    except OSError:
        return


class Attached:
    """Programs of one owner at tc hooks."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._links: list[int] = []
        self._filters: list[tuple[str, str, Hook]] = []

    def attach(self, program: int, namespace: str, interface: str, hook: Hook) -> None:
        """Attaches one more program. Raises KernelError."""
        link = attach(program, namespace, interface, hook, self._owner)
        if link is None:
            self._filters.append((namespace, interface, hook))
        else:
            self._links.append(link)

    def remove(self) -> None:
        """Detaches all of them."""
        for link in self._links:
            os.close(link)
        for place in self._filters:
            remove(*place, self._owner)
        self._links, self._filters = [], []


def _priority(owner: str) -> int:
    """Returns the filter priority of an owner, before mrcd's filter."""
    return 1 + zlib.crc32(owner.encode()) % (libbpf.CLSACT_PRIORITY - 1)
