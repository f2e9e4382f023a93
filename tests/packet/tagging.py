# SPDX-License-Identifier: BSD-2-Clause
"""Makes tagged packets, with an independent SipHash (PyPI siphash24) over the bytes that scapy builds."""

from typing import Any

import numpy as np
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from siphash24 import siphash24

from mrcd.auth.keyring import Keyring, pair_key
from mrcd.auth.secrets_file import Secret
from mrcd.fabric.wire import MRC, PROBE_REPLY, PROBE_REQUEST, MRCCount, MRCProbe
from mrcd.kernel import abi
from mrcd.kernel.enums import AuthMode
from tests.packet.arrivals import inner, popped
from tests.packet.clock import MS, now
from tests.packet.cluster import ALL_PLANES, H0, H2
from tests.packet.reports import GENERATION, NEVER
from tests.packet.rig import Bench, Hook

OLD, NEW = Secret(7, bytes(range(32))), Secret(8, bytes(range(32, 64)))
EV, PLANE = 5, 1
S = 1000 * MS
CLOCK_AHEAD_NS = 3600 * S  # of h2's clock


def authenticate(bench: Bench, mode: AuthMode = AuthMode.REQUIRED, *secrets: Secret) -> None:
    """Gives the bench the keys of its peers, and h2's clock."""
    keyring = Keyring(H0)
    keyring.use(mode, secrets or (OLD,))
    rows = np.array([p.host.id for p in bench.plan.peers])
    keyring.update(bench.tables.auths, bench.tables.peers, rows, anew=True)
    bench.tables.auths["clock_ns"][H2] = CLOCK_AHEAD_NS
    bench.peer(H2)["generation"] = GENERATION
    bench.peer(H2)["heard_ns"] = now() + 60 * S  # so it stays heard a moment ago


def digest(secret: Secret, sender: int, receiver: int, message: bytes) -> int:
    """Returns a tag as the number that scapy writes into the header."""
    key = pair_key(secret.secret, sender, receiver)
    return int.from_bytes(siphash24(message, key=key).digest(), "big")


def tag_of(packet: Packet, secret: Secret, sender: int, receiver: int) -> int:
    """Returns the tag that a packet must have."""
    raw = bytes(packet[MRC])
    message = raw[:24]
    if packet[MRC].type != 1:
        probe = MRCProbe(raw[32:64])
        message += raw[32:64]
        if packet[MRC].type == PROBE_REPLY and probe.counts:
            begin = 64 + abi.BALLAST
            message += raw[begin : begin + 8 * probe.counts]
    return digest(secret, sender, receiver, message)


def tagged(packet: Packet, secret: Secret = OLD, sender: int = H2, receiver: int = H0) -> Packet:
    """Tags a packet, of h2 to this host unless given."""
    packet[MRC].key_id = secret.key_id
    packet[MRC].auth = tag_of(packet, secret, sender, receiver)
    return packet


def its_clock(ago_ns: int = 0) -> int:
    """Returns the time by h2's clock."""
    return now() + CLOCK_AHEAD_NS - ago_ns


def data(bench: Bench, ago_ns: int = 0, host: str = "h2", **mrc: Any) -> Packet:
    """Returns a data packet of h2 that it sent so long ago."""
    return bench.arriving(host, EV, inner(), **{"tx_ns": its_clock(ago_ns), **mrc})


def request(bench: Bench, seq: int = 1, *, ago_ns: int = 0, flags: int = 0, **probe: Any) -> Packet:
    """Returns a probe request of h2."""
    sent_ns = its_clock(ago_ns)
    fields = {"seq": seq, "plane_mask": ALL_PLANES, "generation": GENERATION, "tx_ns": sent_ns, **probe}
    room = bytes(abi.BALLAST + 8 * fields["counts"]) if fields.get("counts") else b""
    content = Raw(bytes(MRCProbe(**fields)) + room)
    return bench.arriving("h2", EV, content, type=PROBE_REQUEST, seq=seq, tx_ns=sent_ns, flags=flags)


def own_request(bench: Bench) -> Packet:
    """Has this host send a request for a report to h2. Returns it as sent."""
    bench.reports(H2)["requested_ns"] = 0
    bench.tables.path_stats["probe_after_ns"][H2] = NEVER
    wires = bench.wires()
    bench.dataplane.sweep(H2)
    (frame,) = [Ether(f.data) for wire in wires for f in wire.frames()]
    return frame


def reply_to(bench: Bench, sent: Packet, *, packets: int = 0, plane_mask: int = ALL_PLANES) -> Packet:
    """Returns h2's reply to a request of this host."""
    probe = MRCProbe(bytes(sent[MRCProbe])[:32])
    probe.plane_mask, probe.generation = plane_mask, GENERATION
    counts = [MRCCount(packets=packets, probes=1) for _ in range(probe.counts)]
    content = Raw(bytes(probe) + (bytes(abi.BALLAST) + b"".join(map(bytes, counts)) if counts else b""))
    return bench.arriving("h2", sent[MRC].ev, content, type=PROBE_REPLY, seq=sent[MRC].seq, tx_ns=its_clock())


def written(bench: Bench) -> bytes:
    """Returns all that a believed packet changes."""
    tables = bench.tables
    return bench.counted() + tables.watches.tobytes() + tables.replays.tobytes() + tables.auths.tobytes()


def refuses(bench: Bench, packet: Packet, reason: str, hook: Hook = "tc") -> None:
    """Asserts that a packet is dropped with this reason, and changes nothing else."""
    drops, before = bench.drops(), written(bench)
    assert bench.pop(hook, packet, PLANE)[0] == "drop"
    assert bench.drops() == {**drops, reason: drops.get(reason, 0) + 1}
    assert written(bench) == before


def accepts(bench: Bench, packet: Packet, hook: Hook = "tc") -> None:
    """Asserts that a data packet is delivered."""
    drops = bench.drops()
    assert bench.pop(hook, packet, PLANE) == ("pass", popped(inner(), PLANE))
    assert bench.drops() == drops
