# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrcctl trace without a network: the carriers of loopback probes, and the diagnosis from patterns of loss."""

from ipaddress import IPv6Address, IPv6Network
from typing import Any

import pytest

from mrcd.config import cluster_file
from mrcd.ctl.packets import diagnosis, faults, probe, trace, trace_probes
from mrcd.ctl.packets.exchange import LocalHost, Nic
from mrcd.ctl.packets.trace_probes import Node, TraceProbe
from mrcd.denials import targets
from mrcd.errors import MachineError, UsageError
from mrcd.fabric import topology
from tests.cluster_files import host
from tests.unit.trace_results import ME, PATH, PEER, T0, WITNESS, lose, parts_id, round_trips

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
    assert usids["out by T1 1, back by T1 0"] == ["4800", "8801", "4801", "8800", "4800", "c400"]
    assert usids["out by T1 0, back by T1 1"] == ["4800", "8800", "4801", "8801", "4800", "c400"]
    longest = {name: len(w.segments) for name, w in sent.items()}
    if encapsulation == "usid":  # six uSIDs in a carrier, the rest in a second one
        assert longest.pop("by T1 0 to T0 1, to T1 1 and back") == 2
        assert set(longest.values()) == {1}
    else:
        assert "by T1 0 to T0 1, to T1 1 and back" not in sent
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


@pytest.mark.parametrize(("broken", "suspects", "first"), SINGLE, ids=parts_id)
def test_single_faults_are_distinguished_where_possible(
    broken: set[str], suspects: list[str], first: str | None
) -> None:
    found = trace_probes.plan(PATH, WITNESS)
    said = diagnosis.diagnose(PATH, found, lose(found, broken))
    assert (list(said.suspects), said.first) == (suspects, first)
    assert ("cannot distinguish" in said.text) == (len(suspects) > 1)
    assert ("do not pass it" in said.text) == (first is None)


@pytest.mark.parametrize("broken", [b for b, s, _ in SINGLE if len(s) == 1], ids=parts_id)
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


# ---- what the verdict names ----

TARGETS = [
    ({"T1 2"}, "broken in plane 1: t1:1:2 (T1 2)"),
    ({"T0 1"}, "broken in plane 1: t0:1:1 (T0 1)"),
    ({"T0 0 → T1 2"}, "broken in plane 1: link:1:0:2 (T0 0 → T1 2)"),
    ({"T1 2 → T0 1", "T0 1 → T1 2"}, "broken in plane 1: link:1:1:2 (T1 2 – T0 1, both ways)"),
    (
        {"h1"},
        "broken in plane 1: one of nic:h1:1 (T0 1 → h1; h1 → T0 1; T0 1 – h1, both ways; h1), which these packets "
        "cannot distinguish",
    ),
    (
        {"h0 → T0 0"},
        "broken in plane 1: one of nic:h0:1 (h0 → T0 0; T0 0 → h0; h0 – T0 0, both ways) or t0:1:0 (T0 0), which these "
        "packets cannot distinguish",
    ),
]


@pytest.mark.parametrize(("broken", "text"), TARGETS, ids=parts_id)
def test_the_verdict_names_the_plane_and_the_targets(broken: set[str], text: str) -> None:
    found = trace_probes.plan(PATH, WITNESS)
    said = diagnosis.diagnose(PATH, found, lose(found, broken))
    assert said.text == text
    assert all(target in text for target in said.targets)
    for target in said.targets:
        assert str(targets.parse([target])) == target


def known(carrier: bool | None = True, linked: tuple[int, ...] = (0, 1), reachable: bool = True) -> list[faults.Known]:
    return trace.known_faults(PATH, "p1", carrier, {"reachable": reachable, "linked_planes": list(linked)})


def test_what_the_hosts_know_of_their_nics_is_named_alone() -> None:
    found = trace_probes.plan(PATH, WITNESS)
    own, far = lose(found, {"h0 → T0 0"}), lose(found, {"h1"})
    assert known() == []
    said = diagnosis.diagnose(PATH, found, own, known(carrier=False))
    assert (said.text, said.targets) == ("broken in plane 1: nic:h0:1: this host's p1 has no carrier", ("nic:h0:1",))
    assert said.on_path
    said = diagnosis.diagnose(PATH, found, own, known(carrier=None))
    assert said.text.endswith("this host's p1 does not exist")
    said = diagnosis.diagnose(PATH, found, far, known(linked=(0,)))
    assert said.text == "broken in plane 1: nic:h1:1: h1 says that it has no link in this plane"
    assert said.first == "h1"
    # Knowledge that cannot explain the losses, or is old, is left out.
    said = diagnosis.diagnose(PATH, found, lose(found, {"T1 2"}), known(linked=(0,)))
    assert said.targets == ("t1:1:2",)
    assert len(diagnosis.diagnose(PATH, found, far, known(linked=(0,), reachable=False)).suspects) == 4
    assert diagnosis.diagnose(PATH, found, lose(found, set()), known(linked=(0,))).text == "every hop answers"


