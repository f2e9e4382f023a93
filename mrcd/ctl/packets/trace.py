# SPDX-License-Identifier: BSD-2-Clause
"""Traces an EV hop by hop and locates its fault, for `mrcctl trace`. trace_probes.py explains the packets."""

from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address, IPv6Network
from typing import Any

from mrcd.ctl.packets import probe, trace_probes
from mrcd.ctl.packets.locate import Known, because, known_faults, locate_delay, locate_loss, of_diagnosis
from mrcd.ctl.packets.trace_probes import Node, TraceProbe
from mrcd.ctl.terminal.render import field, fold, table_of
from mrcd.errors import UsageError
from mrcd.fabric.srv6 import Hop, hops
from mrcd.probes import probe_packet, raw_socket
from mrcd.probes.exchange import Exchange, LocalHost, Route
from mrcd.versions import SCHEMA_VERSION

Document = dict[str, Any]
Doc = Mapping[str, Any]  # as read
MOST_EVS = 8  # that a trace of all failed EVs traces: each takes one or two seconds
_LEAST_RTTS = 3  # answers, for a least round trip that means something
_SRH_SEGMENTS = 6  # the programs accept no longer SRH


def witness(docs: Sequence[Doc], path: Doc, block: IPv6Network) -> Node | None:
    """Return another T1 of the plane on a path with the same two T0s, a GOOD path if there is one; None without any."""
    mine, found = _hops(path, block), []
    for doc in docs:
        other = _hops(doc, block)
        alike = doc["plane"] == path["plane"] and len(other) == len(mine) == 4
        if alike and [h.usid == m.usid for h, m in zip(other, mine, strict=True)] == [True, False, True, True]:
            found.append((doc["state"] != "GOOD", doc["ev"], other[1]))
    return trace_probes.switch(min(found, key=lambda f: f[:2])[2]) if found else None


def _hops(path: Doc, block: IPv6Network) -> list[Hop]:
    return hops([IPv6Address(s) for s in path["segments"]], block)


def block_of(local: LocalHost, plane: int) -> IPv6Network:
    """Return the uSID block of the fabric, from this host's SID."""
    return IPv6Network((int(local.nics[plane].sid) >> 96 << 96, 32))


def plan(local: LocalHost, peer: str, path: Doc, docs: Sequence[Doc]) -> tuple[list[Node], list[TraceProbe]]:
    """Return the nodes of an EV's path, and its probes. Raises UsageError if the path cannot be traced."""
    if local.encapsulation == "ecmp":
        raise UsageError(
            "with encapsulation ecmp the switches choose the path by a hash, so no packet can be sent back from a hop",
            hint="`mrcctl probe` measures each EV as a whole",
        )
    block = block_of(local, path["plane"])
    own = hops([local.nics[path["plane"]].sid], block)[0].usid or 0
    nodes = trace_probes.path_nodes(_hops(path, block), local.name, own, peer)
    found = trace_probes.plan(nodes, witness(docs, path, block))
    if local.encapsulation == "srh":
        found = [t for t in found if t.is_answered or len(t.usids) <= _SRH_SEGMENTS]
    return nodes, found


def routes(local: LocalHost, path: Doc, docs: Sequence[Doc], found: Sequence[TraceProbe], peer_id: int) -> list[Route]:
    """Return the packet to send for each probe."""
    plane, block, reserved = path["plane"], block_of(local, path["plane"]), probe.reserved_bytes(docs)
    last = _hops(path, block)[-1].usid or 0
    made = []
    for t in found:
        usids = [*t.usids, last] if t.is_answered else t.usids
        segments = trace_probes.segments(block, usids, one_each=local.encapsulation == "srh")
        to, what = (peer_id, probe_packet.REQUEST) if t.is_answered else (local.host_id, probe_packet.REPLY)
        made.append(Route(t.name, plane, what, to, path["ev"], segments, 0, reserved))
    return made


def failed_evs(docs: Sequence[Doc], peer: str) -> list[int]:
    """Return the EVs to a peer that have failed. Raises UsageError if there is no path to it."""
    return [p["ev"] for p in probe.choose(docs, peer, None) if p["state"] == "ASSUMED_BAD"]


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
    number, local = probe.host_id(peers, peer), probe.local_host(status)
    path = probe.choose(docs, peer, ev)[0]
    nodes, found = plan(local, peer, path, docs)
    sending = routes(local, path, docs, found, number)
    nic = local.nics[path["plane"]]
    with Exchange(local, [path["plane"]]) as exchange:
        tallies = exchange.run(sending, count, interval_s, wait_s)
        has_carrier = raw_socket.has_carrier(nic.interface)
    of_peer = next(p for p in peers if p["peer"] == peer)
    known = known_faults(nodes, nic.interface, has_carrier, of_peer)
    known += of_diagnosis(nodes, status.get("diagnosis") or ())
    results = {r.key: tallies[r.key].document() for r in sending}
    return {
        "schema_version": SCHEMA_VERSION,
        "host": local.name,
        "peer": peer,
        "ev": path["ev"],
        "plane": path["plane"],
        "t1": path["t1"],
        "state": path["state"],
    } | judged(nodes, found, sending, results, known)


