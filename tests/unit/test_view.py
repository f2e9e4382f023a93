# SPDX-License-Identifier: BSD-2-Clause
"""Tests the documents that users see, made from tables."""

import json
import os
from collections import Counter
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mrcd.config import cluster_file
from mrcd.ctl.commands import offline_detach
from mrcd.ctl.commands.status import status_lines
from mrcd.daemon import write_tables
from mrcd.errors import MachineError, UsageError
from mrcd.fabric import topology
from mrcd.kernel import abi, pinned
from mrcd.kernel.enums import EvState, Reason
from mrcd.net import rps
from mrcd.view import documents as view
from mrcd.view import paths, peers, running_file
from tests.cluster_files import host as host_table
from tests.unit.arrays import TEXT, Arrays

S, MS = 10**9, 10**6
NOW_NS = 10**6 * S


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the clock that documents read."""
    monkeypatch.setattr("time.monotonic_ns", lambda: NOW_NS)


SENT = {"state": EvState.GOOD, "reason": Reason.HEALED, "skip_reason": Reason.CONGESTED, "flaps": 3}
SENT |= {"tx_packets": 1000, "tx_bytes": 99_000, "probe_seq": 40}
ARRIVED = {"judged": 900, "lost_before": 5, "deficit": 4, "rtt_ns": 30_000, "replies": 39, "rx_ce": 6, "skips": 7}


class Host(Arrays):
    """h0's tables, with counts of the programs on EV 5 to h1."""

    def __init__(self) -> None:
        super().__init__(4, 8)
        self.plan = topology.plan(cluster_file.parse(TEXT), "h0")
        write_tables.write_peers(cast(pinned.Tables, self), self.plan, lambda row: None)
        self.view = view.View(cast(pinned.Tables, self), self.plan, [], Path("/nowhere"))
        self.now = NOW_NS
        for table, fields in ((self.evs, SENT), (self.path_stats, ARRIVED)):
            for name, value in fields.items():
                table[name][1, 5] = value

    def probes_sent(self) -> dict[str, int]:
        return {"idle": 3}

    def unsent_packets(self) -> list[int]:
        return [0] * abi.MAX_PLANES

    def fill(self) -> dict[str, tuple[int, int]]:
        return {"peers": (3, 4)}

    def path(self, **fields: int) -> dict[str, Any]:
        """Returns the document of EV 5 to h1, after its record got other values."""
        for name, value in fields.items():
            table = self.evs if name in abi.EV.names else self.path_stats  # type: ignore[operator]
            table[name][1, 5] = value
        return next(p for p in self.view.paths() if (p["peer"], p["ev"]) == ("h1", 5))


AGO = 90 * S  # since when a state is
BAD: dict[str, int] = {
    "state": EvState.ASSUMED_BAD,
    "state_since_ns": NOW_NS - 60 * S,
    "loss_ns": NOW_NS - S,
    "good": 4,
}
# Fields of an EV's records, and what its document has.
PATHS: list[tuple[dict[str, int], dict[str, Any]]] = [
    ({}, {
        "tx_packets": 1000, "rx_packets": 891, "lost_packets": 9, "loss_ratio": 0.01, "rtt_ns": 30_000,
        "ce_packets": 6, "skips": 7, "flaps": 3, "last_tx_s": None, "since_s": None, "reason": "healed",
    }),
    ({"last_tx_ns": NOW_NS - 2 * S}, {"last_tx_s": 2}),
    ({"judged": 3}, {"lost_packets": 3, "rx_packets": 0}),  # the programs write while this reads
    # A skipped EV has its own start and its own reason.
    ({"state_since_ns": NOW_NS - AGO, "lag_ns": NOW_NS - 2 * S}, {"since_s": 90}),
    ({"state": EvState.SKIP, "state_since_ns": NOW_NS - AGO, "lag_ns": NOW_NS - 2 * S},
     {"since_s": 2, "reason": "congested"}),
    ({"state": EvState.SKIP, "state_since_ns": NOW_NS - AGO, "skip_reason": Reason.LAGGING},
     {"since_s": None, "reason": "lagging"}),
    # The next probe: an EV in use has none, it is probed in its turn.
    ({"probe_after_ns": 0}, {"next_probe_s": None}),
    *(({"state": state, "probe_after_ns": NOW_NS + 60 * S}, {"next_probe_s": 60})
      for state in (EvState.ASSUMED_BAD, EvState.UNKNOWN, EvState.DENIED)),
    ({"state": EvState.DENIED, "probe_after_ns": 1}, {"next_probe_s": 0, "rtt_ns": 30_000}),
    # The hold-down that is left, of 4 s after the third flap; a failed path has no round trip.
    (BAD | {"state": EvState.GOOD}, {"hold_down_s": None}),
    (BAD, {"hold_down_s": 3, "rtt_ns": None}),
    (BAD | {"loss_ns": NOW_NS - 60 * S}, {"hold_down_s": 0}),
    (BAD | {"state_since_ns": NOW_NS - 2 * S, "loss_ns": 0}, {"hold_down_s": 2}),
    (BAD | {"good": 0, "loss_ns": NOW_NS - 60 * S}, {"hold_down_s": 4}),  # it does not decrease
    (BAD | {"good": 0, "state_since_ns": NOW_NS - 2 * S, "loss_ns": 0, "lag_ns": NOW_NS}, {"hold_down_s": 2}),  # late?
    *(({"weight": weight}, {"weight": weight / 8}) for weight in (1, 2, 4, 8)),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "shown"), PATHS, ids=range(len(PATHS)))
