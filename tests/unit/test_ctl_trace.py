# SPDX-License-Identifier: BSD-2-Clause
"""Tests mrcctl trace without a network: the carriers of its probes, and how losses and round trips locate a fault."""

from ipaddress import IPv6Address, IPv6Network
from typing import Any

import pytest

from mrcd.config import cluster_file
from mrcd.ctl.packets import trace, trace_probes
from mrcd.ctl.packets.locate import Known, known_faults, locate_delay, locate_loss, of_diagnosis
from mrcd.ctl.packets.trace_probes import Node, TraceProbe
from mrcd.denials import targets
from mrcd.errors import UsageError
from mrcd.fabric import topology
from mrcd.fabric.srv6 import hops
from mrcd.probes.exchange import LocalHost, Nic
from tests.cluster_files import host

BLOCK = IPv6Network("5f00::/32")
ME, T0, T1, FAR, PEER = PATH = [
    Node("h0", "nic:h0:1", 0xC400),
    Node("T0 0", "t0:1:0", 0x4800),
    Node("T1 2", "t1:1:2", 0x8802),
    Node("T0 1", "t0:1:1", 0x4801),
    Node("h1", "nic:h1:1"),
]
FOUND = trace_probes.plan(PATH, Node("T1 0", "t1:1:0", 0x8800))


def parts_id(value: object) -> str:
    """Returns the id of a parameter: parts in one order, so that all processes give a test the same name."""
    return " and ".join(sorted(value)) if isinstance(value, set) else str(value)[:40]


def passes(probe: TraceProbe, parts: set[str]) -> int:
    return sum(n for part, n in probe.passes.items() if part in parts)


def lose(parts: set[str], ratio: float = 1.0, sent: int = 20) -> dict[str, tuple[int, int]]:
    """Returns the counts if each passage of `parts` loses this share."""
    return {t.name: (sent, round(sent * (1 - (1 - ratio) ** passes(t, parts)))) for t in FOUND}


def round_trips(slow: set[str], extra_us: float = 5000) -> dict[str, int]:
    """Returns the least round trips in ns if each passage of `slow` takes so much more; the peer adds 30 µs."""
    return {
        t.name: round(1000 * (4 * (len(t.nodes) - 1) * (1 + t.is_answered) + 20 + 30 * t.is_answered))
        + round(1000 * extra_us * passes(t, slow))
        for t in FOUND
    }


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


@pytest.mark.parametrize("encapsulation", ["usid", "srh"])
def test_the_carriers_of_each_hop(encapsulation: str) -> None:
    here, docs = plans(encapsulation)
    path = docs[4]  # plane 1, T1 1
    nodes, found = trace.plan(here, "h1", path, docs)
    sent = {str(w.key): w for w in trace.routes(here, path, docs, found, 1)}
    usids = {name: [f"{h.usid:04x}" for h in hops(w.segments, BLOCK)] for name, w in sent.items()}
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
    assert trace.witness(docs, docs[0], BLOCK) == Node("T1 1", "t1:0:1", 0x8001)
    docs[1]["state"] = "ASSUMED_BAD"
    assert trace.witness(docs, docs[0], BLOCK) == Node("T1 2", "t1:0:2", 0x8002)
    assert trace.witness(docs[:1] + docs[3:], docs[0], BLOCK) is None


def test_untraceable_paths_are_errors() -> None:
    here, docs = plans("ecmp")
    with pytest.raises(UsageError, match="with encapsulation ecmp"):
        trace.plan(here, "h1", docs[0], docs)
    carriers = ("5f00:0:4000:8000::", "4000 · 8000"), ("fd10::1", "fd10::1"), ("5f00::", "no uSIDs")
    for carrier, message in carriers:
        with pytest.raises(UsageError, match=f"this path is {message}"):
            trace_probes.path_nodes(hops([IPv6Address(carrier)], BLOCK), "h0", 0xC000, "h1")


# ---- losses and round trips ----

