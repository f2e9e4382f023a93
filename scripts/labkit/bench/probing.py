# SPDX-License-Identifier: BSD-2-Clause
"""Counts the control packets of some hosts, probe requests by kind and replies, beside their data; switches probes off.

The programs count all of them, over all peers of these hosts. An ACK copy (bpf/dup_ack.h) counts as a data packet;
the number of copies is given too.
"""

import contextlib
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from mrcd.config.cluster_file import Config
from mrcd.errors import MachineError
from mrcd.fabric.topology import plan
from mrcd.kernel import abi, enums
from mrcd.kernel.pinned import Tables

_ETHERNET = 14
_PROBE, _COUNT = 32, 8  # struct mrc_probe, struct mrc_count
_KINDS = tuple(kind.text for kind in enums.ProbeKind)


class Wire(NamedTuple):
    """Lengths of a host's packets to a peer on its NICs, in bytes."""

    headers: int  # Ethernet and all outer headers
    probe: int  # a request or reply, with headers
    report: int  # one with a report, without the small packet that may follow it

    @classmethod
    def of(cls, config: Config, host: str) -> "Wire":
        """Returns the lengths by bpf/mrc_wire.h. Without an SRH, for which every probe reserves room."""
        headers = _ETHERNET + plan(config, host).overhead
        probe = headers + _PROBE
        counts = min(config.cluster.evs_per_peer, abi.REPORT_EVS)
        return cls(headers, probe, probe + abi.BALLAST + counts * _COUNT)


class Sent(NamedTuple):
    """Packets that a host has sent to all its peers, since its tables were made or between two readings."""

    data_packets: int  # as on the wire: a burst counts its segments
    data_bytes: int  # inner
    requests: tuple[int, ...]  # by kind, in the order of enums.ProbeKind
    reports: int  # those of the requests that include one for a report
    replies: int  # received replies
    duplicates: int  # those of the data packets that are ACK copies

    def since(self, before: "Sent") -> "Sent":
        """Returns the counts from `before` to this reading."""
        kinds = tuple(now - then for now, then in zip(self.requests, before.requests, strict=True))
        rest = {f: getattr(self, f) - getattr(before, f) for f in self._fields if f != "requests"}
        return Sent(requests=kinds, **rest)


class _HostTables:
    """The tables of some hosts of a lab, for the length of a block."""

    def __init__(self, lab: Lab, hosts: Sequence[str], *, writable: bool) -> None:
        with contextlib.ExitStack() as undo:
            self._tables = {h: Tables(observe.pins(lab, h), writable=writable) for h in hosts}
            for tables in self._tables.values():
                undo.callback(tables.close)
            self._undo = undo.pop_all()

    def __exit__(self, *_: object) -> None:
        self._undo.close()


class Control(_HostTables):
    """The counters of some hosts."""

    def __init__(self, lab: Lab, hosts: Sequence[str]) -> None:
        super().__init__(lab, hosts, writable=False)
        self._wires = {h: Wire.of(lab.fabric.config, h) for h in hosts}

    def __enter__(self) -> "Control":
        return self

    def read(self) -> dict[str, Sent]:
        """Returns host → its counts so far."""
        return {h: _read(t) for h, t in self._tables.items()}

    def since(self, before: Mapping[str, Sent], seconds: float) -> Document:
        """Returns the document of the counts from `before` until now, `seconds` later."""
        now = self.read()
        return _document({h: now[h].since(before[h]) for h in now}, self._wires, seconds)


def _read(tables: Tables) -> Sent:
    return Sent(
        data_packets=int(tables.evs["tx_packets"].sum()),
        data_bytes=int(tables.evs["tx_bytes"].sum()),
        requests=tuple(tables.probes_sent()[k] for k in _KINDS),
        reports=int(tables.reports["report_seq"].sum(dtype="u8")),
        replies=int(tables.path_stats["replies"].sum(dtype="u8")),
        duplicates=int(tables.peers["dup_acks"].sum(dtype="u8")),
    )


def _document(hosts: Mapping[str, Sent], wires: Mapping[str, Wire], seconds: float) -> Document:
    """Returns packets per second by kind, and the control packets' share of all packets and of all bytes. Pure.

    Bytes are an upper bound: every request for a report counts as if a small packet followed it
    (bpf/piggyback.h), of the mean packet length of the host that sends the shortest packets.
    """
    kept = min((s.data_bytes / s.data_packets for s in hosts.values() if s.data_packets), default=0.0)
    data_bytes = control_bytes = 0.0
    for host, sent in hosts.items():
        wire, requests = wires[host], sum(sent.requests)
        data_bytes += sent.data_bytes + sent.data_packets * wire.headers
        requested = requests * wire.probe + sent.reports * (wire.report + kept - wire.probe)
        control_bytes += requested * (1 + sent.replies / requests) if requests else 0.0
    data = sum(s.data_packets for s in hosts.values())
    kinds = {k: sum(s.requests[i] for s in hosts.values()) for i, k in enumerate(_KINDS)}
    replies = sum(s.replies for s in hosts.values())
    control = sum(kinds.values()) + replies
    return {
        "hosts": list(hosts),
        "data_packets_per_s": data / seconds,
        "requests_per_s": {k: n / seconds for k, n in kinds.items()},
        "replies_per_s": replies / seconds,
        "duplicate_acks_per_s": sum(s.duplicates for s in hosts.values()) / seconds,
        "packets_ratio": control / (data + control) if data + control else None,
        "bytes_ratio": control_bytes / (data_bytes + control_bytes) if data_bytes + control_bytes else None,
    }


def mean(found: Sequence[Document]) -> Document | None:
    """Returns the mean of documents of equal duration; None without any. Pure."""
    if not found:
        return None
    numbers = [k for k in found[0] if k not in ("hosts", "requests_per_s")]
    return {
        "hosts": found[0]["hosts"],
        "requests_per_s": {k: fmean(d["requests_per_s"][k] for d in found) for k in found[0]["requests_per_s"]},
        **{k: fmean(d[k] for d in found if d[k] is not None) if any(d[k] for d in found) else None for k in numbers},
    }


class Probing(_HostTables):
    """Switches piggybacked probes of some hosts off and on. At the end they are on again.

    The switch is mrc_node.probe_ifindex: with 0 there the programs piggyback no request and send no ACK copy, so
    the cost of ACK copies counts as the probes' cost. The daemon writes it only when it attaches its programs;
    the tick's probes and replies continue.
    """

    def __init__(self, lab: Lab, *hosts: str) -> None:
        super().__init__(lab, hosts, writable=True)
        self._was = {h: int(t.node["probe_ifindex"]) for h, t in self._tables.items()}
        for host, ifindex in self._was.items():
            if not ifindex:
                self._undo.close()
                raise MachineError(f"{host} piggybacks no probes: its data plane is not attached")

    def __enter__(self) -> "Probing":
        return self

    def switch(self, on: bool) -> None:
        """Switches all hosts at once."""
        for host, tables in self._tables.items():
            tables.node["probe_ifindex"] = self._was[host] if on else 0

    def __exit__(self, *_: object) -> None:
        for host, tables in self._tables.items():
            if not int(tables.node["probe_ifindex"]):  # else the daemon wrote it meanwhile
                tables.node["probe_ifindex"] = self._was[host]
        super().__exit__()
