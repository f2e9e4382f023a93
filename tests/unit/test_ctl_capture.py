# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrcctl capture: packets as documents and as lines, files in and out, usage."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet, Raw
from scapy.utils import wrpcap, wrpcapng

from mrcd.config import cluster_file
from mrcd.ctl.packets import capture, decode
from mrcd.ctl.packets.raw_socket import Arrival
from mrcd.fabric import topology, wire
from mrcd.fabric.wire import MRC, PROBE_REPLY, MRCCount, MRCProbe, MRCReport
from mrcd.versions import SCHEMA_VERSION
from tests.cluster_files import host
from tests.unit import canned_daemon
from tests.unit.canned_daemon import PEER, Daemon

STATUS: dict[str, Any] = canned_daemon.STATUS
NAMES = {0: "h0", 1: "h1"}
INNER = IP(src="10.99.0.1", dst="10.99.0.2", tos=3) / TCP(sport=5001, dport=80, flags="A") / Raw(bytes(100))
REPORT = MRCProbe(seq=7, plane_mask=0b101, report_seq=6, first=2, counts=2, tx_ns=5) / MRCReport(
    records=[MRCCount(packets=77, probes=4), MRCCount(packets=78, probes=5, ce=3)]
)


def packet(payload: Packet, ev: int = 3, encapsulation: str = "usid", vlan: int = 0, **mrc: Any) -> Packet:
    """Returns a packet of h0 to h1."""
    text = f'[cluster]\nplanes = 2\nt0s = 2\nt1s = 2\nevs_per_peer = 4\nencapsulation = "{encapsulation}"\n'
    plan = topology.plan(cluster_file.parse(text + host(0) + host(1, t0=1)), "h0")
    path = plan.peers[0].evs[ev]
    built = wire.outer(
        plan, path, payload, smac="02:00:00:00:00:01", dmac="02:00:00:00:00:02", vlan=vlan, mrc={"seq": 9, **mrc}
    )
    return Ether(bytes(built))


def document(frame: Packet, **given: Any) -> dict[str, Any]:
    known = {"outgoing": None, "vlan": None, "names": NAMES, "host_id": 0} | given
    found = decode.packet(frame, 1_700_000_000_123_456_789, **known)
    assert found is not None
    return found


def test_data() -> None:
    doc = document(packet(INNER, segments=20))
    assert doc["time"] == "2023-11-14T22:13:20.123456789Z"
    expected = {
        "schema_version": SCHEMA_VERSION,
        "plane": 1, "direction": "out", "sender_name": "h0", "receiver_name": "h1", "ev": 3, "type": "data", "seq": 9,
        "segments": 20, "ecn": 3, "flags": [], "srh": None, "probe": None, "inner_bytes": 140,
        "inner": "IP / TCP 10.99.0.1:5001 > 10.99.0.2:http A / Raw",
    }  # fmt: skip
    assert {k: doc[k] for k in expected} == expected
    line = decode.line(doc)
    assert line.startswith("22:13:20.123456 plane 1 out h0 > h1 EV 3 data seq 9 × 20 CE | IP / TCP 10.99.0.1:5001 > ")
    assert line.endswith("(140 bytes) to 5f00:0:4800:8801:4801:c401::")


def test_a_report() -> None:
    doc = document(packet(REPORT, type=PROBE_REPLY, flags=wire.DIAGNOSTIC), host_id=1, names={})
    assert (doc["direction"], doc["sender_name"], doc["flags"]) == ("in", None, ["diagnostic"])
    assert doc["probe"]["report"] == [
        {"ev": 2, "packets": 77, "probes": 4, "ce": 0},
        {"ev": 3, "packets": 78, "probes": 5, "ce": 3},
    ]
    words = "EV 3 probe reply seq 9 [diagnostic] planes 0,2 report 6 of EVs 2 to 3 arrived 2:77+4 3:78+5ce3"
    assert words in decode.line(doc)