ALONE = "broken in plane 1: "
# What loses packets, the suspects, the first hop that fails, and the verdict.
LOSSES = [
    ({"T1 2"}, ["T1 2"], "T1 2", f"{ALONE}t1:1:2 (T1 2)"),
    ({"T0 1"}, ["T0 1"], "T0 1", f"{ALONE}t0:1:1 (T0 1)"),
    ({"T0 0 → T1 2"}, ["T0 0 → T1 2"], "T1 2", f"{ALONE}link:1:0:2 (T0 0 → T1 2)"),
    ({"T1 2 → T0 0"}, ["T1 2 → T0 0"], None, "link:1:0:2 (T1 2 → T0 0). Packets to h1 do not pass it"),
    ({"T1 2 → T0 1"}, ["T1 2 → T0 1"], "T0 1", "link:1:1:2"),
    ({"T0 1 → T1 2"}, ["T0 1 → T1 2"], None, "this path works"),
    ({"T0 0 → T1 2", "T1 2 → T0 0"}, ["T0 0 – T1 2, both ways"], "T1 2", "link:1:0:2"),
    (
        {"T1 2 → T0 1", "T0 1 → T1 2"}, ["T1 2 – T0 1, both ways"], "T0 1",
        f"{ALONE}link:1:1:2 (T1 2 – T0 1, both ways)",
    ),
    (
        {"h1"}, ["T0 1 → h1", "h1 → T0 1", "T0 1 – h1, both ways", "h1"], "h1",
        f"{ALONE}one of nic:h1:1 (T0 1 → h1; h1 → T0 1; T0 1 – h1, both ways; h1), which these packets cannot "
        "distinguish",
    ),
    (
        {"h0 → T0 0"}, ["h0 → T0 0", "T0 0 → h0", "h0 – T0 0, both ways", "T0 0"], "T0 0",
        f"{ALONE}one of nic:h0:1 (h0 → T0 0; T0 0 → h0; h0 – T0 0, both ways) or t0:1:0 (T0 0), which these packets "
        "cannot distinguish",
    ),
    ({"T0 0 → T1 0"}, ["T0 0 → T1 0", "T1 0 → T0 1"], None, "do not pass it"),  # the other T1's own
    (
        {"T0 0 → T1 2", "T0 1 → T1 0"}, [], "T1 2",
        f"{ALONE}no single fault explains the losses: there are several. The first hop that fails is T1 2, behind T0 0",
    ),
    (set(), [], None, "every hop answers"),
]  # fmt: skip


@pytest.mark.parametrize(("broken", "suspects", "first", "text"), LOSSES, ids=parts_id)
def test_what_loses_packets_is_located(broken: set[str], suspects: list[str], first: str | None, text: str) -> None:
    said = locate_loss(PATH, FOUND, lose(broken))
    assert ([s.name for s in said.suspects], said.first) == (suspects, first)
    assert text in said.text
    assert [str(targets.parse([t])) for t in said.targets] == list(said.targets)
    assert all(target in said.text for target in said.targets)
    if len(suspects) == 1:
        assert locate_loss(PATH, FOUND, lose(broken, 0.2, 200)).suspects == said.suspects


def test_without_a_second_t1_fewer_faults_are_distinguished() -> None:
    found, counts = trace_probes.plan(PATH, None), lose({"T1 2"})
    assert [t.name for t in found] == ["T0 0", "T1 2", "T0 1", "h1"]
    said = locate_loss(PATH, found, {t.name: counts[t.name] for t in found})
    assert {s.name for s in said.suspects} == {"T0 0 → T1 2", "T0 0 – T1 2, both ways", "T1 2"}
    near = trace_probes.plan([ME, T0, PEER], Node("T1 0", "t1:1:0", 0x8800))
    assert [t.name for t in near] == ["T0 0", "h1"]
    assert locate_loss([ME, T0, PEER], near, {"T0 0": (20, 0), "h1": (20, 20)}).first == "h1"


