# SPDX-License-Identifier: BSD-2-Clause
"""Counts the probes between two hosts in the kernel's tables, and switches them off and on there."""

from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple

from labkit.cluster import observe
from labkit.cluster.api import Lab
from mrcd.config.cluster_file import Config
from mrcd.errors import MachineError
from mrcd.fabric.topology import plan
from mrcd.kernel import abi
from mrcd.kernel.pinned import Tables

_ETHERNET = 14
_PROBE, _COUNT = 32, 8  # struct mrc_probe, struct mrc_count


class Counts(NamedTuple):
    """Packets that a host has sent to one peer, since its tables were made or between two readings."""

    data_packets: int  # as on the wire: a burst counts its segments
    data_bytes: int  # inner
    requests: int  # probe requests: piggybacked, of sweeps, and in probe bursts
    reports: int  # those of the requests for a report: nearly all piggybacked
    replies: int  # received replies
    requests_elsewhere: int  # to its other peers, which have no traffic: sweeps
    skips: int  # times that EVs were passed over: congested, or lagging

    def since(self, before: "Counts") -> "Counts":
        """Returns the counts from `before` to this reading."""
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))

    def piggybacked(self, evs: int) -> float:
        """Returns the least number of piggybacked requests, by the reports.

        A sweep requests one report at most, and sends a request on each of the peer's `evs` EVs besides. Probe bursts
        count as sweeps.
        """
        return max(0.0, self.reports - (self.requests - self.reports) / evs)


def total(counts: Iterable[Counts]) -> Counts:
    """Returns their sum."""
    return Counts(*(sum(column) for column in zip(*counts, strict=True)))


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

    def data_bytes(self, c: Counts) -> int:
        """Returns the bytes of the data: slightly too few, since tx_bytes counts a burst's inner headers once."""
        return c.data_bytes + c.data_packets * self.headers


class Probing:
    """Switches piggybacked probes of some hosts off and on. At the end they are on again. Counts need two hosts.

    The switch is mrc_node.probe_ifindex: with 0 there the programs piggyback no request and send no ACK copy, so
    the cost of ACK copies counts as the probes' cost. The daemon writes it only when it attaches its programs;
    the tick's probes and replies continue. If the daemon wrote it meanwhile, its value is kept, and `confirm` raises
    MachineError.
    """

    def __init__(self, lab: Lab, *hosts: str) -> None:
        self._ids = {h: lab.fabric.config.host(h).id for h in hosts}
        self._tables: dict[str, Tables] = {}
        self._was: dict[str, int] = {}
        self._on = True
        try:
            for host in self._ids:
                self._tables[host] = Tables(observe.pins(lab, host), writable=True)
                self._was[host] = self._read(host)
                if not self._was[host]:
                    raise MachineError(f"{host} piggybacks no probes: its data plane is not attached")
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> "Probing":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._close()

    def switch(self, on: bool) -> None:
        """Switches all hosts at once."""
        self._on = on
        for host, tables in self._tables.items():
            tables.node["probe_ifindex"] = self._was[host] if on else 0

    def confirm(self) -> None:
        """Checks that the state is still that of `switch`. Raises MachineError."""
        for host in self._tables:
            found, wanted = self._read(host), self._was[host] if self._on else 0
            if found != wanted:
                raise MachineError(
                    f"{host}: probe_ifindex was set to {wanted} and is {found}: its daemon has reattached",
                    hint="nothing else may change the lab meanwhile; its log says why",
                )

    @property
    def evs(self) -> int:
        """Returns the number of EVs from each host to the other."""
        return min(int((t.evs["configured"][self._row(h)] != 0).sum()) for h, t in self._tables.items())

    def counts(self) -> dict[str, Counts]:
        """Returns the counts of both hosts towards each other."""
        return {host: self._count(host) for host in self._tables}

    def _count(self, host: str) -> Counts:
        tables = self._tables[host]
        row = self._row(host)
        evs = tables.evs[row]
        requests = int(evs["probe_seq"].sum(dtype="u8"))
        return Counts(
            data_packets=int(evs["tx_packets"].sum()),
            data_bytes=int(evs["tx_bytes"].sum()),
            requests=requests,
            reports=int(tables.reports[row]["report_seq"]),
            replies=int(tables.path_stats[row]["replies"].sum(dtype="u8")),
            requests_elsewhere=int(tables.evs["probe_seq"].sum(dtype="u8")) - requests,
            skips=int(tables.path_stats[row]["skips"].sum(dtype="u8")),
        )

    def _row(self, host: str) -> int:
        """Returns the row of its peer in its tables."""
        return next(i for h, i in self._ids.items() if h != host)

    def _read(self, host: str) -> int:
        return int(self._tables[host].node["probe_ifindex"])

    def _close(self) -> None:
        for host, tables in self._tables.items():
            if host in self._was and not self._read(host):
                tables.node["probe_ifindex"] = self._was[host]
        for tables in self._tables.values():
            tables.close()
        self._tables.clear()
