"""The probes between two hosts: counted in the kernel's tables, turned off and on where programs look."""

from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple

from labkit.cluster import observe
from labkit.cluster.api import Lab
from mrcd.config.cluster_file import Config
from mrcd.errors import MachineError
from mrcd.fabric.topology import plan
from mrcd.tables import abi
from mrcd.tables.pinned import Tables

_ETHERNET = 14
_PROBE, _COUNT = 32, 8  # struct mrc_probe, struct mrc_count


class Counts(NamedTuple):
    """What a host has sent to one peer: since its tables were made, or between two readings."""

    data_packets: int  # as on the wire: a burst counts its segments
    data_bytes: int  # inner
    requests: int  # probe requests: on traffic, of sweeps, and probe bursts
    reports: int  # of these, those that ask for a report: nearly all on traffic
    replies: int  # that came back
    requests_elsewhere: int  # to its other peers, which have no traffic: sweeps
    skips: int  # how often EVs were passed over: congested, or lagging

    def since(self, before: "Counts") -> "Counts":
        """What was counted from `before` to this reading."""
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))

    def rode(self, evs: int) -> float:
        """Requests that rode on traffic, at least, by the reports: a sweep asks for one at most, and sends a request
        on each of the peer's `evs` EVs besides. probe bursts are taken for sweeps."""
        return max(0.0, self.reports - (self.requests - self.reports) / evs)


def total(counts: Iterable[Counts]) -> Counts:
    """Their sum."""
    return Counts(*(sum(column) for column in zip(*counts, strict=True)))


class Wire(NamedTuple):
    """Lengths of a host's packets to a peer on its NICs, in bytes."""

    headers: int  # Ethernet's and all outer ones
    probe: int  # a request or reply, headers included
    report: int  # one with a report, without the small packet that it may keep behind that

    @classmethod
    def of(cls, config: Config, host: str) -> "Wire":
        """By bpf/mrc_wire.h. Without an SRH, for which every probe keeps room."""
        headers = _ETHERNET + plan(config, host).overhead
        probe = headers + _PROBE
        counts = min(config.cluster.evs_per_peer, abi.REPORT_EVS)
        return cls(headers, probe, probe + abi.BALLAST + counts * _COUNT)

    def data_bytes(self, c: Counts) -> int:
        """Of the data. A burst's segments have more inner headers than tx_bytes knows of: this is a little less."""
        return c.data_bytes + c.data_packets * self.headers

    def probe_bytes(self, c: Counts, kept: float) -> float:
        """Of requests and replies, at most: as if all reports kept a packet of so many bytes."""
        asked = c.requests * self.probe + c.reports * (self.report + kept - self.probe)
        return asked * (1 + c.replies / c.requests) if c.requests else 0.0


class Probing:
    """Whether probes ride on the traffic of some hosts; on again at the end, however that comes. Counts are of two.

    What is switched is mrc_node.probe_ifindex: with 0 there the programs let no request ride, and no acknowledgement
    has a twin: what these cost is counted as the probes'. The daemon writes it when it attaches its programs, at no
    other time; the tick's probes go on, and so do replies. Where the daemon wrote it meanwhile, that is the newer word,
    and `confirm` raises MachineError.
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
                    raise MachineError(f"in {host} no probes ride on traffic: its data plane is not attached")
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> "Probing":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._close()

    def switch(self, on: bool) -> None:
        """In all of them, at once."""
        self._on = on
        for host, tables in self._tables.items():
            tables.node["probe_ifindex"] = self._was[host] if on else 0

    def confirm(self) -> None:
        """Is it still as `switch` has left it?"""
        for host in self._tables:
            found, wanted = self._read(host), self._was[host] if self._on else 0
            if found != wanted:
                raise MachineError(
                    f"{host}: probe_ifindex was set to {wanted} and is {found}: its daemon has attached anew",
                    hint="nothing else may change the lab meanwhile; its log says why",
                )

    @property
    def evs(self) -> int:
        """From each host to the other."""
        return min(int((t.evs["configured"][self._row(h)] != 0).sum()) for h, t in self._tables.items())

    def counts(self) -> dict[str, Counts]:
        """Of both hosts, each towards the other."""
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
        """Of its peer in its tables."""
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
