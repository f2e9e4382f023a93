# SPDX-License-Identifier: BSD-2-Clause
"""Makes up the results of trace probes on one path: losses and round trips with a fault."""

from mrcd.ctl.packets.trace_probes import Node, TraceProbe

ME, T0, T1, FAR, PEER = (
    Node("h0", 0xC400),
    Node("T0 0", 0x4800),
    Node("T1 2", 0x8802),
    Node("T0 1", 0x4801),
    Node("h1", None),
)
PATH = [ME, T0, T1, FAR, PEER]
WITNESS = Node("T1 0", 0x8800)


def parts_id(value: object) -> str:
    """Returns the id of a parameter: parts in one order, so that all processes give a test the same name."""
    return " and ".join(sorted(value)) if isinstance(value, set) else str(value)[:40]


def lose(found: list[TraceProbe], parts: set[str], ratio: float = 1.0, sent: int = 20) -> dict[str, tuple[int, int]]:
    """Returns the counts if each passage of `parts` loses this share."""
    counts = {}
    for t in found:
        times = sum(n for part, n in t.passes.items() if part in parts)
        counts[t.name] = (sent, round(sent * (1 - (1 - ratio) ** times)))
    return counts


def round_trips(found: list[TraceProbe], slow: set[str], extra_us: float = 5000) -> dict[str, int]:
    """Returns the least round trips in ns if each passage of `slow` takes so much more; the peer adds 30 µs."""
    return {
        t.name: round(
            1000
            * (
                4 * (len(t.nodes) - 1) * (1 + t.is_answered)
                + 20
                + 30 * t.is_answered
                + extra_us * sum(n for part, n in t.passes.items() if part in slow)
            )
        )
        for t in found
    }