@pytest.mark.parametrize(("sent", "lost"), [(20, 1), (0, 0)])
def test_a_single_lost_packet_is_no_fault(sent: int, lost: int) -> None:
    counts = {t.name: (sent, 0) for t in FOUND} | {"T1 2": (sent, lost)}
    assert locate_loss(PATH, FOUND, counts).text == "every hop answers"


@pytest.mark.parametrize("extra_us", [1000, 5000, 200_000])
@pytest.mark.parametrize(
    ("slow", "target"),
    [
        ({"T1 2"}, "t1:1:2"), ({"T0 0 → T1 2"}, "link:1:0:2"), ({"T1 2 → T0 1"}, "link:1:1:2"),
        ({"T0 1 → T1 2"}, "link:1:1:2"), ({"T1 2 → T0 1", "T0 1 → T1 2"}, "link:1:1:2"), ({"T0 1"}, "t0:1:1"),
        ({"T0 1 → h1"}, "nic:h1:1"), ({"h0 → T0 0"}, "nic:h0:1"),
    ],
    ids=parts_id,
)  # fmt: skip
def test_a_slow_part_is_located(slow: set[str], target: str, extra_us: float) -> None:
    said = locate_delay(PATH, FOUND, round_trips(slow, extra_us))
    assert said is not None
    assert said.targets == (target,)
    assert any(s.parts == slow for s in said.suspects)
    assert said.text.startswith("slow in plane 1: ")
    assert f"each pass takes {extra_us / 1000:.1f} ms more than other links" in said.text
    assert said.on_path == ("do not pass it" not in said.text) == (slow != {"T0 1 → T1 2"})


def test_equal_links_are_not_slow() -> None:
    far_away = {t.name: 20_000 + 4_000_000 * (len(t.nodes) - 1) * (1 + t.is_answered) for t in FOUND}  # long cables
    for rtts in (round_trips({"T1 2"}, 0), round_trips({"T1 2"}, 100), far_away, {}, {"T0 0": 5_000_000}):
        assert locate_delay(PATH, FOUND, rtts) is None


def test_two_slow_parts_are_not_explained_as_one() -> None:
    said = locate_delay(PATH, FOUND, round_trips({"T1 2 → T0 1", "T1 0 → T0 0"}))
    assert said is not None
    assert (said.suspects, said.on_path) == ((), True)
    assert "several links or switches" in said.text


# ---- what the hosts know ----

NO_CARRIER = known_faults(PATH, "p1", False, {"reachable": True, "linked_planes": [0, 1]})
NO_NIC = known_faults(PATH, "p1", None, {"reachable": False, "linked_planes": [0]})  # the peer's word is old
NO_LINK = known_faults(PATH, "p1", True, {"reachable": True, "linked_planes": [0]})
SAYS = "nic:h1:1: h1 says that it has no link in this plane"


def of_cause(**other: str) -> list[Known]:
    cause = {"target": "peer:h1", "confidence": "likely", "severity": "critical", "sentence": "h1 is down"}
    return of_diagnosis(PATH, [cause | other])


@pytest.mark.parametrize(
    ("broken", "known", "text"),
    [
        ({"h0 → T0 0"}, NO_CARRIER, f"{ALONE}nic:h0:1: this host's p1 has no carrier"),
        ({"h0 → T0 0"}, NO_NIC, f"{ALONE}nic:h0:1: this host's p1 does not exist"),
        ({"h1"}, NO_LINK, f"{ALONE}{SAYS}"),
        ({"h1"}, of_cause(), f"{ALONE}peer:h1: h1 is down"),
        ({"h1"}, of_cause(target="nic:h1:1"), f"{ALONE}nic:h1:1: h1 is down"),
        # Knowledge that cannot explain the losses, or is not sure, is left out.
        ({"T1 2"}, NO_LINK, f"{ALONE}t1:1:2 (T1 2)"),
        ({"h1"}, of_cause(confidence="ambiguous") + of_cause(severity="ok"), f"{ALONE}one of nic:h1:1 (T0 1 → h1"),
        (set(), NO_LINK, "every hop answers"),
    ],
    ids=range(8),
)
def test_what_the_hosts_know_of_their_nics_is_named_alone(broken: set[str], known: list[Known], text: str) -> None:
    assert locate_loss(PATH, FOUND, lose(broken), known).text.startswith(text)


