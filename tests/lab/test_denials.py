# SPDX-License-Identifier: BSD-2-Clause
"""Tests deny, drain and allow in a fabric: no packet is lost, denials persist, and end in time."""

import json
import os
import signal
from collections.abc import Collection

from labkit.cluster.api import Lab
from mrcd import state_dir
from mrcd.ctl.client import Client
from mrcd.kernel.dataplane import pin_directory
from mrcd.kernel.pinned import Tables
from tests.cluster_files import host
from tests.lab.conftest import all_good, mrcctl, states, wait_until
from tests.lab.flows import tcp_flow

TARGETS = ("t1:1:2", "plane:0", "link:2:0:1", "nic:h2:3", "t1:3:0 peer:h2", "ev:h2:5")


def counts(lab: Lab) -> dict[int, tuple[int, int, int]]:
    """Returns EV of h0 to h2 → packets sent, arrived, lost."""
    paths = Client(lab.run_dir("h0"), 5).get("/v1/paths", peer="h2")
    return {p["ev"]: (p["tx_packets"], p["rx_packets"], p["lost_packets"]) for p in paths}


def carry(lab: Lab, evs: Collection[int]) -> None:
    """Waits until each of these EVs has carried packets once more."""
    then = counts(lab)
    wait_until(f"{sorted(evs)} carry traffic", lambda: all(counts(lab)[ev][0] > then[ev][0] for ev in evs))


def denied(lab: Lab, peer: str = "h2") -> set[int]:
    return {ev for ev, state in states(lab, "h0", peer).items() if state == "DENIED"}


def restart(lab: Lab, number: signal.Signals = signal.SIGKILL) -> None:
    pid = lab.daemon_pid("h0")
    assert pid is not None
    os.kill(pid, number)
    wait_until("mrcd of h0 is gone", lambda: lab.daemon_pid("h0") is None)
    lab.up()


def test_drain_under_a_flow_loses_nothing(healthy: Lab) -> None:
    before = counts(healthy)
    waited = []
    with tcp_flow(healthy):
        wait_until("the flow runs", lambda: sum(c[0] for c in counts(healthy).values()) > 1_000)
        for target in TARGETS:
            answer = mrcctl(healthy, "h0", "drain", *target.split())
            assert answer["empty"], answer
            assert (answer["denial"]["in_flight_packets"], answer["denial"]["lost_packets"]) == (0, 0)
            waited.append(answer["waited_s"])
            drained = {p["ev"] for p in answer["paths"] if p["peer"] == "h2"}
            then = counts(healthy)
            assert all(then[ev][0] == then[ev][1] for ev in drained)  # all sent packets have arrived
            carry(healthy, then.keys() - drained)
            now = counts(healthy)
            assert [ev for ev in drained if now[ev][0] != then[ev][0]] == []
            assert mrcctl(healthy, "h0", "undrain", *target.split())["changed"] == answer["changed"]
            carry(healthy, drained)
    wait_until("all is accounted for", lambda: all(tx == rx for tx, rx, _ in counts(healthy).values()))
    after = counts(healthy)
    sent, lost = (sum(after[ev][i] - before[ev][i] for ev in after) for i in (0, 2))
    print(f"{len(waited)} drains under a flow: {sent} packets sent, {lost} lost; empty after {max(waited)} s at most")
    assert lost == 0


def test_denials_outlive_daemon_and_tables_and_cover_new_paths(healthy: Lab) -> None:
    path = healthy.run_dir("h0").parent / "mrcd.toml"
    text = path.read_text()
    try:
        mrcctl(healthy, "h0", "deny", "t1:1:2", "--for", "1h", "--reason", "fan tray")
        pid = healthy.daemon_pid("h0")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until("mrcd of h0 is gone", lambda: healthy.daemon_pid("h0") is None)
        offline = healthy.exec("h0", ["mrcctl", "denials", "--json"])
        assert [d["target"] for d in json.loads(offline.stdout)["denials"]] == ["t1:1:2"]
        assert "not running" in offline.stderr
        # One more host with such a high id that all tables are made anew.
        more = host(200, name='"far"', t0=1, port=99)
        path.write_text(f"{text}\n{more}")
        healthy.up()
        assert (denied(healthy), denied(healthy, "far")) == ({6}, {6})
        (denial,) = mrcctl(healthy, "h0", "status")["denials"]
        assert (denial["target"], denial["reason"], denial["uid"]) == ("t1:1:2", "fan tray", 0)
        assert 3500 < denial["remaining_s"] < 3600
        (said,) = [p["denial"] for p in mrcctl(healthy, "h0", "paths", "--state", "DENIED", "--peer", "h2")]
        assert said["reason"] == "fan tray"
    finally:
        path.write_text(text)
        restart(healthy)
    assert denied(healthy) == {6}
    mrcctl(healthy, "h0", "allow", "t1:1:2")
    wait_until("all EVs are GOOD", lambda: all_good(healthy))
    assert mrcctl(healthy, "h0", "denials") == []


def test_denied_evs_are_probed_and_a_denial_ends_by_itself(healthy: Lab) -> None:
    mrcctl(healthy, "h0", "deny", "t1:0:3")
    tables = Tables(pin_directory(healthy.run_dir("h0") / "bpf"), writable=False)
    before = int(tables.path_stats["replies"][2, 3])
    wait_until("probes by it are answered", lambda: int(tables.path_stats["replies"][2, 3]) > before)
    tables.close()
    assert denied(healthy) == {3}
    mrcctl(healthy, "h0", "deny", "t1:0:3", "--for", "1s")
    wait_until("its time is over", lambda: not denied(healthy))
    wait_until("all EVs are GOOD", lambda: all_good(healthy))
    told = [e["reason"] for e in mrcctl(healthy, "h0", "events") if e["kind"] == "denial"]
    assert told[-3:] == ["deny", "deny", "expired"]


def test_the_floor_refuses_denials_and_an_unreadable_file_allows_nothing(healthy: Lab) -> None:
    refused = healthy.exec("h0", ["mrcctl", "deny", "--peer", "h2"])
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "h2 with 0 of 16 (ev_min_active 4)" in refused.stderr
    assert denied(healthy) == set()
    mrcctl(healthy, "h0", "deny", "plane:1")
    healthy.exec("h0", ["ping", "-c8", "-i0.01", "-W1", "10.99.0.3"], check=True)
    path = state_dir.directory(healthy.run_dir("h0")) / state_dir.DENIALS
    path.write_text("{")
    restart(healthy)
    assert denied(healthy) == {4, 5, 6, 7}
    assert [d["target"] for d in mrcctl(healthy, "h0", "denials")] == ["plane:1"]
    (kept,) = path.parent.glob(f"{path.name}.unreadable-*")
    kept.unlink()
    mrcctl(healthy, "h0", "allow", "--all")
    wait_until("all EVs are GOOD", lambda: all_good(healthy))
