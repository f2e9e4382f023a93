"""How often quiet peers are looked at, and on how many of their EVs they are probed each time. Pure.

In a small cluster all EVs of a quiet peer are probed in every idle interval. Where that would be more probes than
[health] idle_probes allows, peers take turns, and each time some of a peer's EVs are probed, in their turn. What
carries traffic needs none of it: its packets carry the probes.
"""

from dataclasses import dataclass

from mrcd.config.cluster_file import Health

_MS = 1_000_000
_LEAST_WINDOW = 16  # EVs: fewer are not worth the look at the peer


@dataclass(frozen=True)
class Pace:
    """`window` EVs of a quiet peer, 0 = all, each `interval_ns`."""

    window: int
    interval_ns: int


def pace(settings: Health, peers: int, evs: int, evs_per_peer: int) -> Pace:
    """The pace for so many peers, with so many EVs in all, `evs_per_peer` each at most.

    Half of the probes allowed are for these rounds, the rest for what is to be tried besides.
    """
    interval_ns = settings.idle_interval_ms * _MS
    allowed = settings.idle_probes * settings.idle_interval_ms // 1000  # in an interval
    if evs + peers <= allowed:  # each time one more, which asks for a report
        return Pace(0, interval_ns)
    window = min(max(allowed // peers - 1, _LEAST_WINDOW), evs_per_peer)
    return Pace(window, max(interval_ns, peers * (window + 1) * 2_000_000_000 // settings.idle_probes))


def silent_ns(pace: Pace, least_ns: int) -> int:
    """A peer that was not heard for so long, `least_ns` at least, is not reachable."""
    return max(least_ns, 3 * pace.interval_ns)
