# SPDX-License-Identifier: BSD-2-Clause
"""Defines `mrcctl peers`."""

from collections.abc import Mapping, Sequence
from typing import Any

from mrcd.ctl.base import Options, command
from mrcd.ctl.documents import list_of, read, show_list
from mrcd.ctl.options import interval_option, peer_argument, wide_option
from mrcd.ctl.phrases import aged, plain_states
from mrcd.ctl.rates import megabits, per_s, per_second, sampled
from mrcd.ctl.terminal.render import Document, count, duration, field, microseconds, percent, table_of, text
from mrcd.errors import no_peer


def peer_lines(
    docs: Sequence[Document], *, colour: bool, width: int | None = None, age_s: float | None = None
) -> list[str]:
    """Return one line per peer. `age_s`: since when nothing refreshes the states."""
    fields = (
        field("PEER", "peer"),
        field("ID", "host_id", right=True, rank=8),
        field("STATUS", _status),
        field(aged("EVS USABLE", age_s), _usable, right=True),
        field("STATES", lambda p: plain_states(p.get("states") or {}), rank=4),
        field("PLANES UP", "linked_planes", rank=3),
        field("TX pkts", "tx_packets", count, rank=5),
        field("RX pkts", "rx_packets", count, rank=7),
        field("LOST pkts", "lost_packets", count, rank=2),
        field("LOSS % ever", "loss_ratio", percent, rank=2),
        field("RTT µs", "rtt_ns", microseconds, rank=1),
        field("LAST HEARD", "heard_s", duration, rank=6),
        field("PREFIXES", "prefixes", rank=9),
    )
    return table_of(fields, docs, colour=colour, width=width)


def with_rates(
    docs: Sequence[Document],
    moved: Mapping[str, Mapping[str, Any]],
    planes: Mapping[str, Mapping[int, tuple[int, int]]],
) -> list[dict[str, Any]]:
    """Return what a live view needs of GET /v1/peers, their rates by name, and rates.usable_by_plane."""
    rows = []
    for p in docs:
        mine = moved.get(p["peer"], {})
        rows.append(
            {
                **{k: p.get(k) for k in ("peer", "status", "reachable", "usable_evs", "evs", "loss_ratio", "rtt_ns")},
                **{k: mine.get(k) for k in ("tx_packets_per_s", "tx_bits_per_s", "lost_packets_per_s")},
                "recent_loss_ratio": mine.get("loss_ratio"),
                "planes": [
                    {"plane": plane, "usable_evs": usable, "evs": every}
                    for plane, (usable, every) in sorted(planes.get(p["peer"], {}).items())
                ],
            }
        )
    return rows


def _status(p: Document) -> object:
    return p.get("status") if p.get("reachable") else "unreachable"


def _usable(p: Document) -> str:
    return f"{text(p.get('usable_evs'))}/{text(p.get('evs'))}"


def rate_lines(docs: Sequence[Document], *, age_s: float | None = None, **style: Any) -> list[str]:
    """Return one line per peer with its rates. `age_s`: since when nothing refreshes the states."""
    fields = (
        field("PEER", "peer"),
        field("STATUS", _status),
        field(aged("EVS USABLE", age_s), _usable, right=True),
        field("TX Mbit/s", "tx_bits_per_s", megabits, right=True, rank=1),
        field("TX pkts/s", "tx_packets_per_s", per_s, right=True, rank=6),
        field("LOST pkts/s", "lost_packets_per_s", per_s, right=True, rank=4),
        field("LOSS % now", "recent_loss_ratio", percent, rank=2),
        field("RTT µs", "rtt_ns", microseconds, rank=3),
        field("USABLE BY PLANE", lambda p: " ".join(map(_usable, p["planes"])), str, rank=5),
    )
    return table_of(fields, docs, **style)


@command("List the other hosts: EVs, traffic, loss.")
@peer_argument()
@interval_option
@wide_option
def peers(options: Options, peer: str | None, interval: float | None, wide: bool) -> None:
    """List the other hosts, or one: reachability, EVs by state, traffic, loss.

    LOSS % ever counts all packets since the tables were made; with --interval SECONDS, rates and loss are those of that
    time. RTT is the median of the EVs' smoothed round trips of probes; those of an idle path find the CPUs asleep and
    take longer.
    """

    if interval is None:
        found = read(options, "peers")
        document = list_of("peers", found)
    else:
        before, after, found = sampled(options, "peers", interval)
        moved = {r["peer"]: r for r in per_second(before, after)}
        document = list_of("peers", found, after.at_s - before.at_s) | {"peers": with_rates(after.rows, moved, {})}
    names = [p["peer"] for p in document["peers"]]
    if peer is not None and peer not in names:
        raise no_peer(peer, names)
    document["peers"] = [p for p in document["peers"] if peer in (None, p["peer"])]
    show_list(options, document, peer_lines if interval is None else rate_lines, wide)
