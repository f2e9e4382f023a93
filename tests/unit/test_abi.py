# SPDX-License-Identifier: BSD-2-Clause
"""Tests what Python repeats of the headers in bpf/: enumerators, packets and constants."""

import ctypes
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from ipaddress import IPv6Address
from pathlib import Path

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from labkit.traffic import wire
from labkit.traffic.wire import MRC, MRCCount, MRCProbe, MRCReport
from mrcd.config import cluster_file, sizes
from mrcd.errors import MachineError
from mrcd.fabric import srv6, topology
from mrcd.kernel import abi, btf, enums, object_file
from tests.cluster_files import host
from tests.lists import compare
from tests.unit.c_functions import build


@pytest.fixture(scope="module")
def types() -> Iterator[int]:
    with btf.of_object(object_file.object_path()) as found:
        yield found


def test_an_object_of_another_version_has_no_layouts(types: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi, "ABI_VERSION", abi.ABI_VERSION + 1)
    with pytest.raises(MachineError, match=rf"ABI version {abi.ABI_VERSION - 1}, this mrcd needs {abi.ABI_VERSION}"):
        abi.check_version(types, Path("mrc.bpf.o"))


@pytest.mark.parametrize("dtype", [abi.EV, abi.RX], ids=["mrc_ev", "mrc_rx"])
def test_fields_written_per_packet_are_in_one_cache_line(dtype: np.dtype[np.void]) -> None:
    assert 64 % dtype.itemsize == 0


# ---- enumerations ----

ENUMS: dict[str, tuple[type[IntEnum] | type[IntFlag], str]] = {
    "mrc_ev_state": (enums.EvState, "MRC_EV_"),
    "mrc_reason": (enums.Reason, "MRC_REASON_"),
    "mrc_drop": (enums.Drop, "MRC_DROP_"),
    "mrc_histogram": (enums.Histogram, "MRC_HISTOGRAM_"),
    "mrc_policy": (enums.Policy, "MRC_POLICY_"),
    "mrc_kernel_has": (enums.KernelHas, "MRC_KERNEL_HAS_"),
    "mrc_probe_kind": (enums.ProbeKind, "MRC_PROBE_"),
}


def enumerators(types: int, name: str, prefix: str) -> dict[str, int]:
    """Name without prefix → value; a closing MAX or KINDS is checked and left out."""
    values = btf.enumerators(types, name)
    assert all(n.startswith(prefix) for n in values)
    found = {n.removeprefix(prefix): v for n, v in values.items()}
    end = enums.HISTOGRAMS if name == "mrc_histogram" else len(found) - 1
    assert found.pop("KINDS" if name == "mrc_probe_kind" else "MAX", end) == end
    return found


@pytest.mark.parametrize("name", ENUMS)
def test_enum(types: int, name: str) -> None:
    python, prefix = ENUMS[name]
    found = enumerators(types, name, prefix)
    compare(
        (f"{e.name} = {e.value}" for e in python),
        (f"{enumerator} = {value}" for enumerator, value in found.items()),
        in_file=f"{python.__name__} in mrcd/kernel/enums.py",
        known_from=f"enum {name} in bpf/, and `make build`",
    )


# ---- the wire ----

LAYERS: dict[str, type[Packet]] = {"mrc_hdr": MRC, "mrc_probe": MRCProbe, "mrc_count": MRCCount}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(types: int, name: str) -> None:
    offset, fields = 0, {}
    for field in LAYERS[name].fields_desc:
        fields[field.name] = offset
        offset += abi.KEY_IDS if field.name == "key_ids" else int(field.sz)
    layout = btf.struct(types, name)
    assert layout.fields is not None
    assert fields == {field: at for field, (_, at, *_) in layout.fields.items()}
    assert len(bytes(LAYERS[name]())) == offset == layout.itemsize


def test_the_longest_report_fits_the_least_mtu() -> None:
    """So every evs_per_peer works with every mtu."""
    probe = MRC(type=wire.PROBE_REQUEST) / MRCProbe(counts=abi.REPORT_EVS)
    probe /= MRCReport(records=[MRCCount() for _ in range(abi.REPORT_EVS)])
    srh = 2 * topology.srh_bytes(cluster_file.MAX_SEGMENTS)  # the request's own, and room for the reply's
    (least,) = (m.ge for m in cluster_file.Cluster.model_fields["mtu"].metadata if hasattr(m, "ge"))
    assert len(IPv6()) + srh + len(UDP()) + len(probe) <= least


