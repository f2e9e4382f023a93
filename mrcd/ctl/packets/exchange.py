"""Sending a tool's packets and waiting for what comes back: the one loop of probe, trace and doctor."""

import errno
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from socket import socket
from typing import Any

from mrcd.ctl.client import understood
from mrcd.ctl.packets import probe_packet, raw_socket, socket_filter
from mrcd.ctl.packets.probe_packet import Probe
from mrcd.ctl.packets.tally import Tally
from mrcd.errors import KernelError


@dataclass(frozen=True)
class Nic:
    """A plane NIC of this host; `gateway` is the first hop's MAC, None if it is not resolved."""

    plane: int
    interface: str
    ifindex: int
    address: IPv6Address
    sid: IPv6Address
    gateway: bytes | None


@dataclass(frozen=True)
class Here:
    """This host, as GET /v1/status tells."""

    name: str
    host_id: int
    encapsulation: str
    udp_port: int
    mtu: int
    nics: Mapping[int, Nic]


def here(status: Mapping[str, Any]) -> Here:
    """Read GET /v1/status. Raises DaemonError if it is not of this version."""
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
        return Here(status["host"], status["host_id"], status["encapsulation"], status["udp_port"], status["mtu"], nics)


@dataclass(frozen=True)
class Way:
    """A way there and back. A request is answered by the receiver; a reply comes back as it is, to its sender."""

    key: Hashable
    plane: int
    kind: int
    receiver: int
    ev: int
    segments: tuple[IPv6Address, ...]
    size: int = 0  # bytes from the IPv6 header on, at the least
    room: int = 0  # for a longer SRH on the way back


class _Plane:
    """A plane NIC to send by."""

    def __init__(self, nic: Nic) -> None:
        self.nic = nic
        self.out: socket | None = None
        self.why: str | None = None if nic.gateway else "no first hop"
        self.smac = b""
        if self.why is None:
            try:
                self.out = raw_socket.open_socket(nic.interface)
                self.smac = raw_socket.hardware_address(self.out)
            except KernelError as e:
                if e.errno != errno.ENODEV:
                    raise
                self.why = "no interface"

    def close(self) -> None:
        if self.out is not None:
            self.out.close()


class Exchange:
    """Sends by some planes of this host. Use as a context manager. Raises MachineError: sockets are for root."""

    def __init__(self, here: Here, planes: Sequence[int]) -> None:
        self._here = here
        self._planes = {p: _Plane(here.nics[p]) for p in dict.fromkeys(planes)}
        self._token = raw_socket.random_token()
        self._sent: dict[int, tuple[Hashable, int, int]] = {}  # seq → way, CLOCK_MONOTONIC, CLOCK_REALTIME
        self._answered: set[int] = set()
        self._seq = 0
        # Several VLANs may share a NIC, and what arrives is seen there.
        names = {raw_socket.name_of(x.nic.ifindex, x.nic.interface): p for p, x in self._planes.items() if x.out}
        code = socket_filter.ours(here.udp_port, probe_packet.DIAGNOSTIC)
        self._taps = raw_socket.Taps([(p, name) for name, p in names.items()], code)

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(self, *exc: object) -> None:
        self._taps.close()
        for p in self._planes.values():
            p.close()

    def run(self, ways: Sequence[Way], count: int, interval_s: float, wait_s: float) -> dict[Hashable, Tally]:
        """`count` packets on each way, `interval_s` apart; then wait for answers, `wait_s` at the most."""
        tallies = {w.key: Tally() for w in ways}
        gap = interval_s / max(1, len(ways))
        due = time.monotonic()
        for _ in range(count):
            for way in ways:
                self._take(tallies, due)
                self._send(way, tallies[way.key])
                due = max(due + gap, time.monotonic() - interval_s)  # what is late is not made up for in one go
        last = time.monotonic() + wait_s
        while any(t.lost for t in tallies.values()) and time.monotonic() < last:
            self._collect(tallies, last - time.monotonic())
        return tallies

    def _take(self, tallies: dict[Hashable, Tally], until: float) -> None:
        """Collect what comes before the next is due, and what is there already."""
        self._collect(tallies, 0)
        while (rest := until - time.monotonic()) > 0:
            self._collect(tallies, rest)

    def _send(self, way: Way, tally: Tally) -> None:
        plane = self._planes[way.plane]
        if plane.out is None or plane.nic.gateway is None:
            tally.refused = plane.why
            return
        self._seq += 1
        now = time.monotonic_ns()
        probe = Probe(way.kind, self._here.host_id, way.receiver, way.ev, self._seq, self._token, now)
        frame = probe_packet.build(
            probe,
            way.segments,
            source=plane.nic.address,
            smac=plane.smac,
            dmac=plane.nic.gateway,
            udp_port=self._here.udp_port,
            size=way.size,
            room=way.room,
        )
        self._sent[self._seq] = way.key, time.monotonic_ns(), time.time_ns()
        try:
            plane.out.send(frame)
        except OSError as e:
            del self._sent[self._seq]
            tally.refused = "longer than the MTU of the NIC" if e.errno == errno.EMSGSIZE else e.strerror
        else:
            tally.sent += 1

    def _collect(self, tallies: dict[Hashable, Tally], timeout_s: float) -> None:
        for arrival in self._taps.wait(timeout_s):
            probe = None if arrival.outgoing else probe_packet.read(arrival.data, self._here.udp_port)
            if probe is None or probe.token != self._token or probe.kind != probe_packet.REPLY:
                continue
            found = self._sent.get(probe.seq)
            if found is None or found[0] not in tallies:
                continue
            key, sent, sent_real = found
            if probe.seq in self._answered:
                tallies[key].duplicates += 1
                continue
            self._answered.add(probe.seq)
            rtt, most = arrival.ns - sent_real, time.monotonic_ns() - sent
            tallies[key].rtts.append(rtt if 0 < rtt <= most else most)  # unless that clock was set meanwhile
