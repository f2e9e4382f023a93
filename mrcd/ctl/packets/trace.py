"""`mrcctl trace`: an EV hop by hop, and where it breaks, by packets that come back by themselves (loops.py)."""

from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address, IPv6Network
from typing import Any

from mrcd.ctl.packets import loops, probe, probe_packet
from mrcd.ctl.packets.exchange import Exchange, Here, Way, here
from mrcd.ctl.packets.loops import Node, Turn
from mrcd.ctl.terminal.render import Column, table, text
from mrcd.errors import UsageError
from mrcd.versions import SCHEMA_VERSION

Document = dict[str, Any]
Doc = Mapping[str, Any]  # as read
_SRH_SEGMENTS = 6  # the programs take no longer SRH


def witness(docs: Sequence[Doc], path: Doc, usids: Sequence[int]) -> Node | None:
    """Another T1 of the plane, by which this host and the peer have a path of the same two T0s; GOOD ones first."""
    found = []
    for doc in docs:
        other = loops.usids_of([IPv6Address(s) for s in doc["segments"]])
        alike = doc["plane"] == path["plane"] and len(other) == len(usids) == 4
        if alike and other[1] != usids[1] and (other[0], *other[2:]) == (usids[0], *usids[2:]):
            found.append((doc["state"] != "GOOD", doc["ev"], other[1]))
    return Node(f"T1 {min(found)[2] & 0x7FF}", min(found)[2]) if found else None


def plan(local: Here, peer: str, path: Doc, docs: Sequence[Doc]) -> tuple[list[Node], list[Turn]]:
    """The nodes of an EV's path, and the loops for it. Raises UsageError if it cannot be traced."""
    if local.encapsulation == "ecmp":
        raise UsageError(
            "with encapsulation ecmp the switches choose the path by a hash: no carrier says where to turn round",
            hint="`mrcctl probe` measures each EV as a whole",
        )
    usids = loops.usids_of([IPv6Address(s) for s in path["segments"]])
    own = loops.usids_of([local.nics[path["plane"]].sid])[0]
    nodes = loops.path_nodes(usids, local.name, own, peer)
    found = loops.plan(nodes, witness(docs, path, usids))
    if local.encapsulation == "srh":
        found = [t for t in found if t.answered or len(t.usids) <= _SRH_SEGMENTS]
    return nodes, found


def ways(local: Here, path: Doc, docs: Sequence[Doc], found: Sequence[Turn], peer_id: int) -> list[Way]:
    """The packets of the loops."""
    plane, ev, room = path["plane"], path["ev"], probe.room(docs)
    sid = local.nics[plane].sid
    block = IPv6Network((int(sid) >> 96 << 96, 32))
    made = []
    last = loops.usids_of([IPv6Address(path["segments"][-1])])[-1]
    for t in found:
        usids = [*t.usids, last] if t.answered else t.usids
        segments = loops.segments(block, usids, one_each=local.encapsulation == "srh")
        to, what = (peer_id, probe_packet.REQUEST) if t.answered else (local.host_id, probe_packet.REPLY)
        made.append(Way(t.name, plane, what, to, ev, segments, 0, room))
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
    """Trace, and sum up: the document of --json. Raises UsageError, MachineError."""
    number, local = probe.host_id(peers, peer), here(status)
    path = probe.choose(docs, peer, ev)[0]
    nodes, found = plan(local, peer, path, docs)
    sending = ways(local, path, docs, found, number)
    with Exchange(local, [path["plane"]]) as exchange:
        tallies = exchange.run(sending, count, interval_s, wait_s)
    results = {w.key: tallies[w.key].document() for w in sending}
    said = loops.diagnose(nodes, found, {t.name: (results[t.name]["sent"], results[t.name]["lost"]) for t in found})
    why = next((r["not_sent"] for r in results.values() if r["not_sent"] and not r["sent"]), None)
    rows = [
        {
            "name": t.name,
            "hop": i + 1 if t.hop else None,
            "ok": results[t.name]["sent"] > 0 and t.name not in said.failing,
        }
        | {"segments": [str(s) for s in w.segments]}
        | results[t.name]
        for i, (t, w) in enumerate(zip(found, sending, strict=True))
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
        "first_failing_hop": said.first,
        "suspects": list(said.suspects),
        "on_path": said.on_path,
        "verdict": f"nothing was sent: {why}" if why else said.text,
    }


def lines(doc: Mapping[str, Any], *, colour: bool) -> list[str]:
    """The document as a table for the hops, one for the cross-checks, and the verdict."""
    head = f"{doc['host']} → {doc['peer']} by EV {doc['ev']} (plane {doc['plane']}"
    head += f", T1 {doc['t1']}), {doc['state']}" if doc["t1"] is not None else f"), {doc['state']}"
    columns = [Column("HOP", True), Column("NAME"), Column("")]
    columns += [*(Column(h, True) for h in (*probe.COUNTS, *probe.RTTS)), Column("SEGMENTS")]
    rows = [
        [text(r.get("hop")), r["name"], "" if r["ok"] else "!!", *probe.counted(r), " ".join(r["segments"])]
        for r in [*doc["hops"], *doc["checks"]]
    ]
    return [head, "", *table(columns, rows, colour=colour), "", doc["verdict"]]