def test_overhead_is_the_length_of_the_headers() -> None:
    for n in range(2, cluster_file.MAX_SEGMENTS + 1):
        segments = tuple(IPv6Address(i) for i in range(n))
        srh = IPv6ExtHdrSegmentRouting(nh=17, addresses=[str(s) for s in segments[:0:-1]], segleft=n - 1)
        assert srv6.reduced_srh(segments) == bytes(srh)
        assert topology.srh_bytes(n) == len(bytes(srh))
    assert topology.srh_bytes(1) == len(srv6.reduced_srh((IPv6Address(0),))) == 0


@pytest.mark.parametrize("encapsulation", ["usid", "srh", "ecmp"])
def test_overhead_of_a_plan_equals_that_of_scapy(encapsulation: str) -> None:
    text = f'[cluster]\nt0s = 2\nencapsulation = "{encapsulation}"\n{host(0)}{host(1, t0=1)}'
    plan = topology.plan(cluster_file.parse(text), "h0")
    inner = IP(src="10.99.0.1", dst="10.99.0.2") / Raw(b"x" * 100)
    for ev in plan.peers[0].evs:
        frame = wire.outer(plan, ev, inner, smac="02:00:00:00:00:01", dmac="02:00:00:00:00:02")
        assert len(frame) == len(Ether()) + plan.overhead + len(inner)


# ---- constants ----


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Returns the constants of the header, which BTF does not show, from the host compiler."""
    names = "ABI_VERSION WIRE_VERSION MAX_PLANES MAX_EVS_PER_PEER EV_WORDS MAX_SEGMENTS SRH_MAX HOP_LIMIT SPORT_BASE"
    more = "EVENT_IDLE_TIMEOUT STATUS_DETACHED STATUS_PLAIN REPORT_EVS BALLAST REPORTS_KEPT REPORT_SLOTS WEIGHT_FULL"
    more += " HEARD_AGAIN BUCKETS DST_ENTRIES REPLAY_WORDS STATUS_TAGS_ONLY STATUS_WIRE"
    lines = [f"const unsigned {n} = MRC_{n};" for n in f"{names} {more}".split()]
    return build(tmp_path_factory.mktemp("constants"), "\n".join(['#include "mrc_abi.h"', *lines, ""]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ABI_VERSION", abi.ABI_VERSION),
        ("WIRE_VERSION", abi.WIRE_VERSION),
        ("WIRE_VERSION", MRC(bytes(MRC())).version),
        ("MAX_PLANES", abi.MAX_PLANES),
        ("MAX_PLANES", sizes.MAX_PLANES),
        ("EV_WORDS", abi.EV_WORDS),
        ("MAX_EVS_PER_PEER", sizes.MAX_EVS_PER_PEER),
        ("MAX_SEGMENTS", cluster_file.MAX_SEGMENTS),
        ("SRH_MAX", abi.SRH_MAX),
        ("SRH_MAX", topology.srh_bytes(cluster_file.MAX_SEGMENTS)),
        ("HOP_LIMIT", wire.HOP_LIMIT),
        ("SPORT_BASE", abi.SPORT_BASE),
        ("STATUS_DETACHED", abi.STATUS_DETACHED),
        ("STATUS_PLAIN", abi.STATUS_PLAIN),
        ("STATUS_TAGS_ONLY", abi.STATUS_TAGS_ONLY),
        ("STATUS_WIRE", abi.STATUS_WIRE),
        ("REPLAY_WORDS", abi.REPLAY_WORDS),
        ("REPORT_EVS", abi.REPORT_EVS),
        ("BALLAST", abi.BALLAST),
        ("EVENT_IDLE_TIMEOUT", abi.EVENT_IDLE_TIMEOUT),
        ("DST_ENTRIES", abi.DST_ENTRIES),
        ("REPORTS_KEPT", abi.REPORTS_KEPT),
        ("REPORT_SLOTS", abi.REPORT_SLOTS),
        ("WEIGHT_FULL", abi.WEIGHT_FULL),
        ("HEARD_AGAIN", abi.HEARD_AGAIN),
        ("BUCKETS", abi.BUCKETS),
    ],
)
def test_constant(header: ctypes.CDLL, name: str, value: int) -> None:
    assert ctypes.c_uint.in_dll(header, name).value == value


def test_the_port_is_the_configured_one() -> None:
    assert cluster_file.Cluster().udp_port == wire.UDP_PORT
