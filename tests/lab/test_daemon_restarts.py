# SPDX-License-Identifier: BSD-2-Clause
"""Tests start, stop, kill, restart and detach: forwarding continues."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.cluster.api import Lab
from mrcd.kernel.dataplane import pin_directory
from mrcd.kernel.pins import remove
from tests.cluster_files import host
from tests.lab.conftest import TWO_HOSTS, a_lab, all_good, mrcctl, wait_until, withdrawn
from tests.lab.flows import STANDSTILL_MS, standstill_ms, tcp_flow, tcp_transfer


def _total(lab: Lab, source: str = "h0", target: str = "h2") -> int:
    return sum(p["tx_packets"] for p in mrcctl(lab, source, "paths", "--peer", target))


def _kill(lab: Lab, host: str, number: signal.Signals) -> None:
    pid = lab.daemon_pid(host)
    assert pid is not None
    os.kill(pid, number)
    wait_until(f"mrcd of {host} is gone", lambda: lab.daemon_pid(host) is None)


def test_kill_and_restart_under_load_lose_nothing(healthy: Lab) -> None:
    generation = healthy.exec("h0", ["mrcctl", "status"], check=True).stdout
    assert "attached" in generation
    with tcp_flow(healthy) as flow:
        wait_until("the flow runs", lambda: _total(healthy) > 1_000)
        for number in (signal.SIGKILL, signal.SIGTERM):
            before = _total(healthy)
            _kill(healthy, "h0", number)
            offline = healthy.exec("h0", ["mrcctl", "status", "--json"])
            assert offline.returncode == 0
            assert '"running": false' in offline.stdout
            assert "not running" in offline.stderr
            tcp_transfer(healthy, 4)
            paths = mrcctl(healthy, "h0", "paths", "--peer", "h2")
            assert len(paths) == 16
            assert sum(p["tx_packets"] for p in paths) > before
            before = _total(healthy)
            healthy.up()  # starts dead daemons
            tcp_transfer(healthy, 4)
            assert _total(healthy) > before
        assert standstill_ms(flow) < STANDSTILL_MS, flow.bins
    wait_until("all EVs are GOOD", lambda: all_good(healthy))
    lost = [p["lost_packets"] for p in mrcctl(healthy, "h0", "paths", "--peer", "h2")]
    assert not any(lost), lost


def _route(lab: Lab, host: str, address: str) -> str:
    return lab.exec(host, ["ip", "route", "get", address], check=True).stdout


def test_detach_leaves_kernel_srv6_and_attach_resumes_spraying(healthy: Lab) -> None:
    with tcp_flow(healthy) as flow:
        wait_until("the flow runs", lambda: _total(healthy) > 1_000)
        assert mrcctl(healthy, "h0", "detach")["attached"] is False
        still = _total(healthy)
        wait_until("h2 has noticed", lambda: "encap seg6 mode encap.red" in _route(healthy, "h2", "10.99.0.1"))
        links = pin_directory(healthy.run_dir("h0") / "bpf") / "links"
        assert {p.name for p in links.iterdir()} == {f"pop-{p}" for p in range(4)}
        assert mrcctl(healthy, "h0", "status")["push"] == {}
        tcp_transfer(healthy, 4)
        tcp_transfer(healthy, 6)
        assert _total(healthy) == still
        peers = {p["peer"]: p["status"] for p in mrcctl(healthy, "h2", "peers")}
        assert peers["h0"] == "detached"
        assert mrcctl(healthy, "h0", "detach", "--force")["attached"] is False
        assert not list(links.iterdir())
        tcp_transfer(healthy, 4)
        assert mrcctl(healthy, "h0", "attach")["attached"] is True
        tcp_transfer(healthy, 4)
        assert _total(healthy) > still + 100
        assert standstill_ms(flow) < STANDSTILL_MS, flow.bins
    wait_until("all EVs are GOOD", lambda: all_good(healthy))


@pytest.fixture(scope="module")
def away() -> Iterator[Lab]:
    """A lab of its own: peers have longer hold-downs, each time, for the EVs to a host that vanishes."""
    with a_lab("away") as made:
        yield made


def test_detach_without_mrcd_leaves_kernel_srv6(away: Lab) -> None:
    _kill(away, "h0", signal.SIGTERM)
    refused = away.exec("h0", ["mrcctl", "detach"])
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "mrcctl detach --force" in refused.stderr
    links = pin_directory(away.run_dir("h0") / "bpf") / "links"
    assert any(p.name.startswith("push") for p in links.iterdir())
    left = withdrawn(away, "h2")
    with tcp_flow(away) as flow:
        wait_until("the flow runs", lambda: _total(away) > 1_000)
        done = away.exec("h0", ["mrcctl", "detach", "--force"], check=True)
        assert done.stdout == "detached, without mrcd: traffic takes the kernel's SRv6 routes, flow by flow\n"
        assert not list(links.iterdir())
        for peer in ("h1", "h2"):  # h1 has sent to it, h2 has not
            assert {p["peer"]: p["status"] for p in mrcctl(away, peer, "peers")}["h0"] == "detached"
        status = json.loads(away.exec("h0", ["mrcctl", "status", "--json"], check=True).stdout)
        assert (status["attached"], status["push"], [p["hook"] for p in status["planes"]]) == (False, {}, [None] * 4)
        still = _total(away)
        assert "encap seg6 mode encap.red" in _route(away, "h2", "10.99.0.1")
        for version in (4, 6):
            tcp_transfer(away, version)
        assert _total(away) == still
        assert standstill_ms(flow) < STANDSTILL_MS, flow.bins
    again = away.exec("h0", ["mrcctl", "detach", "--force", "--json"], check=True)
    assert json.loads(again.stdout)["message"] == "nothing is attached"
    away.up()
    assert not mrcctl(away, "h0", "status")["attached"]
    assert away.exec("h0", ["mrcctl", "attach"], check=True).stdout == "attached\n"
    wait_until("all EVs are GOOD", lambda: all_good(away))
    assert withdrawn(away, "h2") == left  # no path has failed


def test_detach_without_mrcd_and_pins_leaves_kernel_srv6(away: Lab) -> None:
    _kill(away, "h0", signal.SIGTERM)
    remove(pin_directory(away.run_dir("h0") / "bpf"))
    assert "dev mrc0" in _route(away, "h0", "10.99.0.3")
    done = away.exec("h0", ["mrcctl", "detach", "--force"], check=True)
    assert done.stdout.startswith("detached, without mrcd")
    assert "some peers may still spray to this host" in done.stdout  # they get no message
    assert "encap seg6" in _route(away, "h0", "10.99.0.3")
    away.up()
    wait_until("all EVs are GOOD", lambda: all_good(away))


def test_detached_stays_detached_over_a_restart(healthy: Lab) -> None:
    mrcctl(healthy, "h0", "detach")
    _kill(healthy, "h0", signal.SIGTERM)
    healthy.up()
    assert mrcctl(healthy, "h0", "status")["attached"] is False
    tcp_transfer(healthy, 4, size=100_000)
    mrcctl(healthy, "h0", "attach")
    wait_until("all EVs are GOOD", lambda: all_good(healthy))


def test_a_second_daemon_refuses(healthy: Lab) -> None:
    run_dir = healthy.run_dir("h0")
    second = healthy.exec("h0", ["mrcd", "--run-dir", str(run_dir), "--bpffs", str(run_dir / "bpf")])
    assert second.returncode == 2
    assert "already runs" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_new_mac_of_the_first_hop_is_used(healthy: Lab) -> None:
    t0, mac = "t0-0-0", "02:4d:ff:00:00:99"
    before = mrcctl(healthy, "h0", "status")["planes"][0]["gateway_mac"]

    def change(to: str) -> None:
        healthy.exec(t0, ["ip", "link", "set", "h0", "address", to], check=True)
        # As an unsolicited advertisement of a real switch changes the host's neighbour table.
        neighbour = ["ip", "-6", "neigh", "replace", "fe80::1", "dev", "p0", "lladdr", to, "nud", "reachable"]
        healthy.exec("h0", neighbour, check=True)
        wait_until("the plane follows", lambda: mrcctl(healthy, "h0", "status")["planes"][0]["gateway_mac"] == to)

    change(mac)
    try:
        healthy.exec("h0", ["ping", "-c16", "-i0.01", "-W1", "10.99.0.3"], check=True)
    finally:
        change(before)


def test_a_nic_that_goes_down_and_returns_is_used_again() -> None:
    with a_lab("nics", **TWO_HOSTS) as lab:
        lab.exec("h0", ["ip", "link", "set", "p1", "down"], check=True)
        wait_until("plane 1 is down", lambda: not mrcctl(lab, "h0", "status")["planes"][1]["up"])
        tcp_transfer(lab, 4, size=1_000_000, target=1)
        lab.exec("h0", ["ip", "link", "set", "p1", "up"], check=True)
        wait_until("all EVs are GOOD again", lambda: all_good(lab))
        tcp_transfer(lab, 6, size=1_000_000, target=1)


def test_paths_survive_a_reload_of_another_granularity(healthy: Lab) -> None:
    path = healthy.run_dir("h0").parent / "mrcd.toml"
    text = path.read_text()
    try:
        path.write_text(text.replace('granularity = "burst"', 'granularity = "packet"'))
        before = _total(healthy)
        _kill(healthy, "h0", signal.SIGTERM)
        healthy.up()
        status = mrcctl(healthy, "h0", "status")
        assert status["granularity"] == "packet"
        assert "ingress" in status["push"]["hook"]
        assert _total(healthy) >= before
        tcp_transfer(healthy, 4)
    finally:
        path.write_text(text)
        _kill(healthy, "h0", signal.SIGTERM)
        healthy.up()
    tcp_transfer(healthy, 4)


def test_paths_listed_one_by_one_work_with_and_without_srh() -> None:
    with a_lab("odd", **TWO_HOSTS) as lab:
        path = lab.run_dir("h0").parent / "mrcd.toml"
        listed = [
            (0, ["5f00:0:4000:8000:4001:c000::"]),  # T0·T1·T0·host in one carrier
            (0, ["5f00:0:4000:8001::", "5f00:0:4001:c000::"]),  # T0·T1, then T0·host: two segments, an SRH
            (1, ["5f00:0:4800:8801:4801:c400::"]),
        ]
        text = path.read_text()
        for plane, segments in listed:
            text += f'\n[[paths]]\nsource = "h0"\npeer = "h1"\nplane = {plane}\nsegments = {segments}\n'
        path.write_text(text.replace("'", '"'))
        for host in ("h0", "h1"):
            _kill(lab, host, signal.SIGTERM)
        lab.up(**TWO_HOSTS)
        wait_until("all EVs are GOOD", lambda: all_good(lab))
        paths = mrcctl(lab, "h0", "paths", "--peer", "h1")
        assert [(p["plane"], p["segments"]) for p in paths] == listed
        tcp_transfer(lab, 4, target=1)
        tcp_transfer(lab, 6, target=1)
        wait_until("all is counted", lambda: not any(p["lost_packets"] for p in mrcctl(lab, "h0", "paths")))
        assert all(p["tx_packets"] > 100 for p in mrcctl(lab, "h0", "paths", "--peer", "h1"))


def test_attach_during_a_slow_detach_waits_for_its_end(healthy: Lab) -> None:
    slow = healthy.popen("h0", ["mrcctl", "detach", "--force"], stdout=subprocess.DEVNULL)
    wait_until("detach has begun", lambda: not mrcctl(healthy, "h0", "status")["attached"])
    mrcctl(healthy, "h0", "attach")
    assert slow.wait(120) == 0
    status = mrcctl(healthy, "h0", "status")
    links = {p.name for p in (pin_directory(healthy.run_dir("h0") / "bpf") / "links").iterdir()}
    assert status["attached"] is ("push-egress" in links)
    if not status["attached"]:
        mrcctl(healthy, "h0", "attach")
    wait_until("all EVs are GOOD", lambda: all_good(healthy))
    tcp_transfer(healthy, 4)


def test_a_dead_peer_still_reaches_a_detached_host(healthy: Lab) -> None:
    _kill(healthy, "h2", signal.SIGKILL)
    mrcctl(healthy, "h0", "detach")
    healthy.exec("h2", ["ping", "-c4", "-i0.01", "-W1", "10.99.0.1"], check=True)
    healthy.up()
    mrcctl(healthy, "h0", "attach")
    wait_until("all EVs are GOOD", lambda: all_good(healthy))


def test_a_failed_start_with_other_tables_leaves_forwarding_alone(healthy: Lab) -> None:
    path = healthy.run_dir("h0").parent / "mrcd.toml"
    text = path.read_text()
    _kill(healthy, "h0", signal.SIGTERM)
    try:
        broken = text.replace("evs_per_peer = 16", "evs_per_peer = 32")
        broken = broken.replace("[interfaces]", '[interfaces]\nnames = ["a", "b", "c", "d"]')
        path.write_text(broken)
        run_dir = healthy.run_dir("h0")
        failed = healthy.exec("h0", ["mrcd", "--run-dir", str(run_dir), "--bpffs", str(run_dir / "bpf")])
        assert failed.returncode == 2
        assert "none of the plane NICs" in failed.stderr
        assert "Traceback" not in failed.stderr
        healthy.exec("h0", ["ping", "-c4", "-i0.01", "-W1", "10.99.0.3"], check=True)
    finally:
        path.write_text(text)
        healthy.up()
    wait_until("all EVs are GOOD", lambda: all_good(healthy))


# The NICs' programs are replaced one after the other: here hundreds of bursts arrive in between.
_SLOWLY = """
import os, time
from pathlib import Path
from mrcd.net import hooks

