# SPDX-License-Identifier: BSD-2-Clause
"""Decodes an MRC packet into a document, and a document into a line of text. Pure. Imports scapy, so import it late."""

from collections.abc import Mapping
from datetime import UTC, datetime
from ipaddress import IPv6Address
from typing import Any

from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Dot1Q
from scapy.packet import Packet

from mrcd.fabric.wire import MRC, TYPES, MRCProbe, MRCReport
from mrcd.versions import SCHEMA_VERSION

Document = dict[str, Any]


def packet(
    frame: Packet,
    ns: int,
    *,
    outgoing: bool | None,
    vlan: int | None,
    names: Mapping[int, str],
    host_id: int | None,
    length: int | None = None,
) -> Document | None:
    """Return a frame as a document; None if it is not an MRC packet.

    `ns` is CLOCK_REALTIME; `names` maps known host ids to names. `length` is the length on the wire of a frame that was
    cut. If `outgoing` is None, as for a file, the sender id gives the direction, provided `host_id` is known.
    """
    if MRC not in frame or IPv6 not in frame:
        return None
    ip6, mrc = frame[IPv6], frame[MRC]
    length = len(frame) if length is None else length
    sender, receiver = int(mrc.sender), int(mrc.receiver)
    if outgoing is None and host_id is not None and host_id in (sender, receiver) and sender != receiver:
        outgoing = sender == host_id
    if vlan is None and Dot1Q in frame:
        vlan = int(frame[Dot1Q].vlan)
    return {
        "schema_version": SCHEMA_VERSION,
        "time": datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{ns % 10**9:09d}Z",
        "time_ns": ns,
        "plane": int(IPv6Address(ip6.src)) >> 80 & 0xFFFF,
        "direction": None if outgoing is None else "out" if outgoing else "in",
        "vlan": vlan,
        "source": str(ip6.src),
        "destination": str(ip6.dst),
        "srh": _srh(frame),
        "ecn": int(ip6.tc) & 3,
        "hop_limit": int(ip6.hlim),
        "wire_version": int(mrc.version),
        "type": TYPES.get(int(mrc.type), f"type {mrc.type}"),
        "flags": [f for f in str(mrc.flags).split("+") if f],
        "sender": sender,
        "sender_name": names.get(sender),
        "receiver": receiver,
        "receiver_name": names.get(receiver),
        "ev": int(mrc.ev),
        "seq": int(mrc.seq),
        "segments": int(mrc.segments),
        "sent_ns": int(mrc.tx_ns),
        "bytes": length,
        "inner": None if MRCProbe in frame else mrc.payload.summary() if mrc.payload else "",
        "inner_bytes": None if MRCProbe in frame else length - len(frame) + len(mrc.payload),
        "probe": _probe(frame),
    }


def _srh(frame: Packet) -> list[str] | None:
    """Return all segments in travel order, passed ones included."""
    if IPv6ExtHdrSegmentRouting not in frame:
        return None
    return [str(a) for a in reversed(frame[IPv6ExtHdrSegmentRouting].addresses)]


def _probe(frame: Packet) -> Document | None:
    if MRCProbe not in frame:
        return None
    p = frame[MRCProbe]
    counts = None
    if MRCReport in frame:
        counts = [
            {"ev": int(p.first) + i, "packets": int(c.packets), "probes": int(c.probes), "ce": int(c.ce)}
            for i, c in enumerate(frame[MRCReport].records)
        ]
    return {
        "seq": int(p.seq),
        "planes": [i for i in range(16) if int(p.plane_mask) >> i & 1],
        "status": int(p.status),
        "generation": int(p.generation),
        "report_seq": int(p.report_seq),
        "first": int(p.first),
        "counts": int(p.counts),
        "request_ns": int(p.tx_ns),
        "report": counts,
    }


def line(doc: Mapping[str, Any]) -> str:
    """Return a packet in one line: time (UTC), plane, direction, sender and receiver, EV, type, content."""
    hosts = [doc[f"{k}_name"] or f"host {doc[k]}" for k in ("sender", "receiver")]
    words = [doc["time"][11:26], f"plane {doc['plane']}", f"{doc['direction'] or '-':<3}", f"{hosts[0]} > {hosts[1]}"]
    words += [f"EV {doc['ev']}", doc["type"], f"seq {doc['seq']}"]
    if doc["segments"] != 1:
        words.append(f"× {doc['segments']}")
    words += [f"[{f}]" for f in doc["flags"]]
    if doc["ecn"] == 3:
        words.append("CE")
    probe = doc["probe"]
    if probe is not None:
        words.append(f"planes {','.join(map(str, probe['planes'])) or '-'}")
        if probe["counts"]:
            last = probe["first"] + probe["counts"] - 1
            words.append(f"report {probe['report_seq']} of EVs {probe['first']} to {last}")
        if probe["counts"] and doc["type"] == TYPES[3]:
            words.append(_counts(probe["report"] or []))
    else:
        words.append(f"| {doc['inner']} ({doc['inner_bytes']} bytes)")
    where = f"to {doc['destination']}"
    if doc["srh"]:
        where += f" srh {','.join(doc['srh'])}"
    return " ".join([*words, where])


def _counts(report: list[Mapping[str, int]]) -> str:
    """Return the packets received on each EV, with CE marks if there are any."""
    return "arrived " + " ".join(
        f"{c['ev']}:{c['packets']}+{c['probes']}" + (f"ce{c['ce']}" if c["ce"] else "") for c in report
    )
