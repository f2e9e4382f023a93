"""What is checked of a cluster file beyond the types of its values. Pure."""

_MOST_CPUS = 8192  # NR_CPUS of the largest kernels


def port_range(text: int | str) -> tuple[int, int]:
    """The first and the last port of "4791" or "6000-6010". Raises ValueError."""
    first, dash, last = str(text).partition("-")
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 65536):
        raise ValueError(f'{text!r} is no port; write 4791 or "6000-6010"')
    return int(first), int(last)


def cpu_list(text: str) -> set[int]:
    """The CPUs of "0-3,8". Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < _MOST_CPUS):
            raise ValueError(f'{part!r} is no CPU; write "0-3,8", "all" or "none"')
        found.update(range(int(first), int(last) + 1))
    return found


def distinct(what: str, names: list[str], overlay: tuple[str, ...]) -> None:
    """Raises ValueError where two planes have one NIC, or one has an interface of the overlay."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what}: {name} is named twice; every plane has a NIC of its own")
        if name in overlay:
            raise ValueError(f"{what}: {name} is the overlay interface; set overlay.interface to another name")


def unique(what: str, pairs: list[tuple[object, str]]) -> None:
    """Raises ValueError where two have the same; `pairs` are what they have, and whose it is."""
    seen: dict[object, str] = {}
    for key, owner in pairs:
        if key in seen:
            raise ValueError(f"hosts: {what} {key} is used twice, by {seen[key]} and {owner}")
        seen[key] = owner