def test_a_known_fault_is_named_beside_others() -> None:
    found = trace_probes.plan(PATH, WITNESS)
    said = diagnosis.diagnose(PATH, found, lose(found, {"T0 0 → T1 2", "h1"}), known(linked=(0,)))
    assert (said.suspects, said.targets) == ((), ("nic:h1:1",))
    assert said.text.startswith("broken in plane 1: no single fault explains the losses: there are several.")
    assert said.text.endswith("; nic:h1:1: h1 says that it has no link in this plane")


# ---- probe ----


def test_probes_that_could_not_be_sent_are_one_error() -> None:
    evs = [{"ev": n, "send_error": "longer than the MTU of the NIC"} for n in range(16)]
    with pytest.raises(MachineError, match=r"^no probe was sent: longer than the MTU of the NIC\n") as caught:
        probe.check_sent({"sent": 0, "evs": evs})
    assert "--size" in str(caught.value.hint)
    probe.check_sent({"sent": 1, "evs": evs})


# ---- the document ----


def document(
    found: list[TraceProbe],
    counts: dict[str, tuple[int, int]],
    rtts: dict[str, int] | None = None,
    facts: list[faults.Known] | None = None,
    error: str | None = None,
) -> dict[str, Any]:
    here, docs = plans()
    sending = trace.routes(here, docs[5], docs, found, 1)
    results = {
        t.name: {
            "sent": counts[t.name][0], "lost": counts[t.name][1], "received": counts[t.name][0] - counts[t.name][1],
            "loss_ratio": 0.0, "send_error": error, "duplicates": 0,
            **{f"rtt_{k}_ns": (rtts or {}).get(t.name, 20_000) for k in ("min", "avg", "max", "mdev")},
        }
        for t in found
    }  # fmt: skip
    head = {"host": "h0", "peer": "h1", "ev": 5, "plane": 1, "t1": 2, "state": "ASSUMED_BAD"}
    return head | trace.judged(PATH, found, sending, results, facts or [])


def test_the_exit_status_says_whether_the_path_works() -> None:
    found = trace_probes.plan(PATH, WITNESS)
    fine = lose(found, set())
    assert trace.exit_status([]) == 0
    assert trace.exit_status([document(found, fine)]) == 0
    assert trace.exit_status([document(found, lose(found, {"T1 2"}))]) == 1
    assert trace.exit_status([document(found, fine), document(found, lose(found, {"h1"}))]) == 1
    assert trace.exit_status([document(found, lose(found, {"T0 1 → T1 2"}))]) == 0  # not in the forward direction
    assert trace.exit_status([document(found, fine, round_trips(found, {"T1 2"}))]) == 1
    nothing = {t.name: (0, 0) for t in found}
    unsent = document(found, nothing, error="no first hop")
    assert (trace.exit_status([unsent]), unsent["verdict"]) == (2, "nothing was sent: no first hop")
    down = document(found, nothing, facts=known(carrier=False), error="Network is down")
    assert (trace.exit_status([down]), down["targets"]) == (1, ["nic:h0:1"])
    assert down["verdict"] == "broken in plane 1: nic:h0:1: this host's p1 has no carrier"


def test_a_slow_hop_is_marked() -> None:
    found = trace_probes.plan(PATH, WITNESS)
    doc = document(found, lose(found, set()), round_trips(found, {"T1 2 → T0 1"}))
    assert [h["slow"] for h in doc["hops"]] == [False, False, True, True]
    assert (doc["suspects"], doc["targets"]) == (["T1 2 → T0 1"], ["link:1:1:2"])
    assert doc["extra_delay_ns"] == pytest.approx(5e6, rel=0.05)
    text = trace.lines(doc, colour=False)
    assert [line.split()[:2] for line in text[3:7]] == [["1", "20"], ["2", "20"], ["3", "slow"], ["4", "slow"]]
    assert text[-1].startswith("slow in plane 1: link:1:1:2 (T1 2 → T0 1): each pass takes 5.0 ms more")


def test_failed_evs_are_traced_together() -> None:
    found = trace_probes.plan(PATH, WITNESS)
    broken = document(found, lose(found, {"T1 2"}))
    other = document(found, lose(found, {"h1"})) | {"ev": 4}
    doc = trace.merged("h0", "h1", [broken, broken | {"ev": 11}, other], 9)
    assert [(f["evs"], f["targets"]) for f in doc["faults"]] == [([5, 11], ["t1:1:2"]), ([4], ["nic:h1:1"])]
    lines = trace.merged_lines(doc, colour=False)
    assert lines[0] == "EVs 5, 11: broken in plane 1: t1:1:2 (T1 2)"
    assert lines[2:] == ["6 more EVs have failed, and were not traced", "`mrcctl trace h1 --ev 5` shows the hops"]
    none = trace.merged("h0", "h1", [], 0)
    assert trace.merged_lines(none, colour=False)[0].startswith("no EV to h1 has failed")
    _, docs = plans()
    docs[3]["state"] = "ASSUMED_BAD"
    assert trace.failed_evs(docs, "h1") == [3]


@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_terminal_wraps_nothing(width: int) -> None:
    found = trace_probes.plan(PATH, WITNESS)
    text = trace.lines(document(found, lose(found, {"h1"})), colour=False, width=width)
    assert max(map(len, text)) <= width
    assert any("no room for" in line for line in text)
