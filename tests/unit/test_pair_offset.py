# SPDX-License-Identifier: BSD-2-Clause
"""Simulates 1,024 hosts that begin to send at once: bpf/arith.h spreads them over planes and T1s."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.unit.c_functions import compiled

HOSTS, PLANES, T1S = 1024, 8, 16
MEAN = HOSTS // (PLANES * T1S)
Pattern = Callable[[int], tuple[int, int]]


@pytest.fixture(scope="module")
def offset(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int, int], int]:
    library = compiled(tmp_path_factory.mktemp("arith"), ("arith.h",), "u32 pair_offset(u16 u16 u32)")
    return library.pair_offset


def to_next(distance: int) -> Pattern:
    """Each host sends to the one so many further on: a ring, and a phase of all-to-all."""
    return lambda i: (i, (i + distance) % HOSTS)


def to_opposite(total: int) -> Pattern:
    """Host i sends to host total − i."""
    return lambda i: (i, (total - i) % HOSTS)


def paths(first: int) -> Iterator[tuple[int, int]]:
    """Plane and T1 of each packet of a sender, as bpf/spray.h rotates."""
    slots, plane = [first // PLANES] * PLANES, first % PLANES
    while True:
        yield plane, slots[plane] % T1S
        slots[plane] += 1
        plane = (plane + 1) % PLANES


def to_neighbour(bit: int) -> Pattern:
    """Each host exchanges with the one whose id differs in a bit: a step of recursive doubling."""
    return lambda i: (i, i ^ bit)


PATTERNS: dict[str, tuple[Pattern, int]] = {
    **{f"next {n}": (to_next(n), 11) for n in (1, 2, 3, 8, 31, 32, 64, 100, 256, 512, 1023)},
    **{f"opposite {n}": (to_opposite(n), 11) for n in (0, 1, 64, 1023)},
    **{f"bit {n}": (to_neighbour(1 << n), 14) for n in range(10)},
    "one to all": (lambda i: (7, i), 11),
    "all to one": (lambda i: (i, 7), 11),
    "transposed": (lambda i: (i, i % 32 * 32 + i // 32), 11),
}


@pytest.mark.parametrize(("pattern", "most"), PATTERNS.values(), ids=PATTERNS)
def test_at_no_time_do_the_hosts_meet_on_a_path(
    offset: Callable[[int, int, int], int], pattern: Pattern, most: int
) -> None:
    """Each sends a packet at a time, for two rotations; chance would put up to 16 on one plane and T1, mean 8."""
    senders = [paths(offset(*pattern(i), PLANES * T1S)) for i in range(HOSTS)]
    for _ in range(2 * PLANES):
        taken = Counter(map(next, senders))
        assert MEAN <= max(taken.values()) <= most
        planes = Counter(plane for plane, _ in taken.elements())
        assert max(planes.values()) <= HOSTS // PLANES + MEAN