def judged(
    nodes: Sequence[Node],
    found: Sequence[TraceProbe],
    sending: Sequence[Route],
    results: Mapping[Any, Document],
    known: Sequence[Known],
) -> Document:
    """Return the part of the document that follows from the probes: their results by route, and the verdict."""
    counts = {t.name: (results[t.name]["sent"], results[t.name]["lost"]) for t in found}
    loss = locate_loss(nodes, found, counts, known)
    rtts = {t.name: results[t.name]["rtt_min_ns"] for t in found if results[t.name]["received"] >= _LEAST_RTTS}
    slow = None if loss.failing else locate_delay(nodes, found, rtts)
    verdict = slow or loss
    slow_parts = slow.suspects[0].parts if slow and slow.suspects else frozenset()
    error = next((r["send_error"] for r in results.values() if r["send_error"] and not r["sent"]), None)
    targets, text, is_broken = verdict.targets, verdict.text, verdict.on_path
    if error and known:
        targets, text, is_broken = (known[0].target,), because(nodes, known[0]), True
    elif error:
        text = f"nothing was sent: {error}"
    rows = [
        {
            "name": t.name,
            "hop": i + 1 if t.is_hop else None,
            "ok": results[t.name]["sent"] > 0 and t.name not in loss.failing,
            "slow": not slow_parts.isdisjoint(t.passes),
        }
        | {"segments": [str(s) for s in r.segments]}
        | results[t.name]
        for i, (t, r) in enumerate(zip(found, sending, strict=True))
    ]
    return {
        "hops": [r for r in rows if r["hop"] is not None],
        "checks": [{k: v for k, v in r.items() if k != "hop"} for r in rows if r["hop"] is None],
        "first_failing_hop": loss.first,
        "suspects": [fault.name for fault in verdict.suspects],
        "targets": list(targets),
        "on_path": loss.on_path,
        "extra_delay_ns": round(slow.extra_ns or 0) if slow else None,
        "broken": is_broken,
        "verdict": text,
    }


def causes_of_peer(status: Doc, peer: str) -> list[Doc]:
    """Return the causes by which the host's diagnosis explains that nothing is sprayed to a peer, or from this host."""
    causes = [c for c in status.get("diagnosis") or () if c["severity"] != "ok"]
    return [c for c in causes if c["target"] in (f"peer:{peer}", f"host:{status['host']}")]


def merged(host: str, peer: str, traces: Sequence[Document], failed: int, causes: Sequence[Doc] = ()) -> Document:
    """Return the document of a trace of all `failed` EVs to a peer, of which `traces` are some: one entry per fault.

    `causes`: of the host's diagnosis, those that concern all EVs of the peer.
    """
    by_text: dict[str, Document] = {}
    for t in traces:
        fault = by_text.setdefault(t["verdict"], {"verdict": t["verdict"], "targets": t["targets"], "evs": []})
        fault["evs"].append(t["ev"])
    return {
        "schema_version": SCHEMA_VERSION,
        "host": host,
        "peer": peer,
        "causes": [dict(c) for c in causes],
        "failed_evs": failed,
        "faults": list(by_text.values()),
        "traces": list(traces),
    }


def exit_status(traces: Sequence[Doc]) -> int:
    """Return 1 if a traced path is broken or slow, 2 if nothing could be sent and nothing tells why, else 0."""
    if any(t["broken"] for t in traces):
        return 1
    return 2 if any(not r["sent"] for t in traces for r in t["hops"]) else 0


def lines(doc: Mapping[str, Any], *, colour: bool, width: int | None = None) -> list[str]:
    """Return the document as a table of hops and cross-checks, and the verdict."""
    head = f"{doc['host']} → {doc['peer']} on EV {doc['ev']} (plane {doc['plane']}"
    head += f", T1 {doc['t1']}), {doc['state']}" if doc["t1"] is not None else f"), {doc['state']}"
    fields = (
        field("HOP", "hop", right=True),
        field("", lambda r: "!!" if not r["ok"] else "slow" if r["slow"] else "", str),
        *probe.RESULTS,
        field("NAME", "name"),
        field("SEGMENTS", lambda r: " ".join(r["segments"]), rank=9),
    )
    hops = table_of(fields, [*doc["hops"], *doc["checks"]], colour=colour, width=width)
    return [*fold(head, width), "", *hops, "", *fold(doc["verdict"], width)]


def merged_lines(doc: Mapping[str, Any], *, colour: bool, width: int | None = None) -> list[str]:
    """Return a line per fault, with the EVs that it explains."""
    out = []
    for cause in doc["causes"]:
        out += [*fold(f"{cause['target']}: {cause['sentence']}", width), *fold(f"  Do: {cause['do']}", width)]
    if not doc["failed_evs"]:
        words = "no EV to {0} is known to have failed" if out else "no EV to {0} has failed"
        return [*out, *fold(f"{words.format(doc['peer'])}; `mrcctl trace {doc['peer']} --ev N` traces any", width)]
    for fault in doc["faults"]:
        evs = f"EV{'s' * (len(fault['evs']) > 1)} {', '.join(map(str, fault['evs']))}"
        out += fold(f"{evs}: {fault['verdict']}", width)
    left = doc["failed_evs"] - len(doc["traces"])
    out += fold(f"{left} more EVs have failed, and were not traced", width) if left else []
    return [*out, *fold(f"`mrcctl trace {doc['peer']} --ev {doc['traces'][0]['ev']}` shows the hops", width)]