def test_a_truncated_burst_is_shown() -> None:
    whole = packet(IP(src="10.99.0.1", dst="10.99.0.2") / TCP() / Raw(bytes(60_000)), segments=42)
    doc = document(Ether(bytes(whole)[:2048]), length=len(whole))
    assert (doc["bytes"], doc["inner_bytes"]) == (len(whole), 60_040)


def test_segments_in_travel_order() -> None:
    doc = document(packet(INNER, encapsulation="srh"))
    assert doc["srh"] == ["5f00:0:8801::", "5f00:0:4801::", "5f00:0:c401::"]
    assert decode.line(doc).endswith("to 5f00:0:4800:: srh 5f00:0:8801::,5f00:0:4801::,5f00:0:c401::")


def test_a_vlan_tag_is_read_from_frame_or_metadata() -> None:
    assert document(packet(INNER, vlan=7))["vlan"] == 7
    assert document(packet(INNER), vlan=7)["vlan"] == 7


def test_packets_of_other_programs_are_ignored() -> None:
    other = Ether() / IPv6(src="::1", dst="::2") / UDP(dport=53) / Raw(b"x")
    assert decode.packet(other, 0, outgoing=None, vlan=None, names={}, host_id=None) is None


@pytest.mark.parametrize("cut", range(54, 150, 7))
def test_truncated_packets_are_shown_as_far_as_possible(cut: int) -> None:
    frame = Ether(bytes(packet(REPORT, type=PROBE_REPLY))[:cut])
    found = decode.packet(frame, 0, outgoing=None, vlan=None, names=NAMES, host_id=0)
    assert (found is None) == (MRC not in frame)
    if found is not None:
        assert decode.line(found)


def test_a_tag_removed_by_the_kernel_is_written_to_the_file() -> None:
    frame = bytes(packet(INNER))
    whole = Ether(capture.tagged(Arrival(0, frame, 0, False, 7, len(frame))))
    assert (whole[Dot1Q].vlan, bytes(whole[IPv6])) == (7, frame[14:])
    assert capture.tagged(Arrival(0, frame, 0, False, None, len(frame))) == frame


# ---- the command ----

OTHER = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / IPv6(src="::1", dst="::2") / UDP(dport=53) / Raw(b"x")


@pytest.mark.parametrize("write", [wrpcap, wrpcapng])
def test_a_file_without_a_daemon(mrcctl: Callable[..., Result], tmp_path: Path, write: Callable[..., None]) -> None:
    file = tmp_path / "x.pcap"
    write(str(file), [packet(INNER, ev=0), OTHER, packet(INNER), packet(REPORT, type=PROBE_REPLY)])
    done = mrcctl("capture", "-r", str(file))
    assert (done.exit_code, done.stderr) == (0, "mrcctl: 3 of 4 packets are MRC\n")
    assert [line.split(" ")[1:4] for line in done.stdout.splitlines()] == [["plane", p, "-"] for p in "011"]
    only = mrcctl("capture", "-r", str(file), "--json", "--plane", "1", "-c", "1")
    assert [json.loads(line)["ev"] for line in only.stdout.splitlines()] == [3]


@pytest.mark.parametrize(
    ("args", "evs"),
    [
        (["--ev", "0"], [0]),
        (["--type", "reply"], [3]),
        (["--type", "request"], []),
        (["--type", "data", "--plane", "1"], [3]),
        (["1"], [0, 3, 3]),
        (["--peer", "9"], []),
    ],
    ids=str,
)
def test_packets_are_chosen(mrcctl: Callable[..., Result], tmp_path: Path, args: list[str], evs: list[int]) -> None:
    file = tmp_path / "x.pcap"
    wrpcap(str(file), [packet(INNER, ev=0), OTHER, packet(INNER), packet(REPORT, type=PROBE_REPLY)])
    done = mrcctl("capture", "-r", str(file), "--json", *args)
    assert [json.loads(line)["ev"] for line in done.stdout.splitlines()] == evs
    assert done.stderr.startswith(f"mrcctl: {len(evs)} of 4 packets are MRC of ")


