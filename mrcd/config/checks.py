# SPDX-License-Identifier: BSD-2-Clause
"""Checks values of the cluster file beyond their types. Pure."""

_MAX_CPUS = 8192  # NR_CPUS of the largest kernels


def port_range(text: int | str) -> tuple[int, int]:
    """Returns the first and the last port of "4791" or "6000-6010". Raises ValueError."""
    first, dash, last = str(text).partition("-")
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 65536):
        raise ValueError(f'{text!r} is not a port; write 4791 or "6000-6010"')
    return int(first), int(last)


def cpu_list(text: str) -> set[int]:
    """Returns the CPUs of a list like "0-3,8". Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < _MAX_CPUS):
            raise ValueError(f'{part!r} is not a CPU; write "0-3,8", "all" or "none"')
        found.update(range(int(first), int(last) + 1))
    return found


def distinct(what: str, names: list[str], overlay: tuple[str, ...]) -> None:
    """Raises ValueError if two planes have the same NIC, or a plane has an interface of the overlay."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what}: {name} is named twice; every plane needs a NIC of its own")
        if name in overlay:
            raise ValueError(f"{what}: {name} is the overlay interface; set overlay.interface to another name")


def unique(what: str, pairs: list[tuple[object, str]]) -> None:
    """Raises ValueError if a key occurs twice in `pairs` of (key, name of its host)."""
    seen: dict[object, str] = {}
    for key, host in pairs:
        if key in seen:
            raise ValueError(f"hosts: {what} {key} is used twice, by {seen[key]} and {host}")
        seen[key] = host