def test_the_document_of_a_path(fields: dict[str, int], shown: dict[str, Any]) -> None:
    found = Host().path(**fields)
    assert {name: found[name] for name in shown} == shown


@pytest.mark.parametrize(
    ("before", "replaced_hosts"),
    [
        ({}, set()),  # nothing is known
        ({0: "h0", 1: "h1", 2: "h2", 3: "h3"}, set()),
        ({0: "h0", 1: "old", 2: "h2", 3: "h3"}, {1}),
        ({0: "h0", 1: "h2", 2: "h1", 3: "h3"}, {1, 2}),
        ({0: "h0", 1: "h1", 2: "h2", 9: "h3"}, set()),  # the same host
        ({0: "h0", 1: "h1", 2: "h2", 9: "old"}, {3}),
    ],
)
def test_unknown_hosts_are_found(before: dict[int, str], replaced_hosts: set[int]) -> None:
    assert running_file.replaced_hosts(before, Host().plan) == replaced_hosts


@pytest.mark.parametrize(
    ("wanted", "message", "hint"),
    [
        ({"peer": "h9"}, "there is no peer 'h9'", "peers: h1, h2, h3"),
        ({"plane": 2}, "there is no plane 2", "planes: 0 to 1"),
    ],
)
def test_an_unknown_peer_or_plane_is_an_error(wanted: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        Host().view.paths(**wanted)
    assert error.value.hint == hint


def test_hops_only_where_they_are_asked_for() -> None:
    view = Host().view
    assert "hops" not in view.paths()[0]
    assert [h["kind"] for h in view.paths(peer="h1", decode=True)[0]["hops"]] == ["t0", "t1", "t0", "host"]


def test_usable_evs_are_bits_by_ev() -> None:
    h = Host()
    words = np.zeros(abi.EV_WORDS, np.uint64)
    words[0] = 1 << 5
    (peer,) = (p for p in h.plan.peers if p.host.name == "h1")
    assert [ev for ev, on in paths.usable_evs(peer, words).items() if on] == [5]
    h.peers["usable"][1] = words
    assert h.path()["usable"]
    assert next(p for p in h.view.peers() if p["peer"] == "h1")["usable_evs"] == 1


def test_a_peer_names_its_refused_packets_and_the_last_tick_its_age() -> None:
    h = Host()
    assert h.view.tick_age_s() is None
    h.clock["began_ns"] = h.now - 5 * S
    assert h.view.tick_age_s() == 5
    h.peers["refused"][1], h.evs["state"][1, 5] = 6, EvState.ASSUMED_BAD
    assert {p["peer"]: p["refused_packets"] for p in h.view.peers()} == {"h1": 6, "h2": 0, "h3": 0}
    assert next(p for p in h.view.peers() if p["peer"] == "h1")["rtt_ns"] is None


def test_peers_sum_up_what_is_configured() -> None:
    """Compares with sums EV by EV, of tables with random contents."""
    h, random = Host(), np.random.default_rng(4)
    for table in (h.evs, h.path_stats):
        for name in table.dtype.names or ():
            if table.dtype[name].kind == "u" and name not in ("configured", "state"):
                table[name] = random.integers(0, 1 << min(40, 8 * table.dtype[name].itemsize), table[name].shape)
    h.evs["state"] = random.integers(0, len(EvState), h.evs.shape)
    h.evs["configured"] &= random.integers(0, 2, h.evs.shape, np.uint8)
    h.evs["configured"][2] = 0
    h.path_stats["replies"] *= random.integers(0, 2, h.path_stats.shape, np.uint32)
    h.peers["plane_mask"][1:], h.peers["usable"][:, 0], h.peers["heard_ns"][3] = (1, 2, 3), 0xA5, h.now
    found = {p["host_id"]: p for p in h.view.peers()}
    assert json.loads(json.dumps(list(found.values()))) == list(found.values())
    assert [found[i]["linked_planes"] for i in (1, 2, 3)] == [[0], [1], [0, 1]]
    assert [(found[i]["reachable"], found[i]["status"]) for i in (2, 3)] == [(False, "unknown"), (True, "attached")]
    for row, p in found.items():
        there = [ev for ev in range(8) if h.evs["configured"][row, ev]]
        evs, path_stats = ([table[row, ev] for ev in there] for table in (h.evs, h.path_stats))
        sent = [int(stats["judged"]) for stats in path_stats]
        lost = [min(int(x["lost_before"]) + int(x["deficit"]), n) for x, n in zip(path_stats, sent, strict=True)]
        unmeasured = (EvState.UNKNOWN, EvState.ASSUMED_BAD)
        rtts = [
            int(stats["rtt_ns"])
            for stats, e in zip(path_stats, evs, strict=True)
            if stats["replies"] and e["state"] not in unmeasured
        ]
        assert p["states"] == dict(Counter(EvState(int(e["state"])).name for e in evs))
        for name in ("tx_packets", "tx_bytes"):
            assert p[name] == sum(int(e[name]) for e in evs)
        assert (p["rx_packets"], p["lost_packets"]) == (sum(sent) - sum(lost), sum(lost))
        assert p["loss_ratio"] == (sum(lost) / sum(sent) if sent else 0.0)
        assert p["rtt_ns"] == (int(median(rtts)) if rtts else None)
        assert p["usable_evs"] == sum(0xA5 >> ev & 1 for ev in there)


def test_a_plane_without_usable_evs_shows_it_although_its_link_is_up() -> None:
    h = Host()
    h.peers["usable"][1:, 0] = 0xF0  # EVs 4 to 7, of plane 1; bits of EVs that do not exist do not count
    h.evs["configured"][3, 7] = 0
    assert peers.by_plane(h.view.snapshot()) == [
        {"usable_evs": 0, "evs": 9},
        {"usable_evs": 8, "evs": 8},
    ]


@pytest.mark.parametrize("make", ["link", "pipe", "nothing", "words"])
def test_files_of_mrcd_are_read_whole_or_ignored(tmp_path: Path, make: str) -> None:
    """Root reads files that a user who is not root may replace."""
    left, secret = tmp_path / running_file.RUNNING_FILE, tmp_path / "secret"
    secret.write_text('{"config": {"hosts": []}}')
    if make == "link":
        left.symlink_to(secret)
    elif make == "pipe":
        os.mkfifo(left)
    elif make == "words":
        left.write_text("secret")
    with pytest.raises(MachineError, match=f"no usable {left}"):
        view.open_pinned(tmp_path)
    with pytest.raises(MachineError, match=f"no usable {left}"):
        offline_detach.Running.read(left)
    assert running_file.hosts_before(tmp_path) == {}


def test_the_hosts_of_the_last_run_are_those_of_its_ranges(tmp_path: Path) -> None:
    text = host_table(1, name='"h1"', port=9)
    text += host_table(8, name='"gpu[08-12]"', port=0, per_t0=5, prefixes='["10.9.0.0/32"]')
    plan = topology.plan(cluster_file.parse(text), "gpu09")
    running_file.save_running(tmp_path, plan, tmp_path, [], {})
    assert running_file.hosts_before(tmp_path) == {1: "h1"} | {n: f"gpu{n:02}" for n in range(8, 13)}


@pytest.mark.parametrize("key", ["encapsulation", "steering"])
def test_detach_reads_the_configuration_of_a_former_version(tmp_path: Path, key: str) -> None:
    config = {"overlay": {"interface": "mrc0"}, "cluster": {key: "ecmp"}}
    path = tmp_path / running_file.RUNNING_FILE
    path.write_text(json.dumps({"pins": "/bpf/mrcd/abi2", "config": config}))
    assert offline_detach.Running.read(path).ecmp


def test_links_out_of_the_directory_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "abi7").symlink_to("/nowhere")
    offline_detach.refuse_links(tmp_path, tmp_path / "abi6")
    with pytest.raises(MachineError, match="abi7 is a symbolic link"):
        offline_detach.refuse_links(tmp_path, tmp_path / "abi7")


