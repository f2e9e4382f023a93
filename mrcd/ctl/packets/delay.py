# SPDX-License-Identifier: BSD-2-Clause
"""Locates a slow link or switch from the round trips of trace probes. Pure.

The least round trip of a probe is modelled as a delay that all links share, times the number of its links, plus an
extra delay each time that it passes the slow part. Each possible fault gets the best two delays (least squares); the
faults that leave the least error are the suspects. The cross-checks through another T1 of the plane are the
comparison. The least of many round trips has no queueing delay, so a congested link is not a slow one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mrcd.ctl.packets.faults import Fault, faults, forward, named, plane_of
from mrcd.ctl.packets.trace_probes import Node, TraceProbe

LEAST_NS = 500_000.0  # a smaller extra delay is not reported: a busy host delays packets as much
_LEAST_FACTOR = 3.0  # nor one below so many times the delay of the other links
_SAME = 0.2  # suspects explain the round trips as well as the best one, up to this part of the extra delay


@dataclass(frozen=True)
class Slow:
    """The parts that each explain the round trips, and the delay that each pass adds. None explains several faults."""

    suspects: tuple[Fault, ...]
    extra_ns: float


def locate(path: Sequence[Node], probes: Sequence[TraceProbe], rtts_ns: Mapping[str, int]) -> Slow | None:
    """Return the slow part of a path. `rtts_ns` has the least round trip by the probe's name, of those answered."""
    measured = [t for t in probes if t.name in rtts_ns]
    if len(measured) < 2:
        return None
    rtts = [float(rtts_ns[t.name]) for t in measured]
    links = [float((len(t.nodes) - 1) * (1 + t.is_answered)) for t in measured]
    passes = [t.passes for t in measured]
    fits = []
    for fault in faults(path, measured):
        crossed = [float(sum(n for part, n in p.items() if part in fault.parts)) for p in passes]
        link_ns, extra_ns, error = _fit(rtts, links, crossed)
        if extra_ns >= max(LEAST_NS, _LEAST_FACTOR * link_ns):
            fits.append((error, extra_ns, fault))
    if not fits:
        return None
    best, extra_ns, _ = min(fits, key=lambda fit: fit[0])
    scale = _SAME * extra_ns
    if best > scale**2 * len(measured):
        return Slow((), extra_ns)
    return Slow(tuple(fault for error, _, fault in fits if error <= best + scale**2), extra_ns)


def is_on_path(path: Sequence[Node], slow: Slow) -> bool:
    """Return whether packets to the peer pass the slow part, or may pass one of several."""
    return not slow.suspects or any(fault.parts & forward(path) for fault in slow.suspects)


def verdict(path: Sequence[Node], slow: Slow) -> str:
    """Return the slow part and its extra delay as text."""
    words = f"slow in plane {plane_of(path)}: "
    if not slow.suspects:
        return f"{words}several links or switches; no single one explains the round trips"
    words += f"{named(slow.suspects)}: each pass takes {slow.extra_ns / 1e6:.1f} ms more than other links"
    return words if is_on_path(path, slow) else f"{words}. Packets to {path[-1].name} do not pass it"


def _fit(rtts: Sequence[float], links: Sequence[float], crossed: Sequence[float]) -> tuple[float, float, float]:
    """Return the delay of a link, the extra delay, both at least 0, and the sum of squared errors."""
    a, b, c = _dot(links, links), _dot(links, crossed), _dot(crossed, crossed)
    u, v = _dot(links, rtts), _dot(crossed, rtts)
    determinant = a * c - b * b
    link, extra = u / a, 0.0
    if determinant > 0:
        link, extra = (c * u - b * v) / determinant, (a * v - b * u) / determinant
    if link < 0 and c:
        link, extra = 0.0, v / c
    if extra < 0:
        link, extra = u / a, 0.0
    error = sum((r - link * n - extra * x) ** 2 for r, n, x in zip(rtts, links, crossed, strict=True))
    return link, extra, error


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