def test_the_daemon_gives_names_and_directions(mrcctl: Callable[..., Result], tmp_path: Path, daemon: Daemon) -> None:
    daemon.answers["/v1/status"] = (200, {**STATUS, "planes": STATUS["planes"][:1], "udp_port": 4797, "mtu": 9100})
    daemon.answers["/v1/peers"] = (200, [{**PEER, "peer": "far", "host_id": 1}])
    wrpcap(str(tmp_path / "x.pcap"), [packet(INNER)])
    assert " out h0 > far EV 3 data " in mrcctl("capture", "-r", str(tmp_path / "x.pcap")).stdout
    assert " out h0 > far EV 3 data " in mrcctl("capture", "far", "-r", str(tmp_path / "x.pcap")).stdout
    assert "there is no peer 'h9'" in mrcctl("capture", "h9", "-r", str(tmp_path / "x.pcap")).stderr


def test_files_that_are_no_captures_are_errors(mrcctl: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no capture at all, but long enough for a header of one")
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_bytes(struct.pack("IHH", 0xA1B2C3D4, 2, 4))
    for name in ("text", "empty", "short", "missing"):
        done = mrcctl("capture", "-r", str(tmp_path / name))
        assert (done.exit_code, done.stdout) == (1, ""), name
        assert done.stderr.startswith(f"mrcctl: {tmp_path / name}: not a readable capture: "), done.stderr


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["capture"], 2, "mrcd is not running"),
        (["capture", "-r", "x", "-w", "y"], 1, "-r reads a file"),
        (["probe"], 1, "Missing argument 'PEER'"),
        (["probe", "h2"], 2, "mrcd is not running"),
        (["trace"], 1, "Missing argument 'PEER'"),
        (["trace", "h2"], 2, "mrcd is not running"),
        (["doctor"], 2, "no usable "),
        (["preflight", "--config", "/nowhere.toml"], 1, "/nowhere.toml: No such file"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_usage(mrcctl: Callable[..., Result], args: list[str], code: int, message: str) -> None:
    done = mrcctl(*args)
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.startswith(f"mrcctl: {message}"), done.stderr
    assert "\n  hint: " in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["probe", "h9"], "there is no peer 'h9'"),
        (["probe", "h2", "--ev", "99"], "h2 has no EV 99"),
        (["probe", "h2", "--size", "50"], "--size 50: packets of these paths have 112 to 65535 bytes"),
        (["trace", "h2", "--ev", "99"], "h2 has no EV 99"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_wrong_names_and_sizes(mrcctl: Callable[..., Result], daemon: Daemon, args: list[str], message: str) -> None:
    plane = {**STATUS["planes"][0], "plane": 1}
    daemon.answers["/v1/status"] = (
        200,
        {**STATUS, "planes": [plane], "udp_port": 4797, "mtu": 9100} | {"pins": {"lost": "gone"}},
    )
    done = mrcctl(*args)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"mrcctl: {message}"), done.stderr


def test_a_daemon_of_another_version_is_named(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    done = mrcctl("probe", "h2")  # this daemon's status has no udp_port
    assert (done.exit_code, "Traceback" in done.stderr) == (2, False)
    assert done.stderr.startswith("mrcctl: this mrcctl does not understand mrcd's status: KeyError")
    assert daemon.requests


def test_the_kernel_s_routes_are_not_read(tmp_path: Path) -> None:
    """A host of a large cluster has thousands of routes, and scapy would take seconds for them."""
    wrpcap(str(tmp_path / "some.pcap"), [packet(INNER)])
    code = (
        "import contextlib\nfrom mrcd.ctl.main import cli\n"
        f"with contextlib.suppress(SystemExit):\n    cli(['capture', '-r', {str(tmp_path / 'some.pcap')!r}])\n"
        "from scapy.config import conf\n"
        "print(conf.route.routes, conf.route6.routes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[] []"
