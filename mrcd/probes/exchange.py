# SPDX-License-Identifier: BSD-2-Clause
"""Sends diagnostic probes and collects the replies, for the diagnosis, and for probe, trace and doctor.

Where packets are authenticated, probes and replies are tagged like those of the programs. A loopback probe comes back
to the host that sent it, which has no key of its own, so it has no tag.
"""

import errno
import os
import statistics
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from socket import socket
from typing import Any

from mrcd.auth.tag import Signer
from mrcd.clock import SYSTEM, Clock
from mrcd.errors import KernelError
from mrcd.probes import probe_packet, raw_socket
from mrcd.probes.probe_packet import Probe


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
    """This host as a sender of probes: its name and ids, the encapsulation, its NICs, and where its keys are."""

    name: str
    host_id: int
    encapsulation: str
    udp_port: int
    mtu: int
    nics: Mapping[int, Nic]
    pins: Path | None = None  # of the tables with the keys


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


@dataclass
class Tally:
    """The counts of one route, and its round trips in ns."""

    sent: int = 0
    duplicates: int = 0
    send_error: str | None = None  # the last error of a send that failed
    rtts: list[int] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """The number of probes without an answer."""
        return self.sent - len(self.rtts)

    def document(self) -> dict[str, Any]:
        """Return the document of --json. mdev is the standard deviation, as ping names it."""
        rtts = self.rtts
        return {
            "sent": self.sent,
            "received": len(rtts),
            "lost": self.lost,
            "duplicates": self.duplicates,
            "loss_ratio": self.lost / self.sent if self.sent else None,
            "rtt_min_ns": min(rtts, default=None),
            "rtt_avg_ns": round(statistics.fmean(rtts)) if rtts else None,
            "rtt_max_ns": max(rtts, default=None),
            "rtt_mdev_ns": round(statistics.pstdev(rtts)) if rtts else None,
            "send_error": self.send_error,
        }


class Exchange:
    """Sends on some planes of this host. Use as a context manager. Raises MachineError unless root."""

    def __init__(self, host: LocalHost, planes: Sequence[int], clock: Clock = SYSTEM) -> None:
        self._host, self._clock = host, clock
        self._token = int.from_bytes(os.urandom(4), "big")
        self._sent: dict[int, tuple[Route, int, int]] = {}  # seq → route, CLOCK_MONOTONIC, CLOCK_REALTIME
        self._answered: set[int] = set()
        self._seq = 0
        self._sockets: dict[int, socket | str] = {}  # by plane; or why there is none
        with ExitStack() as stack:
            for plane in dict.fromkeys(planes):
                self._sockets[plane] = _opened(host.nics[plane], stack)
            # Replies are captured at the physical NIC, which several VLANs may share.
            nics = [host.nics[p] for p, s in self._sockets.items() if not isinstance(s, str)]
            names = dict.fromkeys(raw_socket.name_of(nic.ifindex, nic.interface) for nic in nics)
            code = raw_socket.packet_filter(host.udp_port, probe_packet.DIAGNOSTIC)
            self._taps = stack.enter_context(closing(raw_socket.Taps(names, code)))
            self._signer = stack.enter_context(closing(Signer(host.pins))) if host.pins else None
            self._open = stack.pop_all()

    def __enter__(self) -> "Exchange":
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()

    def run(self, routes: Sequence[Route], count: int, interval_s: float, wait_s: float) -> dict[Hashable, Tally]:
        """Send `count` packets per route, `interval_s` apart, then wait at most `wait_s`. Returns counts by route."""
        tallies = {r.key: Tally() for r in routes}
        interval_ns, wait_ns = round(interval_s * 1e9), round(wait_s * 1e9)
        gap, now = interval_ns // max(1, len(routes)), self._clock.monotonic_ns
        due = now()
        for _ in range(count):
            for route in routes:
                self._take(tallies, due)
                self._send(route, tallies[route.key])
                due = max(due + gap, now() - interval_ns)  # late packets are not sent all at once
        last = now() + wait_ns
        while any(t.lost for t in tallies.values()) and (rest := last - now()) > 0:
            self._collect(tallies, rest / 1e9)
        return tallies

    def _take(self, tallies: dict[Hashable, Tally], until_ns: int) -> None:
        """Collect the replies that have arrived, and those that arrive before `until_ns`."""
        self._collect(tallies, 0)
        while (rest := until_ns - self._clock.monotonic_ns()) > 0:
            self._collect(tallies, rest / 1e9)

    def _send(self, route: Route, tally: Tally) -> None:
        nic, out = self._host.nics[route.plane], self._sockets[route.plane]
        if isinstance(out, str):
            tally.send_error = out
            return
        self._seq += 1
        now = self._clock.monotonic_ns()
        probe = Probe(route.kind, self._host.host_id, route.receiver, route.ev, self._seq, self._token, now)
        key_id, key = self._signer.key(route.receiver) if self._signer else (0, b"")
        frame = probe_packet.build(
            probe,
            route.segments,
            source=nic.address,
            smac=out.getsockname()[4][:6],
            dmac=nic.gateway or b"",
            udp_port=self._host.udp_port,
            size=route.size,
            reserved=route.reserved,
            key_id=key_id,
            key=key,
        )
        self._sent[self._seq] = route, self._clock.monotonic_ns(), self._clock.wall_ns()
        try:
            out.send(frame)
        except OSError as e:
            del self._sent[self._seq]
            tally.send_error = "longer than the MTU of the NIC" if e.errno == errno.EMSGSIZE else e.strerror
        else:
            tally.sent += 1

    def _collect(self, tallies: dict[Hashable, Tally], timeout_s: float) -> None:
        for data, arrived_ns in self._taps.wait(timeout_s):
            probe = probe_packet.read(data, self._host.udp_port)
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
            rtt, most = arrived_ns - sent_real, self._clock.monotonic_ns() - sent
            tally.rtts.append(rtt if 0 < rtt <= most else most)  # CLOCK_REALTIME may have been set meanwhile

    def _is_reply(self, probe: Probe, route: Route) -> bool:
        """Return whether a reply came from the host that a route leads to, as far as packets are authenticated."""
        tagged = probe.tagged
        if (probe.sender, probe.receiver) != (route.receiver, self._host.host_id):
            return False
        if self._signer is None or route.receiver == self._host.host_id:
            return True
        return self._signer.is_believed(probe.sender, tagged.key_id, tagged.message, tagged.tag)


def _opened(nic: Nic, stack: ExitStack) -> socket | str:
    """Return a socket of a plane NIC that is closed with the stack, or the reason why the NIC cannot send."""
    if nic.gateway is None:
        return "no first hop"
    try:
        return stack.enter_context(raw_socket.open_socket(nic.interface))
    except KernelError as e:
        if e.errno != errno.ENODEV:
            raise
        return "no interface"