def test_a_known_fault_is_named_beside_others() -> None:
    said = locate_loss(PATH, FOUND, lose({"T0 0 → T1 2", "h1"}), NO_LINK)
    assert (said.suspects, said.targets) == ((), ("nic:h1:1",))
    assert said.text.startswith(f"{ALONE}no single fault explains the losses: there are several.")
    assert said.text.endswith(f"; {SAYS}")


# ---- the document ----


def document(
    counts: dict[str, tuple[int, int]],
    rtts: dict[str, int] | None = None,
    known: list[Known] | None = None,
    error: str | None = None,
) -> dict[str, Any]:
    here, docs = plans()
    sending = trace.routes(here, docs[5], docs, FOUND, 1)
    results = {
        t.name: {
            "sent": counts[t.name][0], "lost": counts[t.name][1], "received": counts[t.name][0] - counts[t.name][1],
            "loss_ratio": 0.0, "send_error": error, "duplicates": 0,
            **{f"rtt_{k}_ns": (rtts or {}).get(t.name, 20_000) for k in ("min", "avg", "max", "mdev")},
        }
        for t in FOUND
    }  # fmt: skip
    head = {"host": "h0", "peer": "h1", "ev": 5, "plane": 1, "t1": 2, "state": "ASSUMED_BAD"}
    return head | trace.judged(PATH, FOUND, sending, results, known or [])


FINE, NOTHING_SENT = lose(set()), {t.name: (0, 0) for t in FOUND}
DOWN = f"{ALONE}nic:h0:1: this host's p1 has no carrier"


@pytest.mark.parametrize(
    ("documents", "status", "verdict"),
    [
        ([document(FINE)], 0, "every hop answers"),
        ([document(lose({"T1 2"}))], 1, f"{ALONE}t1:1:2"),
        ([document(lose({"h1"})), document(FINE)], 1, ALONE),
        ([document(lose({"T0 1 → T1 2"}))], 0, ALONE),  # not in the forward direction
        ([document(FINE, round_trips({"T1 2"}))], 1, "slow in plane 1"),
        ([document(NOTHING_SENT, error="no first hop")], 2, "nothing was sent: no first hop"),
        ([document(NOTHING_SENT, known=NO_CARRIER, error="Network is down")], 1, DOWN),
    ],
    ids=range(7),
)
def test_the_exit_status_says_whether_the_path_works(documents: list[Any], status: int, verdict: str) -> None:
    assert trace.exit_status(documents) == status
    assert documents[0]["verdict"].startswith(verdict)
    assert documents[0]["targets"] == ["nic:h0:1"] or verdict != DOWN


def test_a_slow_hop_is_marked() -> None:
    doc = document(FINE, round_trips({"T1 2 → T0 1"}))
    assert [h["slow"] for h in doc["hops"]] == [False, False, True, True]
    assert (doc["suspects"], doc["targets"]) == (["T1 2 → T0 1"], ["link:1:1:2"])
    assert doc["extra_delay_ns"] == pytest.approx(5e6, rel=0.05)
    text = trace.lines(doc, colour=False)
    assert [line.split()[:2] for line in text[3:7]] == [["1", "20"], ["2", "20"], ["3", "slow"], ["4", "slow"]]
    assert text[-1].startswith("slow in plane 1: link:1:1:2 (T1 2 → T0 1): each pass takes 5.0 ms more")


def test_failed_evs_are_traced_together() -> None:
    broken = document(lose({"T1 2"}))
    other = document(lose({"h1"})) | {"ev": 4}
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
