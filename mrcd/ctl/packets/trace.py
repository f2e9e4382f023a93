# SPDX-License-Identifier: BSD-2-Clause
"""Traces an EV hop by hop and locates its fault, for `mrcctl trace`. trace_probes.py explains the packets."""

from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address, IPv6Network
from typing import Any

from mrcd.ctl.packets import diagnosis, probe, probe_packet, trace_probes
from mrcd.ctl.packets.exchange import Exchange, LocalHost, Route, local_host
from mrcd.ctl.packets.trace_probes import Node, TraceProbe
from mrcd.ctl.terminal.render import Column, table, text
from mrcd.errors import UsageError
from mrcd.versions import SCHEMA_VERSION

Document = dict[str, Any]
Doc = Mapping[str, Any]  # as read
_SRH_SEGMENTS = 6  # the programs accept no longer SRH


def witness(docs: Sequence[Doc], path: Doc, usids: Sequence[int]) -> Node | None:
    """Return another T1 of the plane on a path with the same two T0s, a GOOD path if there is one; None without any."""
    found = []
    for doc in docs:
        other = trace_probes.usids_of([IPv6Address(s) for s in doc["segments"]])
        alike = doc["plane"] == path["plane"] and len(other) == len(usids) == 4
        if alike and other[1] != usids[1] and (other[0], *other[2:]) == (usids[0], *usids[2:]):
            found.append((doc["state"] != "GOOD", doc["ev"], other[1]))
    return Node(f"T1 {min(found)[2] & 0x7FF}", min(found)[2]) if found else None


def plan(local: LocalHost, peer: str, path: Doc, docs: Sequence[Doc]) -> tuple[list[Node], list[TraceProbe]]:
    """Return the nodes of an EV's path, and its probes. Raises UsageError if the path cannot be traced."""
    if local.encapsulation == "ecmp":
        raise UsageError(
            "with encapsulation ecmp the switches choose the path by a hash, so no packet can be sent back from a hop",
            hint="`mrcctl probe` measures each EV as a whole",
        )
    usids = trace_probes.usids_of([IPv6Address(s) for s in path["segments"]])
    own = trace_probes.usids_of([local.nics[path["plane"]].sid])[0]
    nodes = trace_probes.path_nodes(usids, local.name, own, peer)
    found = trace_probes.plan(nodes, witness(docs, path, usids))
    if local.encapsulation == "srh":
        found = [t for t in found if t.is_answered or len(t.usids) <= _SRH_SEGMENTS]
    return nodes, found


def routes(local: LocalHost, path: Doc, docs: Sequence[Doc], found: Sequence[TraceProbe], peer_id: int) -> list[Route]:
    """Return the packet to send for each probe."""
    plane, ev, reserved = path["plane"], path["ev"], probe.reserved_bytes(docs)
    sid = local.nics[plane].sid
    block = IPv6Network((int(sid) >> 96 << 96, 32))
    made = []
    last = trace_probes.usids_of([IPv6Address(path["segments"][-1])])[-1]
    for t in found:
        usids = [*t.usids, last] if t.is_answered else t.usids
        segments = trace_probes.segments(block, usids, one_each=local.encapsulation == "srh")
        to, what = (peer_id, probe_packet.REQUEST) if t.is_answered else (local.host_id, probe_packet.REPLY)
        made.append(Route(t.name, plane, what, to, ev, segments, 0, reserved))
    return made


def run(
    status: Mapping[str, Any],
    peers: Sequence[Mapping[str, Any]],
    docs: Sequence[Mapping[str, Any]],
    peer: str,
    *,
    ev: int,
    count: int,
    interval_s: float,
    wait_s: float,
) -> Document:
    """Send the probes and return the document of --json. Raises UsageError, MachineError."""
    number, local = probe.host_id(peers, peer), local_host(status)
    path = probe.choose(docs, peer, ev)[0]
    nodes, found = plan(local, peer, path, docs)
    sending = routes(local, path, docs, found, number)
    with Exchange(local, [path["plane"]]) as exchange:
        tallies = exchange.run(sending, count, interval_s, wait_s)
    results = {r.key: tallies[r.key].document() for r in sending}
    counts = {t.name: (results[t.name]["sent"], results[t.name]["lost"]) for t in found}
    verdict = diagnosis.diagnose(nodes, found, counts)
    error = next((r["send_error"] for r in results.values() if r["send_error"] and not r["sent"]), None)
    rows = [
        {
            "name": t.name,
            "hop": i + 1 if t.is_hop else None,
            "ok": results[t.name]["sent"] > 0 and t.name not in verdict.failing,
        }
        | {"segments": [str(s) for s in r.segments]}
        | results[t.name]
        for i, (t, r) in enumerate(zip(found, sending, strict=True))
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "host": local.name,
        "peer": peer,
        "ev": path["ev"],
        "plane": path["plane"],
        "t1": path["t1"],
        "state": path["state"],
        "hops": [r for r in rows if r["hop"] is not None],
        "checks": [{k: v for k, v in r.items() if k != "hop"} for r in rows if r["hop"] is None],
        "first_failing_hop": verdict.first,
        "suspects": list(verdict.suspects),
        "on_path": verdict.on_path,
        "verdict": f"nothing was sent: {error}" if error else verdict.text,
    }


def lines(doc: Mapping[str, Any], *, colour: bool) -> list[str]:
    """Return the document as a table of hops and cross-checks, and the verdict."""
    head = f"{doc['host']} → {doc['peer']} on EV {doc['ev']} (plane {doc['plane']}"
    head += f", T1 {doc['t1']}), {doc['state']}" if doc["t1"] is not None else f"), {doc['state']}"
    columns = [Column("HOP", True), Column("NAME"), Column("")]
    columns += [*(Column(h, True) for h in (*probe.COUNTS, *probe.RTTS)), Column("SEGMENTS")]
    rows = [
        [text(r.get("hop")), r["name"], "" if r["ok"] else "!!", *probe.counted(r), " ".join(r["segments"])]
        for r in [*doc["hops"], *doc["checks"]]
    ]
    return [head, "", *table(columns, rows, colour=colour), "", doc["verdict"]]