def test_keys_of_peers() -> None:
    host, key = Host(), 0x1122334455667788
    host.auths["mode"][1:], host.auths["tx_id"][1:3, :2], host.auths["rx_id"][1, :2] = 1, (1, 2), (1, 2)
    host.auths["tx_slot"][2], host.auths["untagged"][1], host.auths["clock_ns"][1] = 1, 9, 77
    host.auths["tx_key"], host.auths["rx_key"] = key, key
    host.peers["key_ids"][1, 0] = 2
    host.peers["heard_ns"][[1, 2]] = host.now, host.now - 60 * S
    found = host.view.keys()
    assert (found["mode"], found["accepted"], found["newest"]) == ("permissive", [1, 2], None)
    assert [tuple(p.values()) for p in found["peers"]] == [
        ("h1", True, 1, [2], [1, 2], 9, True), ("h2", False, 2, [], [], 0, False),
        ("h3", False, None, [], [], 0, False),
    ]  # fmt: skip
    assert str(key) not in json.dumps(found)


def test_a_host_without_peers_has_the_mode_of_its_file() -> None:
    alone = topology.plan(cluster_file.parse(f'[auth]\nmode = "required"\n{host_table(0)}'), "h0")
    found = view.View(cast(pinned.Tables, Arrays(1, 16)), alone, [], Path("/nowhere")).keys()
    assert found == {"mode": "required", "accepted": [], "newest": None, "peers": []}


