# SPDX-License-Identifier: BSD-2-Clause
"""Tests another cluster file under traffic: the difference is applied, without loss of packets, states or counters."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.cluster.api import Lab
from labkit.measure import evorder
from labkit.traffic import candidates
from labkit.traffic.stream import Stream
from mrcd.kernel import libbpf
from mrcd.kernel.dataplane import pin_directory
from tests import cluster_files
from tests.lab.conftest import all_good, mrcctl, out_of_use, states, wait_until, withdrawn
from tests.lab.flows import tcp_transfer

RATE = 5_000
# The tables have room for the first host.
FAR, FARTHER = ("\n" + cluster_files.host(n, name='"far"', port=99) for n in (60, 200))
SETTING = "\n[health]\noverdue_ms = 11\n"
CONSTANT = "\n[overlay]\nflowlet_us = 77\n"
"""The programs are loaded with it."""


def reload(lab: Lab, host: str, *options: str) -> None:
    """Makes a host reload the file."""
    done = lab.exec(host, ["mrcctl", "reload", *options])
    assert done.returncode == 0, f"{host}: {done.stderr}"


class File:
    """The lab's cluster file."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.path = lab, lab.state.cluster_file
        self.text = self.path.read_text()

    def write(self, text: str, *hosts: str) -> None:
        """Changes it, and makes these hosts reload it."""
        self.path.write_text(text)
        for host in hosts:
            reload(self.lab, host)


@pytest.fixture
def file(healthy: Lab) -> Iterator[File]:
    """The file, restored in all hosts after the test."""
    kept = File(healthy)
    yield kept
    kept.path.write_text(kept.text)
    healthy.heal()
    if mrcctl(healthy, "h0", "denials"):
        mrcctl(healthy, "h0", "allow", "--all")
    for host in healthy.fabric.hosts:
        reload(healthy, host, "--force")
    wait_until("all EVs are GOOD", lambda: all_good(healthy))


def _refused(lab: Lab, *arguments: str) -> str:
    done = lab.exec("h0", ["mrcctl", *arguments])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("mrcctl: ")
    assert "\n  hint: " in done.stderr
    return done.stderr


def _descriptors(lab: Lab) -> int:
    """Returns the number of open descriptors of h0's daemon."""
    return len(list(Path(f"/proc/{lab.daemon_pid('h0')}/fd").iterdir()))


def _in_use(lab: Lab) -> dict[int, str]:
    """Returns EV → state from h0 to h2; a short lag (SKIP) counts as GOOD."""
    return {ev: "GOOD" if state == "SKIP" else state for ev, state in states(lab, "h0", "h2").items()}


def _running(lab: Lab) -> str:
    return lab.exec("h0", ["mrcctl", "config", "show", "--effective"], check=True).stdout


@pytest.mark.parametrize(
    ("more", "programs", "tables"),
    [(FAR, False, False), (SETTING, False, False), (CONSTANT, True, False), (FARTHER, True, True)],
    ids=["a host", "a setting", "new programs", "new tables"],
)
def test_a_reload_loses_no_packet_and_keeps_states_and_counters(
    file: File, more: str, programs: bool, tables: bool
) -> None:
    lab = file.lab
    mrcctl(lab, "h0", "deny", "--peer", "h2", "--ev", "3")
    lab.fail("t1:1:2")
    wait_until("EV 6 is left", lambda: states(lab, "h0", "h2")[6] == "ASSUMED_BAD")
    before = _in_use(lab)
    assert before[3] == "DENIED"
    file.path.write_text(file.text + more)
    promised = mrcctl(lab, "h0", "config", "diff")
    assert (promised["programs"], promised["tables"]) == (programs, tables)
    with evorder.watching(lab, "h0", "h2") as order, Stream(lab, candidates.overlay(lab, 4), rate=RATE) as stream:
        wait_until("the flow runs", lambda: stream.mark() > RATE / 5)
        done = mrcctl(lab, "h0", "reload")
        known = _in_use(lab)
        wait_until("the flow runs on", lambda: stream.mark() > RATE / 2)
        result = stream.finish()
        seen = order.read()
    assert {k: v for k, v in done.items() if k != "message"} == promised
    assert known == before
    assert _in_use(lab) == before
    assert (result.lost(), result.twice, result.socket_drops) == (0, 0, 0)
    assert seen.packets == result.sent
    if not tables:  # new tables restart every EV's sequence
        assert (seen.reordered, seen.missing) == (0, 0)
    assert not mrcctl(lab, "h0", "config", "diff")["changed"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[cluster]", "[cluster]\nplanets = 4", "cluster.planets: unknown key"),
        ("[cluster]", "[cluster", "not valid TOML"),
        ('name = "h0"', 'name = "elsewhere"', "no host named 'h0'"),
        ("10.99.0.4/32", "10.99.0.3/32", "10.99.0.3/32"),
        ("[cluster]", '[overlay]\ninterface = "mrc1"\n[cluster]', "takes a restart"),
        ("[cluster]", "[cluster]\nudp_port = 4798", "cluster.udp_port"),
    ],
    ids=["unknown key", "no TOML", "not this host", "overlap", "restart", "agreed"],
)
def test_an_invalid_file_changes_nothing_and_is_explained(file: File, old: str, new: str, said: str) -> None:
    lab, running, before = file.lab, _running(file.lab), mrcctl(file.lab, "h0", "events")[-1]["id"]
    file.path.write_text(file.text.replace(old, new, 1))
    assert file.path.read_text() != file.text
    assert said in _refused(lab, "reload")
    assert _running(lab) == running
    assert "reload_refused" in {e["reason"] for e in mrcctl(lab, "h0", "events") if e["id"] > before}
    assert out_of_use(lab) == []


