# SPDX-License-Identifier: BSD-2-Clause
"""Tests the Wireshark dissector: what tshark shows of each kind of packet, and the filters of `mrcctl capture`."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw
from scapy.utils import wrpcap

from labkit.traffic import wire
from labkit.traffic.wire import MRC, PROBE_REPLY, PROBE_REQUEST, MRCCount, MRCProbe, MRCReport
from mrcd.config import cluster_file
from mrcd.ctl.packets import capture
from mrcd.fabric import topology
from tests.cluster_files import host

SCRIPT = Path(__file__).parents[2] / "scripts/deploy/wireshark/mrc.lua"
INNER = IP(src="10.99.0.1", dst="10.99.0.2") / TCP(sport=5001, dport=80, flags="A") / Raw(bytes(100))
INNER6 = IPv6(src="fd00::1", dst="fd00::2") / UDP(sport=7, dport=9) / Raw(bytes(20))
PROBE = MRCProbe(seq=7, plane_mask=5, status=6, generation=9, key_ids=[1, 2], fingerprint=0xABCD, tx_ns=5)
REPORT = MRCProbe(seq=7, report_seq=6, first=2, counts=2) / MRCReport(
    records=[MRCCount(packets=77, probes=4), MRCCount(packets=78, probes=5, ce=3)]
)


def packet(payload: Packet, path: int = 3, encapsulation: str = "usid", vlan: int = 0, **mrc: Any) -> Packet:
    """Returns a packet of h0 to h1."""
    text = f'[cluster]\nplanes = 2\nt0s = 2\nt1s = 2\nevs_per_peer = 4\nencapsulation = "{encapsulation}"\n'
    plan = topology.plan(cluster_file.parse(text + host(0) + host(1, t0=1)), "h0")
    macs = {"smac": "02:00:00:00:00:01", "dmac": "02:00:00:00:00:02"}
    return Ether(bytes(wire.outer(plan, plan.peers[0].evs[path], payload, vlan=vlan, mrc={"seq": 9, **mrc}, **macs)))


def dissected(file: Path, frames: list[Packet], *options: str) -> list[dict[str, Any]]:
    """Returns the fields that tshark shows of each packet: name → values."""
    wrpcap(str(file), frames)
    argv = ["tshark", "-r", str(file), "-X", f"lua_script:{SCRIPT}", "-T", "ek", *options]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "Lua" not in done.stderr, done.stderr
    return [json.loads(line)["layers"] for line in done.stdout.splitlines() if "layers" in line]


def flat(tree: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a tree of tshark by name; those that occur several times as a list."""
    found: dict[str, list[Any]] = {}
    below = tree.pop("mrc", [])
    for branch in [tree, *(below if isinstance(below, list) else [below])]:
        for name, value in branch.items():
            found.setdefault(name.replace("mrc_mrc_", ""), []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


DATA = {"type": "1", "sender": "0", "receiver": "1", "ev": "3", "seq": "9", "version": "3"}
COUNTS = {"count_ev": ["2", "3"], "count_packets": ["77", "78"], "count_probes": ["4", "5"], "count_ce": ["0", "3"]}
PROBED = {
    "type": "2", "probe_seq": "7", "probe_plane_mask": "0x0005", "probe_status_detached": False,
    "probe_status_plain": True, "probe_status_tags_only": True, "probe_generation": "0x00000009",
    "probe_key_ids": "01:02", "probe_fingerprint": "0xabcd", "probe_tx_ns": "5",
}  # fmt: skip


@pytest.mark.parametrize(
    ("frame", "fields", "layers", "absent"),
    [
        (packet(INNER, segments=20), DATA | {"segments": "20", "tagged": False}, {"ip", "tcp"}, {"probe_seq"}),
        (packet(INNER, flags=1), DATA | {"flags_critical": True}, {"ip", "tcp"}, set()),
        (packet(INNER6, 0), {"ev": "0"}, {"ipv6", "udp"}, {"probe_seq"}),
        (packet(INNER, 1, "srh"), {"ev": "1"}, {"ip", "tcp"}, set()),
        (packet(INNER, vlan=7), {"ev": "3"}, {"vlan", "ip", "tcp"}, set()),
        (packet(INNER, key_id=1, auth=0x0102030405060708), {"key_id": "1", "auth": "01:02:03:04:05:06:07:08",
         "tagged": True}, {"ip"}, set()),
        (packet(PROBE, flags=2), PROBED | {"flags_diagnostic": True}, set(), {"count_ev"}),
        (packet(REPORT, type=PROBE_REQUEST), {"probe_counts": "2"}, set(), {"count_ev"}),
        (packet(REPORT, type=PROBE_REPLY), COUNTS | {"type": "3", "probe_report_seq": "6"}, set(), set()),
        (packet(MRCProbe(), sender=1, receiver=1, ev=17, auth=1),
         {"link_probe": True, "link_plane": "1", "link_row": "2", "tagged": True}, set(), {"ev"}),
        (packet(INNER, version=4), {"version": "4"}, set(), {"ev"}),
    ],
    ids=["data", "critical", "ipv6", "srh", "vlan", "tagged",
          "request", "request of a report", "reply", "link probe", "version 4"],
)  # fmt: skip
def test_each_kind_of_packet(
    tmp_path: Path, frame: Packet, fields: dict[str, Any], layers: set[str], absent: set[str]
) -> None:
    (found,) = dissected(tmp_path / "x.pcap", [frame])
    of_mrc = flat(found["mrc"])
    assert {k: of_mrc.get(k) for k in fields} == fields
    assert layers <= found.keys()
    assert not absent & of_mrc.keys()


def test_a_packet_cut_short_is_no_error_of_the_script(tmp_path: Path) -> None:
    whole = bytes(packet(REPORT, type=PROBE_REPLY))
    frames = [Ether(whole[:n]) for n in range(62, len(whole))]
    assert len(dissected(tmp_path / "x.pcap", frames)) == len(frames)
    text = subprocess.run(
        ["tshark", "-r", str(tmp_path / "x.pcap"), "-X", f"lua_script:{SCRIPT}", "-V"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "Lua Error" not in text


def test_another_udp_port(tmp_path: Path) -> None:
    frame = packet(INNER)
    frame[UDP].dport = 5000
    assert "mrc" not in dissected(tmp_path / "x.pcap", [frame])[0]
    assert "mrc" in dissected(tmp_path / "x.pcap", [frame], "-o", "mrc.udp_port:5000")[0]


# ---- the filters of `mrcctl capture` ----

FRAMES = [
    packet(INNER, 3),
    packet(INNER, 2, sender=1, receiver=0),
    packet(PROBE, 3),
    packet(REPORT, 1, type=PROBE_REPLY, sender=2, receiver=0),
    packet(INNER, 3, "srh"),
    packet(INNER, 3, vlan=7),
    packet(INNER, 3, "srh", vlan=7),
]
OTHERS = [Ether() / IPv6() / UDP(dport=53) / Raw(bytes(60)), Ether() / INNER]


@pytest.mark.parametrize(
    "wanted",
    [{}, {"ev": 3}, {"kind": "data"}, {"kind": "reply"}, {"host": 1}, {"host": 2, "kind": "reply"}, {"host": 9}],
    ids=str,
)
def test_a_filter_takes_just_the_packets_that_match(tmp_path: Path, wanted: dict[str, Any]) -> None:
    kinds = {"data": 1, "request": 2, "reply": 3}

    def matches(mrc: MRC) -> bool:
        return (
            wanted.get("ev") in (None, mrc.ev)
            and kinds.get(wanted.get("kind", ""), mrc.type) == mrc.type
            and wanted.get("host", mrc.sender) in (mrc.sender, mrc.receiver)
        )

    file = tmp_path / "x.pcap"
    wrpcap(str(file), FRAMES + OTHERS)
    expression = capture.filter_expression(4797, may_be_tagged=True, **wanted)
    argv = ["tcpdump", "-nr", str(file), "-w", str(tmp_path / "y.pcap"), expression]
    subprocess.run(argv, capture_output=True, check=True)
    kept = subprocess.run(["tcpdump", "-nr", str(tmp_path / "y.pcap")], capture_output=True, text=True, check=True)
    assert len(kept.stdout.splitlines()) == sum(matches(frame[MRC]) for frame in FRAMES)