@pytest.mark.parametrize(
    ("ticked_ms", "packet_ms", "by"),
    [
        *[(0, 10_000, "daemon"), (49, 10_000, "daemon")],
        *[(51, 20, "timer packet"), (51, -20, "timer packet")],
        *[(10_000, 101, None), (10_000, 10_000, None)],
    ],
)
def test_the_runner_of_the_tick_and_the_budget_of_probes(ticked_ms: int, packet_ms: int, by: str | None) -> None:
    host = Host()
    host.node["ticked_ns"], host.clock["packet_due_ns"] = host.now - ticked_ms * MS, host.now - packet_ms * MS
    host.clock["budget"], host.clock["by_daemon"], host.clock["by_packet"] = -7, 5, 6
    assert list(host.view.probing().values()) == [by, 5, 6, 4000, -7, {"idle": 3}, None]


def test_the_diagnosis_is_a_document_per_cause() -> None:
    host = Host()
    host.evs["state"][host.evs["configured"] != 0] = EvState.GOOD
    host.node["plane_mask"] = 0b11
    assert host.view.status()["diagnosis"] == []
    host.evs["state"][[1, 3], 6], host.evs["reason"][[1, 3], 6] = EvState.ASSUMED_BAD, Reason.OVERDUE
    host.evs["state_since_ns"][[1, 3], 6] = host.now - 60 * S
    (cause,) = json.loads(json.dumps(host.view.status()["diagnosis"]))
    assert (cause["cause"], cause["target"], cause["severity"], cause["evs"]) == ("t1", "t1:1:2", "critical", 2)
    assert cause["since_s"] == 60


def test_how_flows_are_received(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    end: Any = SimpleNamespace(mac="02:00:00:00:00:01", ifindex=5)
    monkeypatch.setattr(rps, "cpus_of", lambda _: {0, 1})
    write_tables.write_receiver(cast(pinned.Tables, host), end, end, merging=False, xdp_too=False)
    found = host.view.receive()
    assert found == {"interface": "mrc0", "rps_cpus": "0-1", "gro": False}
    assert "receive     mrc0, flows spread over CPUs 0-1 (RPS)" in status_lines({"receive": found}, colour=False)
    for known in (None, set[int]()):  # /sys is another namespace's; somebody has switched it off
        monkeypatch.setattr(rps, "cpus_of", lambda _, known=known: known)
        assert host.view.receive()["rps_cpus"] is None