def test_sighup_reloads_and_logs_an_invalid_file(file: File) -> None:
    lab, pid = file.lab, file.lab.daemon_pid("h0")
    assert pid is not None

    def last() -> tuple[str, str]:
        event = [e for e in mrcctl(lab, "h0", "events") if e["kind"] == "daemon"][-1]
        return event["reason"], event["evidence"].get("error", "")

    file.path.write_text(file.text + "\nnonsense = 1\n")
    os.kill(pid, signal.SIGHUP)
    wait_until("the file is refused", lambda: last()[0] == "reload_refused" and "nonsense" in last()[1])
    assert "the running configuration stays" in lab.state.log("h0").read_text()
    file.path.write_text(file.text + SETTING)
    os.kill(pid, signal.SIGHUP)
    wait_until("it is reloaded", lambda: last()[0] == "reloaded")
    assert lab.daemon_pid("h0") == pid
    assert "overdue_ms = 11" in _running(lab)


def test_a_reload_adds_and_removes_hosts(file: File) -> None:
    lab = file.lab
    h3 = file.text[file.text.index('[[hosts]]\nname = "h3"') :]
    end = h3.find("\n\n[")
    h3 = h3 if end < 0 else h3[:end]
    file.write(file.text.replace(h3, ""), "h0")
    assert [p["peer"] for p in mrcctl(lab, "h0", "peers")] == ["h1", "h2"]
    assert "10.99.0.4" not in lab.exec("h0", ["ip", "route", "show", "proto", "77"], check=True).stdout
    tcp_transfer(lab, 4, size=100_000)
    file.write(file.text, "h0")
    wait_until("all EVs are GOOD", lambda: all_good(lab))
    tcp_transfer(lab, 4, size=100_000, target=3)


def test_a_reload_changes_an_address(file: File) -> None:
    lab = file.lab
    text = file.text.replace('"10.99.0.3/32"', '"10.99.7.3/32"')
    file.write(text, "h2", *(h for h in lab.fabric.hosts if h != "h2"))
    addresses = json.loads(lab.exec("h2", ["ip", "-j", "addr", "show", "mrc0"], check=True).stdout)[0]["addr_info"]
    assert {a["local"] for a in addresses} == {"10.99.7.3", "fd00:99::3"}
    lab.exec("h0", ["ping", "-c4", "-i0.01", "-W1", "10.99.7.3"], check=True)
    assert "10.99.0.3" not in lab.exec("h0", ["ip", "route", "show", "proto", "77"], check=True).stdout
    assert out_of_use(lab) == []


def test_cluster_wide_settings_change_only_while_detached(file: File) -> None:
    """The refusal's hint describes this; flows continue over the kernel's own SRv6 meanwhile."""
    lab, hosts = file.lab, file.lab.fabric.hosts
    file.path.write_text(file.text.replace("[cluster]", "[cluster]\nudp_port = 4798", 1))
    for action in ("detach", "reload", "attach"):
        for host in hosts:
            mrcctl(lab, host, action)
            lab.exec("h0", ["ping", "-c2", "-i0.01", "-W1", "10.99.0.3"], check=True)
    wait_until("all EVs are GOOD", lambda: all_good(lab))
    tcp_transfer(lab, 4, size=1_000_000)
    assert not mrcctl(lab, "h0", "config", "diff")["changed"]


