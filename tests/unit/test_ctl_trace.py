# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrcctl trace without a network: the carriers of loopback probes, and the diagnosis from patterns of loss."""

from ipaddress import IPv6Address, IPv6Network
from typing import Any

import pytest

from mrcd.config import cluster_file
from mrcd.ctl.packets import diagnosis, trace, trace_probes
from mrcd.ctl.packets.exchange import LocalHost, Nic
from mrcd.ctl.packets.trace_probes import Node, TraceProbe
from mrcd.errors import UsageError
from mrcd.fabric import topology
from tests.cluster_files import host

ME, T0, T1, FAR, PEER = (
    Node("h0", 0xC400),
    Node("T0 0", 0x4800),
    Node("T1 2", 0x8802),
    Node("T0 1", 0x4801),
    Node("h1", None),
)
PATH = [ME, T0, T1, FAR, PEER]
WITNESS = Node("T1 0", 0x8800)
BLOCK = IPv6Network("5f00::/32")


def plans(encapsulation: str = "usid") -> tuple[LocalHost, list[dict[str, Any]]]:
    """Returns host h0's own data, and its paths to h1, as the API gives them."""
    text = (
        f'[cluster]\nplanes = 2\nt0s = 2\nt1s = 3\nevs_per_peer = 6\nencapsulation = "{encapsulation}"\n'
        + host(0)
        + host(1, t0=1, port=7)
    )
    plan = topology.plan(cluster_file.parse(text), "h0")
    nics = {
        p: Nic(p, f"p{p}", p + 2, plan.addresses[p], plan.sids[p], bytes(6)) for p in range(plan.config.cluster.planes)
    }
    docs = [
        {
            "peer": "h1",
            "ev": e.ev,
            "plane": e.plane,
            "t1": e.t1,
            "state": "GOOD",
            "segments": [str(s) for s in e.segments],
        }
        for e in plan.peers[0].evs
    ]
    return LocalHost("h0", 0, encapsulation, 4797, 9100, nics), docs


def test_uSIDs_of_segments() -> None:
    full = IPv6Address("5f00:0:4000:8001:4001:8001:4000:c000")
    assert trace_probes.usids_of([full]) == [0x4000, 0x8001, 0x4001, 0x8001, 0x4000, 0xC000]
    assert trace_probes.usids_of([IPv6Address("5f00:0:4000::"), IPv6Address("5f00:0:c000::")]) == [0x4000, 0xC000]
    assert trace_probes.usids_of([IPv6Address("5f00::")]) == []


@pytest.mark.parametrize("encapsulation", ["usid", "srh"])
def test_the_carriers_of_each_hop(encapsulation: str) -> None:
    here, docs = plans(encapsulation)
    path = docs[4]  # plane 1, T1 1
    nodes, found = trace.plan(here, "h1", path, docs)
    sent = {str(w.key): w for w in trace.routes(here, path, docs, found, 1)}
    usids = {name: [f"{u:04x}" for u in trace_probes.usids_of(w.segments)] for name, w in sent.items()}
    assert [n.name for n in nodes] == ["h0", "T0 0", "T1 1", "T0 1", "h1"]
    assert usids["T0 0"] == ["4800", "c400"]
    assert usids["T1 1"] == ["4800", "8801", "4800", "c400"]
    assert usids["T0 1"] == ["4800", "8801", "4801", "8801", "4800", "c400"]
    assert usids["h1"] == ["4800", "8801", "4801", "c407"]  # the peer's port, as its data
    assert usids["T1 1 there, T1 0"] == ["4800", "8801", "4801", "8800", "4800", "c400"]
    assert usids["T1 1 back, T1 0"] == ["4800", "8800", "4801", "8801", "4800", "c400"]
    longest = {name: len(w.segments) for name, w in sent.items()}
    if encapsulation == "usid":  # six uSIDs in a carrier, the rest in a second one
        assert longest.pop("T1 1 from the far T0, T1 0") == 2
        assert set(longest.values()) == {1}
    else:
        assert "T1 1 from the far T0, T1 0" not in sent
        assert max(longest.values()) == 6
    # The switches return a reply to this host itself; only the far host gets a request.
    assert {(w.kind, w.receiver) for n, w in sent.items() if not n.startswith("h1")} == {(3, 0)}
    assert {(w.kind, w.receiver) for n, w in sent.items() if n.startswith("h1")} == {(2, 1)}


def test_the_last_probe_takes_the_path_of_data() -> None:
    here, docs = plans()
    for path in docs:
        _, found = trace.plan(here, "h1", path, docs)
        ways = {w.key: w for w in trace.routes(here, path, docs, found, 1)}
        assert [str(s) for s in ways["h1"].segments] == path["segments"]


def test_a_witness_is_another_good_t1_of_the_same_plane() -> None:
    _, docs = plans()
    usids = trace_probes.usids_of([IPv6Address(docs[0]["segments"][0])])
    assert trace.witness(docs, docs[0], usids) == Node("T1 1", 0x8001)
    docs[1]["state"] = "ASSUMED_BAD"
    assert trace.witness(docs, docs[0], usids) == Node("T1 2", 0x8002)
    assert trace.witness(docs[:1] + docs[3:], docs[0], usids) is None


