# SPDX-License-Identifier: BSD-2-Clause
"""Measures loss and round trips of EVs with diagnostic probes, for `mrcctl probe`.

A request takes the EV as its data does. The peer's mrc_pop answers it on a usable EV of its own choice in the same
plane. So a loss happened on the EV itself, unless a path of the peer has failed. MRC_FLAG_DIAGNOSTIC keeps both hosts
from counting the packets or changing EV states by them.
"""

from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

from mrcd.ctl.client import understood
from mrcd.ctl.terminal.render import field, fold, microseconds, percent, table_of
from mrcd.errors import MachineError, UsageError, no_peer
from mrcd.probes import probe_packet
from mrcd.probes.exchange import Exchange, LocalHost, Nic, Route
from mrcd.versions import SCHEMA_VERSION

Document = dict[str, Any]

_NOT_SENT_HINT = "`mrcctl status` shows the plane NICs and the planes' MTU; --size sets the size of the packets"


def local_host(status: Mapping[str, Any]) -> LocalHost:
    """Return this host from GET /v1/status. Raises DaemonError if another version made the document."""
    with understood():
        nics = {
            p["plane"]: Nic(
                p["plane"],
                p["interface"],
                p["ifindex"],
                IPv6Address(p["address"]),
                IPv6Address(p["sid"]),
                bytes.fromhex(p["gateway_mac"].replace(":", "")) if p["gateway_mac"] else None,
            )
            for p in status["planes"]
        }
        return LocalHost(
            status["host"],
            status["host_id"],
            status["encapsulation"],
            status["udp_port"],
            status["mtu"],
            nics,
            None if status["pins"]["lost"] else Path(status["pins"]["directory"]),
        )


def choose(docs: Sequence[Mapping[str, Any]], peer: str, ev: int | None) -> list[Mapping[str, Any]]:
    """Return the paths to probe from GET /v1/paths?peer=. Raises UsageError if there are none."""
    found = [p for p in docs if p["peer"] == peer and (ev is None or p["ev"] == ev)]
    if not found:
        what = f"{peer} has no EV {ev}" if ev is not None else f"there is no path to a peer {peer!r}"
        raise UsageError(what, hint="`mrcctl paths` lists them")
    return found


def reserved_bytes(docs: Sequence[Mapping[str, Any]]) -> int:
    """Return the bytes that a request reserves for a longer SRH of its reply."""
    return probe_packet.SRH_MAX if any(len(p["segments"]) > 1 for p in docs) else 0


def route(path: Mapping[str, Any], host_id: int, *, size: int, reserved: int) -> Route:
    """Return the request for a path of GET /v1/paths to the peer with this id."""
    segments = tuple(IPv6Address(s) for s in path["segments"])
    return Route(path["ev"], path["plane"], probe_packet.REQUEST, host_id, path["ev"], segments, size, reserved)


def check_size(size: int, routes: Sequence[Route], mtu: int) -> None:
    """Raise UsageError if packets cannot have that size, in bytes from the IPv6 header on."""
    least = max(probe_packet.size_of(r.segments, r.reserved) for r in routes)
    if size and not least <= size <= 65_535:
        raise UsageError(
            f"--size {size}: packets of these paths have {least} to 65535 bytes",
            hint=f"the size counts from the outer IPv6 header on; the planes' MTU is {mtu}",
        )


def host_id(peers: Sequence[Mapping[str, Any]], peer: str) -> int:
    """Return the id of a peer in GET /v1/peers. Raises UsageError if no peer has that name."""
    ids = {p["peer"]: int(p["host_id"]) for p in peers}
    if peer not in ids:
        raise no_peer(peer, ids)
    return ids[peer]


def run(
    status: Mapping[str, Any],
    peers: Sequence[Mapping[str, Any]],
    docs: Sequence[Mapping[str, Any]],
    peer: str,
    *,
    ev: int | None,
    count: int,
    size: int,
    interval_s: float,
    wait_s: float,
) -> Document:
    """Send the probes and return the document of --json. Raises UsageError, MachineError."""
    number, local = host_id(peers, peer), local_host(status)
    chosen = choose(docs, peer, ev)
    routes = [route(p, number, size=size, reserved=reserved_bytes(docs)) for p in chosen]
    check_size(size, routes, local.mtu)
    with Exchange(local, [r.plane for r in routes]) as exchange:
        tallies = exchange.run(routes, count, interval_s, wait_s)
    return document(local, peer, chosen, routes, tallies)


def document(
    local: LocalHost,
    peer: str,
    chosen: Sequence[Mapping[str, Any]],
    routes: Sequence[Route],
    tallies: Mapping[Any, Any],
) -> Document:
    """Return the document that --json prints."""
    evs = [
        {"ev": p["ev"], "plane": p["plane"], "t1": p["t1"], "state": p["state"], "carrier": p["carrier"]}
        | tallies[r.key].document()
        for p, r in zip(chosen, routes, strict=True)
    ]
    sent, received = sum(e["sent"] for e in evs), sum(e["received"] for e in evs)
    return {
        "schema_version": SCHEMA_VERSION,
        "host": local.name,
        "peer": peer,
        "size_bytes": max(max(probe_packet.size_of(r.segments, r.reserved), r.size) for r in routes),
        "evs": evs,
        "sent": sent,
        "received": received,
        "loss_ratio": (sent - received) / sent if sent else None,
    }


def check_sent(doc: Mapping[str, Any]) -> None:
    """Raise MachineError if no probe of a document could be sent: a table of nothing would say less."""
    if not doc["sent"]:
        errors = dict.fromkeys(str(e["send_error"]) for e in doc["evs"])
        raise MachineError(f"no probe was sent: {'; '.join(errors)}", hint=_NOT_SENT_HINT)


RESULTS = (
    field("SENT", "sent", right=True, rank=4),
    field("RECEIVED", "received", right=True, rank=3),
    field("LOSS %", "loss_ratio", percent),
    field("RTT min", "rtt_min_ns", microseconds, rank=5),
    field("avg", "rtt_avg_ns", microseconds, rank=1),
    field("max", "rtt_max_ns", microseconds, rank=6),
    field("mdev µs", lambda d: "0.0" if d["rtt_mdev_ns"] == 0 else microseconds(d["rtt_mdev_ns"]), right=True, rank=7),
)


def lines(doc: Mapping[str, Any], *, colour: bool, width: int | None = None) -> list[str]:
    """Return the document as a table and a summary."""
    fields = (
        field("EV", "ev", right=True),
        field("PLANE", "plane", right=True),
        field("T1", "t1", right=True, rank=2),
        field("STATE", "state"),
        *RESULTS,
        field("CARRIER", "carrier", rank=9),
        field("", lambda e: f"not sent: {e['send_error']}" if e["send_error"] else "", str, rank=8),
    )
    total = (
        f"{doc['sent']} probes of {doc['size_bytes']} bytes to {doc['peer']}, {doc['received']} answered, "
        f"{percent(doc['loss_ratio'])} % lost"
    )
    return [*table_of(fields, doc["evs"], colour=colour, width=width), "", *fold(total, width)]
