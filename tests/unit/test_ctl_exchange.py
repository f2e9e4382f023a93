# SPDX-License-Identifier: BSD-2-Clause
"""Tests which replies to diagnostic probes mrcctl counts, with a made-up table of keys and network; and the counts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import IPv6Address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mrcd.auth import secrets_file
from mrcd.auth.keyring import Keyring, pair_key
from mrcd.auth.tag import tag
from mrcd.kernel import abi
from mrcd.kernel.enums import AuthMode
from mrcd.probes import probe_packet, raw_socket
from mrcd.probes.exchange import Exchange, LocalHost, Nic, Route, Tally
from mrcd.probes.probe_packet import REPLY, REQUEST, Probe
from tests.unit.conftest import TestClock

SECRET = secrets_file.new(5)
ADDRESS = IPv6Address("fd10::1")
NIC = Nic(0, "p0", 3, ADDRESS, IPv6Address("5f00:0:c000::"), bytes(6))
LOCAL = LocalHost("h0", 0, "usid", 4797, 9100, {0: NIC}, Path("pins"))
TO_H1 = Route("to h1", 0, REQUEST, 1, 3, (IPv6Address("5f00:0:4000::"),))
LOOPBACK = Route("loopback", 0, REPLY, 0, 3, (IPv6Address("5f00:0:4000:c000::"),))

TAG = slice(14 + 40 + 8 + 24, 14 + 40 + 8 + 32)  # in a frame without an SRH

Peer = Callable[[Probe], bytes]  # makes a frame of the one that it gets


class Network:
    """The NIC p0, at whose other end is `peer`."""

    def __init__(self, clock: TestClock) -> None:
        self.peer: Peer
        self.clock = clock
        self.sent: list[Probe] = []
        self._arrived: list[tuple[bytes, int]] = []

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def send(self, frame: bytes) -> None:
        probe = probe_packet.read(frame, 4797)
        assert probe is not None
        self.sent.append(probe)
        self._arrived.append((self.peer(probe), 1))

    def getsockname(self) -> tuple[Any, ...]:
        return "p0", 0, 0, 1, bytes(6)

    def wait(self, timeout_s: float) -> list[tuple[bytes, int]]:
        found, self._arrived = self._arrived, []
        self.clock.ns += 0 if found else round(timeout_s * 1e9)
        return found

    def close(self) -> None:
        pass


def reply(probe: Probe, *, sender: int | None = None, key_id: int = 0, key: bytes = b"") -> bytes:
    """Returns the frame that answers a request; `sender` is its receiver unless given."""
    answer = replace(probe, kind=REPLY, sender=probe.receiver if sender is None else sender, receiver=probe.sender)
    return probe_packet.build(
        answer, [ADDRESS], source=ADDRESS, smac=bytes(6), dmac=bytes(6), udp_port=4797, key_id=key_id, key=key
    )


def honest(probe: Probe) -> bytes:
    """Answers as h1 does."""
    return reply(probe, key_id=5, key=pair_key(SECRET.secret, 1, 0))


def untagged(probe: Probe) -> bytes:
    """Answers without a tag."""
    return reply(probe)


def corrupt(probe: Probe) -> bytes:
    """Answers with another tag."""
    frame = bytearray(honest(probe))
    frame[TAG] = bytes(8)
    return bytes(frame)


def reflected(probe: Probe) -> bytes:
    """Answers under the key of the request."""
    return reply(probe, key_id=5, key=pair_key(SECRET.secret, 0, 1))


def unknown_key(probe: Probe) -> bytes:
    """Answers under another secret."""
    return reply(probe, key_id=6, key=pair_key(secrets_file.new(6).secret, 1, 0))


def other_host(probe: Probe) -> bytes:
    """Answers as h2, under the key of h2."""
    return reply(probe, sender=2, key_id=5, key=pair_key(SECRET.secret, 2, 0))


def looped(probe: Probe) -> bytes:
    """Pretends to be a loopback probe."""
    return reply(probe, sender=0)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, clock: TestClock) -> Network:
    made = Network(clock)
    taps = SimpleNamespace(wait=made.wait, close=made.close)
    monkeypatch.setattr(raw_socket, "open_socket", lambda name: made)
    monkeypatch.setattr(raw_socket, "Taps", lambda interfaces, code: taps)
    return made


def probed(
    monkeypatch: pytest.MonkeyPatch, network: Network, mode: AuthMode, peer: Peer, routes: Sequence[Route]
) -> Tally:
    """Returns the counts of one packet on each route, of this mode."""
    auths = np.zeros(4, abi.AUTH)
    ring = Keyring(0)
    ring.use(mode, [SECRET])
    ring.update(auths, np.zeros(4, abi.PEER), np.array([1, 2]), anew=True)
    monkeypatch.setattr("mrcd.auth.tag.libbpf.get", lambda path: 99)
    monkeypatch.setattr("mrcd.auth.tag.libbpf.map_info", lambda fd: (4, 128, 4))
    monkeypatch.setattr("mrcd.auth.tag.libbpf.lookup_elem", lambda fd, key, size: auths[key[0]].tobytes())
    monkeypatch.setattr("mrcd.auth.tag.os.close", lambda fd: None)
    network.peer = peer
    with Exchange(LOCAL, [0], network.clock.clock) as made:
        return made.run(routes, 1, 1, 1)[routes[0].key]


EVERY_PEER = (honest, untagged, corrupt, reflected, unknown_key, other_host, looped)
BELIEVED = {
    AuthMode.REQUIRED: {honest},
    AuthMode.PERMISSIVE: {honest, untagged},
    AuthMode.OFF: {honest, untagged, corrupt, reflected, unknown_key},
}


@pytest.mark.parametrize("mode", list(AuthMode))
@pytest.mark.parametrize("peer", EVERY_PEER, ids=lambda peer: peer.__name__)
def test_replies_are_counted_by_mode(
    monkeypatch: pytest.MonkeyPatch, network: Network, mode: AuthMode, peer: Peer
) -> None:
    tally = probed(monkeypatch, network, mode, peer, [TO_H1])
    assert (tally.sent, tally.lost) == (1, int(peer not in BELIEVED[mode]))


def test_requests_are_tagged_with_the_key_of_the_peer(monkeypatch: pytest.MonkeyPatch, network: Network) -> None:
    probed(monkeypatch, network, AuthMode.REQUIRED, honest, [TO_H1])
    (sent,) = network.sent
    assert sent.tagged.key_id == 5
    assert sent.tagged.tag == tag(pair_key(SECRET.secret, 0, 1), sent.tagged.message)
    network.sent.clear()
    probed(monkeypatch, network, AuthMode.OFF, untagged, [TO_H1])
    assert (network.sent[0].tagged.key_id, network.sent[0].tagged.tag) == (0, bytes(8))


@pytest.mark.parametrize("mode", list(AuthMode))
def test_loopback_probes_come_back_without_a_tag(
    monkeypatch: pytest.MonkeyPatch, network: Network, mode: AuthMode
) -> None:
    tally = probed(monkeypatch, network, mode, untagged, [LOOPBACK])
    assert (tally.sent, tally.lost) == (1, 0)
    assert network.sent[0].tagged.key_id == 0


def test_losses_and_round_trips_are_counted_as_by_ping() -> None:
    nothing = Tally(send_error="no first hop").document()
    assert {k for k, v in nothing.items() if v is None} == {
        "loss_ratio", "rtt_min_ns", "rtt_avg_ns", "rtt_max_ns", "rtt_mdev_ns",
    }  # fmt: skip
    document = Tally(sent=10, rtts=[2000, 4000, 4000, 4000, 5000, 5000, 7000, 9000], duplicates=1).document()
    # The textbook's example: mean 5, standard deviation 2.
    assert [document[f"rtt_{k}_ns"] for k in ("min", "avg", "max", "mdev")] == [2000, 5000, 9000, 2000]
    assert (document["lost"], document["loss_ratio"], document["duplicates"]) == (2, 0.2, 1)
