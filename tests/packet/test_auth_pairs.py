# SPDX-License-Identifier: BSD-2-Clause
"""Tests two hosts that share a secret of their own, and a third host that has none for them."""

import pytest
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from mrcd.auth.secrets_file import Secret
from mrcd.fabric.wire import MRC
from mrcd.kernel.enums import AuthMode
from tests.packet.arrivals import both_hooks, inner
from tests.packet.cluster import H0, H1, H2, datagram
from tests.packet.rig import Bench, Hook
from tests.packet.tagging import (
    CLOCK_AHEAD_NS,
    NEW,
    OLD,
    PLANE,
    accepts,
    authenticate,
    data,
    its_clock,
    refuses,
    tag_of,
    tagged,
)

pytestmark = pytest.mark.root

OF_H2 = Secret(OLD.key_id, b"", {H2: NEW.secret})
KEY = Secret(OLD.key_id, NEW.secret)  # as the test's own SipHash takes it


def its_data(bench: Bench) -> Packet:
    """Returns a data packet of h1, which is at the same T0: it has one EV per plane."""
    ev = next(ev.ev for peer in bench.plan.peers if peer.host.id == H1 for ev in peer.evs if ev.plane == PLANE)
    return bench.arriving("h1", ev, inner(), tx_ns=its_clock())


def test_data_to_a_peer_has_a_tag_of_the_pairs_secret(bench: Bench) -> None:
    authenticate(bench, AuthMode.REQUIRED, OF_H2)
    packet = Ether(bench.push(datagram(H0, H2))[1])
    assert (packet[MRC].key_id, packet[MRC].auth) == (OLD.key_id, tag_of(packet, KEY, H0, H2))
    packet = Ether(bench.push(datagram(H0, H1))[1])
    assert (packet[MRC].key_id, packet[MRC].auth) == (0, 0)


@both_hooks
def test_a_third_host_is_refused(bench: Bench, hook: Hook) -> None:
    """In its own name, and in h2's; without a tag, with the pair's id, and with each secret."""
    authenticate(bench, AuthMode.REQUIRED, OF_H2)
    bench.tables.auths["clock_ns"][H1] = CLOCK_AHEAD_NS
    accepts(bench, tagged(data(bench), KEY), hook)
    refuses(bench, its_data(bench), "untagged", hook)
    for secret in (OLD, NEW, KEY):
        refuses(bench, tagged(its_data(bench), secret, H1), "unknown_key", hook)
    for secret in (OLD, KEY):
        refuses(bench, tagged(data(bench), secret, H1), "bad_tag", hook)
