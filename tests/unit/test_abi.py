# SPDX-License-Identifier: BSD-2-Clause
"""Tests Python's view of the ABI against the compiled object: every struct, field, enumerator, map and constant."""

import ctypes
import json
import subprocess
from enum import IntEnum, IntFlag
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrSegmentRouting
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from mrcd.config import cluster_file, sizes
from mrcd.fabric import srv6, topology, wire
from mrcd.fabric.wire import MRC, MRCCount, MRCProbe, MRCReport
from mrcd.kernel import abi, enums, object_file
from tests.cluster_files import host

BPF = Path(__file__).parents[2] / "bpf"
MMAPABLE = 1 << 10  # BPF_F_MMAPABLE

Field = tuple[int, int, bool, tuple[int, ...]]


class Btf:
    """The types of the compiled object, as bpftool shows them."""

    def __init__(self, path: Path) -> None:
        argv = ["bpftool", "-j", "btf", "dump", "file", str(path), "format", "raw"]
        text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        self.types: dict[int, dict[str, Any]] = {t["id"]: t for t in json.loads(text)["types"]}

    def named(self, kind: str) -> dict[str, dict[str, Any]]:
        """The types of a kind that belong to mrcd."""
        return {t["name"]: t for t in self.types.values() if t["kind"] == kind and t["name"].startswith("mrc_")}

    def plain(self, type_id: int) -> dict[str, Any]:
        """A type without its typedefs and qualifiers."""
        t = self.types[type_id]
        while t["kind"] in ("TYPEDEF", "CONST", "VOLATILE"):
            t = self.types[t["type_id"]]
        return t

    def element(self, type_id: int) -> tuple[int, bool, tuple[int, ...]]:
        """Bytes of the innermost element, whether it is signed, and the dimensions around it."""
        t, shape = self.plain(type_id), []
        while t["kind"] == "ARRAY":
            shape.append(t["nr_elems"])
            t = self.plain(t["type_id"])
        assert t["kind"] == "INT"
        assert t["encoding"] in ("SIGNED", "(none)")
        return t["size"], t["encoding"] == "SIGNED", tuple(shape)

    def fields(self, struct: dict[str, Any]) -> dict[str, Field]:
        """Field → offset and element size in bytes, whether it is signed, dimensions; in order."""
        found = {}
        for m in struct["members"]:
            assert m["bits_offset"] % 8 == 0
            found[m["name"]] = (m["bits_offset"] // 8, *self.element(m["type_id"]))
        return found


@pytest.fixture(scope="module")
def btf() -> Btf:
    return Btf(object_file.object_path())


# ---- tables ----

# Maps that are made anew with each object, and that Python does not read: see bpf/maps.h.
MADE_ANEW = {
    "mrc_dst_cache",
    "mrc_classes",
    "mrc_flowlets",
    "mrc_timers",
    "mrc_idle_peers",
    "mrc_paces",
    "mrc_plane_losses",
    "mrc_sack_gaps",
    "mrc_acks",
    "mrc_t1_failures",
    "mrc_t0_verdicts",
    "mrc_paid",
    "mrc_t1_recorded",
    "mrc_dup_ack_times",
}
# Struct → map: work areas, for which a program's stack has no room, and what one program leaves for another.
SCRATCH = {"mrc_clone_job": "mrc_clone_jobs", "mrc_scratch": "mrc_scratch", "mrc_selection": "mrc_selections"}


def numpy_fields(dtype: np.dtype[np.void]) -> dict[str, Field]:
    """Returns the same fields of a numpy record."""
    assert dtype.fields is not None
    found = {}
    for name, (field, offset, *_) in dtype.fields.items():
        assert field.base.kind in "iu"
        found[name] = (offset, field.base.itemsize, field.base.kind == "i", field.shape)
    return found


@pytest.mark.parametrize("name", abi.STRUCTS)
def test_struct(btf: Btf, name: str) -> None:
    struct, dtype = btf.named("STRUCT")[name], abi.STRUCTS[name]
    assert list(numpy_fields(dtype).items()) == list(btf.fields(struct).items())
    assert dtype.itemsize == struct["size"]


@pytest.mark.parametrize("dtype", [abi.EV, abi.RX], ids=["mrc_ev", "mrc_rx"])
def test_fields_written_per_packet_are_in_one_cache_line(dtype: np.dtype[np.void]) -> None:
    assert 64 % dtype.itemsize == 0


def test_no_struct_and_no_enum_is_left_out(btf: Btf) -> None:
    assert btf.named("STRUCT").keys() == abi.STRUCTS.keys() | LAYERS.keys() | SCRATCH.keys() | {
        "mrc_idle_timer",
        "mrc_timer",
        "mrc_idle_peer",
        "mrc_t1_failure",
        "mrc_plane_losses",
        "mrc_t0_verdict",
        "mrc_flowlet",
        "mrc_sack_gap",
    }
    assert btf.named("ENUM").keys() == ENUMS.keys() | {"mrc_type", "mrc_version"}


def test_maps(btf: Btf) -> None:
    (section,) = (t for t in btf.types.values() if t["kind"] == "DATASEC" and t["name"] == ".maps")
    mapped, names = {}, set()
    for var in (btf.types[v["type_id"]] for v in section["vars"]):
        # Numbers are the length of an array that a member points to; types are those of what it points to.
        members = {
            m["name"]: btf.types[btf.types[m["type_id"]]["type_id"]] for m in btf.plain(var["type_id"])["members"]
        }
        names.add(var["name"])
        if members.get("map_flags", {"nr_elems": 0})["nr_elems"] & MMAPABLE:
            mapped[var["name"]] = members["value"]["name"]
    assert mapped == {name: next(s for s, d in abi.STRUCTS.items() if d is dtype) for name, dtype in abi.MAPS.items()}
    pinned = {"mrc_idle_timers", "mrc_rotations", "mrc_drops", "mrc_histograms", "mrc_events", "mrc_prefixes"}
    pinned |= {"mrc_transitions", "mrc_probes_sent", "mrc_unsent_packets"}
    assert names - mapped.keys() == pinned | MADE_ANEW | set(SCRATCH.values())


def test_rodata_has_the_settings_only(btf: Btf) -> None:
    """The loader writes the whole section at once."""
    (section,) = (t for t in btf.types.values() if t["kind"] == "DATASEC" and t["name"] == ".rodata")
    assert [btf.types[v["type_id"]]["name"] for v in section["vars"]] == ["settings"]


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


def enumerators(btf: Btf, name: str, prefix: str) -> dict[str, int]:
    """Name without prefix → value; a closing MAX or KINDS is checked and left out."""
    values = {v["name"]: v["val"] for v in btf.named("ENUM")[name]["values"]}
    assert all(n.startswith(prefix) for n in values)
    found = {n.removeprefix(prefix): v for n, v in values.items()}
    end = enums.HISTOGRAMS if name == "mrc_histogram" else len(found) - 1
    assert found.pop("KINDS" if name == "mrc_probe_kind" else "MAX", end) == end
    return found


@pytest.mark.parametrize("name", ENUMS)
def test_enum(btf: Btf, name: str) -> None:
    python, prefix = ENUMS[name]
    assert enumerators(btf, name, prefix) == {e.name: e.value for e in python}


def test_types_of_packets(btf: Btf) -> None:
    types = enumerators(btf, "mrc_type", "MRC_")
    assert {v: n.lower().replace("_", " ") for n, v in types.items()} == wire.TYPES
    assert types == {"DATA": wire.DATA, "PROBE_REQUEST": wire.PROBE_REQUEST, "PROBE_REPLY": wire.PROBE_REPLY}


def test_versions(btf: Btf) -> None:
    """The loader checks these before anything else."""
    versions = enumerators(btf, "mrc_version", "MRC_VERSION_")
    assert versions == {"ABI": abi.ABI_VERSION, "WIRE": abi.WIRE_VERSION}


# ---- the wire ----

LAYERS: dict[str, type[Packet]] = {"mrc_hdr": MRC, "mrc_probe": MRCProbe, "mrc_count": MRCCount}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(btf: Btf, name: str) -> None:
    offset, fields = 0, {}
    for field in LAYERS[name].fields_desc:
        size, shape = (abi.KEY_IDS, (abi.KEY_IDS,)) if field.name == "key_ids" else (int(field.sz), ())
        fields[field.name] = (offset, size // (shape or (1,))[0], False, shape)
        offset += size
    struct = btf.named("STRUCT")[name]
    assert list(fields.items()) == list(btf.fields(struct).items())
    assert len(bytes(LAYERS[name]())) == struct["size"]


def test_the_longest_report_fits_the_least_mtu(btf: Btf) -> None:
    """So every evs_per_peer works with every mtu."""
    probe = MRC(type=wire.PROBE_REQUEST) / MRCProbe(counts=abi.REPORT_EVS)
    probe /= MRCReport(records=[MRCCount() for _ in range(abi.REPORT_EVS)])
    srh = 2 * topology.srh_bytes(cluster_file.MAX_SEGMENTS)  # the request's own, and room for the reply's
    (least,) = (m.ge for m in cluster_file.Cluster.model_fields["mtu"].metadata if hasattr(m, "ge"))
    assert len(IPv6()) + srh + len(UDP()) + len(probe) <= least


def test_overhead_is_the_length_of_the_headers(btf: Btf) -> None:
    assert btf.named("STRUCT")["mrc_hdr"]["size"] == len(MRC())
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
    more += " HEARD_AGAIN BUCKETS DST_ENTRIES REPLAY_WORDS STATUS_TAGS_ONLY"
    lines = [f"const unsigned {n} = MRC_{n};" for n in f"{names} {more}".split()]
    directory = tmp_path_factory.mktemp("constants")
    source, library = directory / "constants.c", directory / "constants.so"
    source.write_text("\n".join(['#include "mrc_abi.h"', *lines, ""]))
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{BPF}", source, "-o", library], check=True)
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ABI_VERSION", abi.ABI_VERSION),
        ("WIRE_VERSION", abi.WIRE_VERSION),
        ("WIRE_VERSION", MRC().version),
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
