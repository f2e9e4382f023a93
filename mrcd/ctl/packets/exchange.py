# SPDX-License-Identifier: BSD-2-Clause
"""Sends diagnostic probes and collects the replies, for probe, trace and doctor.

Where packets are authenticated, probes and replies are tagged like those of the programs. A loopback probe comes back
to the host that sent it, which has no key of its own, so it has no tag.
"""

import errno
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from pathlib import Path
from socket import socket
from typing import Any

from mrcd.auth.tag import Signer
from mrcd.ctl.client import understood
from mrcd.ctl.packets import probe_packet, raw_socket, socket_filter
from mrcd.ctl.packets.probe_packet import Probe
from mrcd.ctl.packets.tally import Tally
from mrcd.errors import KernelError


@dataclass(frozen=True)
class Nic:
    """A plane NIC of this host. `gateway` is the first hop's MAC; None if it is not resolved."""

    plane: int
    interface: str
    ifindex: int
    address: IPv6Address
    sid: IPv6Address
    gateway: bytes | None


@dataclass(frozen=True)
class LocalHost:
    """This host, as GET /v1/status describes it."""

    name: str
    host_id: int
    encapsulation: str
    udp_port: int
    mtu: int
    nics: Mapping[int, Nic]
    pins: Path | None = None  # of the tables with the keys


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


@dataclass(frozen=True)
class Route:
    """A kind of packet to send. The receiver answers a REQUEST; switches forward a REPLY back to its sender."""

    key: Hashable
    plane: int
    kind: int
    receiver: int
    ev: int
    segments: tuple[IPv6Address, ...]
    size: int = 0  # least bytes, from the IPv6 header on
    reserved: int = 0  # bytes for a longer SRH of the reply


class _Plane:
    """The socket of a plane NIC, or the reason why it cannot send."""

    def __init__(self, nic: Nic) -> None:
        self.nic = nic
        self.out: socket | None = None
        self.error: str | None = None if nic.gateway else "no first hop"
        self.smac = b""
        if self.error is None:
            try:
                self.out = raw_socket.open_socket(nic.interface)
                self.smac = raw_socket.hardware_address(self.out)
            except KernelError as e:
                if e.errno != errno.ENODEV:
                    raise
                self.error = "no interface"

    def close(self) -> None:
        if self.out is not None:
            self.out.close()


class Exchange:
    """Sends on some planes of this host. Use as a context manager. Raises MachineError unless root."""

    def __init__(self, host: LocalHost, planes: Sequence[int]) -> None:
        self._host = host
        self._planes = {p: _Plane(host.nics[p]) for p in dict.fromkeys(planes)}
        self._token = raw_socket.random_token()
        self._sent: dict[int, tuple[Route, int, int]] = {}  # seq → route, CLOCK_MONOTONIC, CLOCK_REALTIME
        self._answered: set[int] = set()
        self._seq = 0
        # Replies are captured at the physical NIC, which several VLANs may share.
        names = {raw_socket.name_of(x.nic.ifindex, x.nic.interface): p for p, x in self._planes.items() if x.out}
        code = socket_filter.mrc_packets(host.udp_port, probe_packet.DIAGNOSTIC)
        self._taps = raw_socket.Taps([(p, name) for name, p in names.items()], code)
        self._signer = Signer(host.pins) if host.pins else None

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(self, *exc: object) -> None:
        self._taps.close()
        if self._signer:
            self._signer.close()
        for p in self._planes.values():
            p.close()

    def run(self, routes: Sequence[Route], count: int, interval_s: float, wait_s: float) -> dict[Hashable, Tally]:
        """Send `count` packets per route, `interval_s` apart, then wait at most `wait_s`. Returns counts by route."""
        tallies = {r.key: Tally() for r in routes}
        gap = interval_s / max(1, len(routes))
        due = time.monotonic()
        for _ in range(count):
            for route in routes:
                self._take(tallies, due)
                self._send(route, tallies[route.key])
                due = max(due + gap, time.monotonic() - interval_s)  # late packets are not sent all at once
        last = time.monotonic() + wait_s
        while any(t.lost for t in tallies.values()) and time.monotonic() < last:
            self._collect(tallies, last - time.monotonic())
        return tallies

    def _take(self, tallies: dict[Hashable, Tally], until: float) -> None:
        """Collect the replies that have arrived, and those that arrive before `until`."""
        self._collect(tallies, 0)
        while (rest := until - time.monotonic()) > 0:
            self._collect(tallies, rest)

    def _send(self, route: Route, tally: Tally) -> None:
        plane = self._planes[route.plane]
        if plane.out is None or plane.nic.gateway is None:
            tally.send_error = plane.error
            return
        self._seq += 1
        now = time.monotonic_ns()
        probe = Probe(route.kind, self._host.host_id, route.receiver, route.ev, self._seq, self._token, now)
        key_id, key = self._signer.key(route.receiver) if self._signer else (0, b"")
        frame = probe_packet.build(
            probe,
            route.segments,
            source=plane.nic.address,
            smac=plane.smac,
            dmac=plane.nic.gateway,
            udp_port=self._host.udp_port,
            size=route.size,
            reserved=route.reserved,
            key_id=key_id,
            key=key,
        )
        self._sent[self._seq] = route, time.monotonic_ns(), time.time_ns()
        try:
            plane.out.send(frame)
        except OSError as e:
            del self._sent[self._seq]
            tally.send_error = "longer than the MTU of the NIC" if e.errno == errno.EMSGSIZE else e.strerror
        else:
            tally.sent += 1

    def _collect(self, tallies: dict[Hashable, Tally], timeout_s: float) -> None:
        for arrival in self._taps.wait(timeout_s):
            probe = None if arrival.outgoing else probe_packet.read(arrival.data, self._host.udp_port)
            if probe is None or probe.token != self._token or probe.kind != probe_packet.REPLY:
                continue
            found = self._sent.get(probe.seq)
            if found is None or found[0].key not in tallies or not self._is_reply(probe, found[0]):
                continue
            route, sent, sent_real = found
            tally = tallies[route.key]
            if probe.seq in self._answered:
                tally.duplicates += 1
                continue
            self._answered.add(probe.seq)
            rtt, most = arrival.ns - sent_real, time.monotonic_ns() - sent
            tally.rtts.append(rtt if 0 < rtt <= most else most)  # CLOCK_REALTIME may have been set meanwhile

    def _is_reply(self, probe: Probe, route: Route) -> bool:
        """Return whether a reply came from the host that a route leads to, as far as packets are authenticated."""
        tagged = probe.tagged
        if (probe.sender, probe.receiver) != (route.receiver, self._host.host_id):
            return False
        if self._signer is None or route.receiver == self._host.host_id:
            return True
        return self._signer.is_believed(probe.sender, tagged.key_id, tagged.message, tagged.tag)