def test_untraceable_paths_are_errors() -> None:
    here, docs = plans("ecmp")
    with pytest.raises(UsageError, match="with encapsulation ecmp"):
        trace.plan(here, "h1", docs[0], docs)
    with pytest.raises(UsageError, match="this path is 4000 · 8000"):
        trace_probes.path_nodes([0x4000, 0x8000], "h0", 0xC000, "h1")
    with pytest.raises(UsageError, match="no uSIDs"):
        trace_probes.path_nodes([], "h0", 0xC000, "h1")


# ---- diagnosis ----


def lose(found: list[TraceProbe], parts: set[str], ratio: float = 1.0, sent: int = 20) -> dict[str, tuple[int, int]]:
    """Returns the counts if each passage of `parts` loses this share."""
    counts = {}
    for t in found:
        times = sum(n for part, n in t.passes.items() if part in parts)
        counts[t.name] = (sent, round(sent * (1 - (1 - ratio) ** times)))
    return counts


SINGLE = [
    ({"T1 2"}, ["T1 2"], "T1 2"),
    ({"T0 1"}, ["T0 1"], "T0 1"),
    ({"T0 0 → T1 2"}, ["T0 0 → T1 2"], "T1 2"),
    ({"T1 2 → T0 0"}, ["T1 2 → T0 0"], None),
    ({"T1 2 → T0 1"}, ["T1 2 → T0 1"], "T0 1"),
    ({"T0 1 → T1 2"}, ["T0 1 → T1 2"], None),
    ({"T0 0 → T1 2", "T1 2 → T0 0"}, ["T0 0 – T1 2, both ways"], "T1 2"),
    ({"T1 2 → T0 1", "T0 1 → T1 2"}, ["T1 2 – T0 1, both ways"], "T0 1"),
    ({"h1"}, ["T0 1 → h1", "h1 → T0 1", "T0 1 – h1, both ways", "h1"], "h1"),
    ({"h0 → T0 0"}, ["h0 → T0 0", "T0 0 → h0", "h0 – T0 0, both ways", "T0 0"], "T0 0"),
    ({"T0 0 → T1 0"}, ["T0 0 → T1 0", "T1 0 → T0 1"], None),  # the other T1's own
]


@pytest.mark.parametrize(("broken", "suspects", "first"), SINGLE, ids=lambda x: str(x))
def test_single_faults_are_distinguished_where_possible(
    broken: set[str], suspects: list[str], first: str | None
) -> None:
    found = trace_probes.plan(PATH, WITNESS)
    said = diagnosis.diagnose(PATH, found, lose(found, broken))
    assert (list(said.suspects), said.first) == (suspects, first)
    assert ("cannot distinguish" in said.text) == (len(suspects) > 1)
    assert ("do not pass it" in said.text) == (first is None)


@pytest.mark.parametrize("broken", [b for b, s, _ in SINGLE if len(s) == 1], ids=str)
def test_partial_losses_are_distinguished(broken: set[str]) -> None:
    found = trace_probes.plan(PATH, WITNESS)
    said = diagnosis.diagnose(PATH, found, lose(found, broken, 0.2, 200))
    assert set(said.suspects) == set(diagnosis.diagnose(PATH, found, lose(found, broken)).suspects)


def test_without_a_second_t1_fewer_faults_are_distinguished() -> None:
    found = trace_probes.plan(PATH, None)
    assert [t.name for t in found] == ["T0 0", "T1 2", "T0 1", "h1"]
    said = diagnosis.diagnose(PATH, found, lose(found, {"T1 2"}))
    assert set(said.suspects) == {"T0 0 → T1 2", "T0 0 – T1 2, both ways", "T1 2"}


def test_a_path_under_one_t0() -> None:
    path = [ME, T0, PEER]
    found = trace_probes.plan(path, WITNESS)
    assert [t.name for t in found] == ["T0 0", "h1"]
    assert diagnosis.diagnose(path, found, lose(found, {"h1"})).first == "h1"


def test_two_faults_are_not_explained_as_one() -> None:
    found = trace_probes.plan(PATH, WITNESS)
    said = diagnosis.diagnose(PATH, found, lose(found, {"T0 0 → T1 2", "T0 1 → T1 0"}))
    assert (said.suspects, said.first) == ((), "T1 2")
    assert "there are several. The first hop that fails is T1 2, behind T0 0" in said.text


@pytest.mark.parametrize("lost", [0, 1])
def test_a_single_lost_packet_is_no_fault(lost: int) -> None:
    found = trace_probes.plan(PATH, WITNESS)
    counts = {t.name: (20, 0) for t in found} | {"T1 2": (20, lost)}
    assert diagnosis.diagnose(PATH, found, counts).text == "every hop answers"


def test_nothing_sent_is_no_verdict() -> None:
    found = trace_probes.plan(PATH, WITNESS)
    assert diagnosis.diagnose(PATH, found, {t.name: (0, 0) for t in found}).suspects == ()