attach = hooks.attach_pop

def arrived():
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return sum(int(line.split()[2]) for line in lines if line.strip().startswith("p"))

def attach_slowly(*arguments):
    Path(os.environ["ATTACHED_SLOWLY"]).touch()
    enough, end = arrived() + 300, time.monotonic() + 1
    while arrived() < enough and time.monotonic() < end:
        os.sched_yield()
    return attach(*arguments)

hooks.attach_pop = attach_slowly
"""


def test_new_tables_under_load_lose_nothing_and_count_no_loss(
    healthy: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = healthy.run_dir("h0").parent / "mrcd.toml"
    text = path.read_text()
    last = host(200, name='"far"', t0=0, port=99)
    (tmp_path / "sitecustomize.py").write_text(_SLOWLY)
    before = withdrawn(healthy, "h2")
    try:
        with tcp_flow(healthy, 2, 0) as flow, monkeypatch.context() as patched:  # h2 → h0
            wait_until("the flow runs", lambda: _total(healthy, "h2", "h0") > 1_000)
            path.write_text(text + "\n" + last)
            _kill(healthy, "h0", signal.SIGTERM)
            patched.setenv("PYTHONPATH", str(tmp_path))
            patched.setenv("ATTACHED_SLOWLY", str(tmp_path / "slowly"))
            healthy.up()
            assert standstill_ms(flow) < STANDSTILL_MS, flow.bins
        # Probes of the old tables are answered to the new ones, which do not know them.
        assert mrcctl(healthy, "h0", "status")["drops"].keys() <= {"unsolicited_reply"}
        assert (tmp_path / "slowly").exists()
        # A packet that overtakes the first probe of the new tables, or is overtaken, shifts the base by one.
        lost = [p["lost_packets"] for p in mrcctl(healthy, "h2", "paths", "--peer", "h0")]
        assert max(lost) <= 8, lost
        assert withdrawn(healthy, "h2") == before
    finally:
        path.write_text(text)
        _kill(healthy, "h0", signal.SIGTERM)
        healthy.up()
    wait_until("all EVs are GOOD", lambda: all_good(healthy))


def test_one_bad_nic_does_not_stop_the_others(healthy: Lab) -> None:
    def ip(*arguments: str) -> None:
        healthy.exec("h0", ["ip", *arguments], check=True)

    def plane_up(plane: int) -> bool:
        return bool(mrcctl(healthy, "h0", "status")["planes"][plane]["up"])

    try:
        ip("link", "set", "p1", "mtu", "1000")  # too small for IPv6: the kernel removes it from the NIC
        ip("link", "set", "p2", "down")
        wait_until("planes 1 and 2 are down", lambda: not plane_up(1) and not plane_up(2))
        ip("link", "del", "mrc0")
        ip("link", "del", "tmrc0")
        healthy.exec("h2", ["ping", "-c4", "-i0.01", "-W1", "10.99.0.4"], check=True)
        wait_until(
            "h0 pushes again", lambda: healthy.exec("h0", ["ping", "-c1", "-W1", "10.99.0.3"]).returncode == 0, 10
        )
    finally:
        ip("link", "set", "p1", "mtu", "9100")
        ip("link", "set", "p2", "up")
    wait_until("all EVs are GOOD", lambda: all_good(healthy))
    before = _total(healthy)
    tcp_transfer(healthy, 4)
    assert _total(healthy) > before + 500