def test_a_reload_that_the_machine_refuses_is_undone(file: File) -> None:
    lab, running = file.lab, _running(file.lab)
    file.path.write_text(file.text.replace("[interfaces]\n", '[interfaces]\nnames = ["w", "x", "y", "z"]\n', 1))
    done = lab.exec("h0", ["mrcctl", "reload"])
    assert done.returncode == 2
    assert "none of the plane NICs" in done.stderr
    assert "nothing was changed" in done.stderr
    assert _running(lab) == running
    assert out_of_use(lab) == []


@pytest.mark.parametrize("more", [SETTING, FARTHER], ids=["programs", "tables"])
def test_a_reload_that_the_kernel_refuses_half_way_is_undone(file: File, more: str) -> None:
    """Routes are written last: programs, tables and MTU are those of the new file by then."""
    lab, running = file.lab, _running(file.lab)
    replaced_hosts = ["10.99.0.3/32", "dev", "lo", "metric", "150"]
    opened_before, left_before = _descriptors(lab), [withdrawn(lab, h) for h in lab.fabric.hosts]
    lab.exec("h0", ["ip", "route", "add", *replaced_hosts], check=True)
    routes = ["ip", "route", "show", "proto", "77", "dev", "mrc0"]  # the fallback routes change with the EVs
    before = lab.exec("h0", routes, check=True).stdout
    try:
        text = file.text.replace("[cluster]\n", "[overlay]\nmetric = 150\n[cluster]\n", 1)
        file.path.write_text(text.replace("mtu = 9100", "mtu = 8000", 1) + more)
        with Stream(lab, candidates.overlay(lab, 4), rate=RATE) as stream:
            done = lab.exec("h0", ["mrcctl", "reload"])
            result = stream.finish()
        assert done.returncode == 2
        assert "another program has this route" in done.stderr
        assert _running(lab) == running
        assert lab.exec("h0", routes, check=True).stdout == before
        assert mrcctl(lab, "h0", "status")["inner_mtu"] == 9020
        assert result.lost() == 0
        assert out_of_use(lab) == []
        assert [withdrawn(lab, h) for h in lab.fabric.hosts] == left_before
        with libbpf.opened(pin_directory(lab.run_dir("h0") / "bpf") / "mrc_peers") as fd:
            assert libbpf.map_info(fd)[2] == 64
        wait_until("nothing more is open than before", lambda: _descriptors(lab) <= opened_before)
    finally:
        lab.exec("h0", ["ip", "route", "del", *replaced_hosts], check=True)


def test_config_diff_works_without_the_daemon(file: File, tmp_path: Path) -> None:
    lab, pid = file.lab, file.lab.daemon_pid("h0")
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    wait_until("mrcd of h0 is gone", lambda: lab.daemon_pid("h0") is None)
    other = tmp_path / "other.toml"
    other.write_text(file.text + SETTING)
    done = lab.exec("h0", ["mrcctl", "config", "diff", str(other), "--json"], check=True)
    assert "not running" in done.stderr
    assert [s["key"] for s in json.loads(done.stdout)["settings"]] == ["health.overdue_ms"]
    down = lab.exec("h0", ["mrcctl", "reload"])
    assert down.returncode == 2
    assert "not running" in down.stderr
    lab.up()


def test_a_new_host_with_the_id_of_a_dead_one_is_unknown_until_heard(file: File) -> None:
    lab = file.lab
    pid = lab.daemon_pid("h3")
    assert pid is not None
    mrcctl(lab, "h3", "detach", "--force")  # otherwise its programs answer probes
    os.kill(pid, signal.SIGKILL)
    wait_until("mrcd of h3 is gone", lambda: lab.daemon_pid("h3") is None)
    try:
        wait_until("h0 has heard of it", lambda: "detached" in {p["status"] for p in mrcctl(lab, "h0", "peers")})
        file.write(file.text.replace('name = "h3"', 'name = "new"', 1), "h0")
        peers = {p["peer"]: (p["status"], p["heard_s"]) for p in mrcctl(lab, "h0", "peers")}
        assert peers["new"] == ("unknown", None)
        assert peers["h2"][0] == "attached"
        routes = lab.exec("h0", ["ip", "route", "show", "10.99.0.4", "proto", "77"], check=True).stdout
        assert "mrc0" not in routes
        assert set(states(lab, "h0", "new").values()) == {"UNKNOWN"}
    finally:
        file.path.write_text(file.text)
        lab.up()
        mrcctl(lab, "h3", "attach")
        file.write(file.text, "h0")
    wait_until("all EVs are GOOD", lambda: all_good(lab))
