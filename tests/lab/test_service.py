# SPDX-License-Identifier: BSD-2-Clause
"""Tests the unit under a real systemd as PID 1: its rights, and forwarding while it starts, stops, hangs and fails."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.cluster.api import Lab
from tests.lab.conftest import mrcctl, wait_until
from tests.lab.machine import Machine, half_lab, need_systemd

BENCHMARKS = Path(__file__).parents[2] / "docs/benchmarks.md"
UNIT = Path(__file__).parents[2] / "scripts/deploy/mrcd.service"
WAITER = """
[Unit]
After={after}
Wants={after}
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'ip route get 10.99.0.2 >/run/{name}; ping -c1 -W2 10.99.0.2 >>/run/{name}'
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture(scope="module")
def fabric() -> Iterator[Lab]:
    need_systemd()
    with half_lab("service") as lab:
        yield lab


@pytest.fixture(scope="module")
def machine(fabric: Lab, installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Returns h0, booted, with two services that need the overlay."""
    units = {
        f"{name}.service": WAITER.format(name=name, after=after)
        for name, after in (("after-mrcd", "mrcd.service"), ("after-network", "network-online.target"))
    }
    with Machine(fabric, "h0", installed, tmp_path_factory.mktemp("machine"), units) as made:
        made.run("systemctl", "is-system-running", "--wait", check=False)
        yield made


@pytest.fixture
def running(machine: Machine) -> Machine:
    """Returns the machine with mrcd running as installed."""
    machine.run("rm", "-rf", "/run/systemd/system/mrcd.service.d")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "mrcd")
    return machine


@pytest.fixture
def pinged(fabric: Lab, running: Machine) -> Iterator[None]:
    """A ping of h1 to h0 each 5 ms; every request must be answered."""
    fabric.exec("h1", ["ping", "-c1", "-W5", "10.99.0.1"], check=True)
    pinging = fabric.popen("h1", ["ping", "-i0.005", "-q", "10.99.0.1"], stdout=subprocess.PIPE, text=True)
    yield
    pinging.send_signal(signal.SIGINT)
    out, _ = pinging.communicate(timeout=120)
    sent, received = re.findall(r"(\d+) packets transmitted, (\d+) received", out)[0]
    assert int(sent) - int(received) <= 1, out  # the last may be in flight


def drop_in(machine: Machine, text: str) -> None:
    """Adds a setting to the unit, until the next test."""
    script = f"mkdir -p /run/systemd/system/mrcd.service.d; printf '%b' '{text}' >$0; systemctl daemon-reload"
    machine.run("sh", "-c", script, "/run/systemd/system/mrcd.service.d/test.conf")


def sprayed(machine: Machine) -> int:
    """Returns the packets that h0 sent on its EVs, by the tables; mrcd need not run."""
    text = machine.run("mrcctl", "peers", "--json").stdout
    return int(re.findall(r'"tx_packets": (\d+)', text)[0])


def test_services_wait_for_the_overlay(machine: Machine) -> None:
    for name in ("after-mrcd", "after-network"):
        found = machine.run("cat", f"/run/{name}").stdout
        assert machine.show("Result", name) == "success", machine.console() + machine.said() + found
        assert "dev mrc0" in found
    assert machine.show("ActiveState") == "active"


def test_the_daemon_is_not_root_and_has_four_capabilities(running: Machine) -> None:
    pid = running.main_pid()
    status = dict(line.split(":\t", 1) for line in running.run("cat", f"/proc/{pid}/status").stdout.splitlines())
    uid = running.run("id", "-u", "mrcd").stdout.strip()
    assert set(status["Uid"].split()) == {uid} != {"0"}
    four = 1 << 12 | 1 << 13 | 1 << 38 | 1 << 39  # CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON, CAP_BPF
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {four}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


@pytest.mark.parametrize("capability", ["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"])
def test_the_daemon_needs_each_capability_but_net_raw(running: Machine, capability: str) -> None:
    running.run("systemctl", "stop", "mrcd")
    one = f"AmbientCapabilities=~{capability}\\nCapabilityBoundingSet=~{capability}\\nRestart=no\\n"
    drop_in(running, "[Service]\\n" + one)
    assert running.run("systemctl", "start", "mrcd", check=False).returncode != 0
    assert running.show("ExecMainStatus") == "2"


def test_the_pins_are_visible_outside_of_the_unit(running: Machine) -> None:
    """They are not in a private mount, even if no BPF file system was mounted before."""
    running.run("systemctl", "stop", "mrcd")
    running.run("umount", "/sys/fs/bpf")
    running.run("systemctl", "start", "mrcd")
    assert "push-egress" in running.run("sh", "-c", "ls /sys/fs/bpf/mrcd/abi*/links").stdout.split()


def test_a_read_only_disk_stops_no_start(running: Machine) -> None:
    running.run("systemctl", "stop", "mrcd")
    running.run("sh", "-c", "rm -r /var/lib/mrcd && mount -t tmpfs -o ro none /var/lib")
    try:
        running.run("systemctl", "start", "mrcd")
        warning = json.loads(running.run("mrcctl", "deny", "plane:0", "--json").stdout)["warning"]
        assert "/var/lib/mrcd" in warning
        assert "Read-only file system" in warning
    finally:
        running.run("umount", "/var/lib")
        running.run("mrcctl", "allow", "plane:0")


def test_one_group_may_read_another_one_change_and_others_nothing(running: Machine) -> None:
    running.run(*AS_NOBODY, "--groups=mrcd", "mrcctl", "status")
    refused = running.run(*AS_NOBODY, "--groups=mrcd", "mrcctl", "deny", "plane:0", check=False)
    assert refused.returncode == 2
    assert "mrcd-admin" in refused.stderr
    running.run(*AS_NOBODY, "--groups=mrcd,mrcd-admin", "mrcctl", "deny", "plane:0")
    running.run(*AS_NOBODY, "--groups=mrcd,mrcd-admin", "mrcctl", "allow", "plane:0")
    refused = running.run(*AS_NOBODY, "--clear-groups", "mrcctl", "status", check=False)
    assert refused.returncode == 2
    assert "permission denied" in refused.stderr
    assert "group mrcd" in refused.stderr


_CONNECT = "import socket; socket.socket(socket.AF_UNIX).connect('/run/mrcd/mrcd.sock')"
_FILL = """
import signal, socket
held = []
for _ in range(300):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect("/run/mrcd/mrcd.sock")
print("full", flush=True)
signal.pause()
"""
_ASK_WHILE_FULL = """
"$@" >/run/full & filling=$!
until grep -q full /run/full; do kill -0 $filling; done
mrcctl status --json
kill $filling
"""
ATTEMPTS = {
    "hold the lock open": "exec 9</run/mrcd/mrcd.lock",
    "remove the socket": "rm -f /run/mrcd/mrcd.sock",
    "move a file of the run directory": "mv -f /run/mrcd/running.json /tmp/stolen",
    "write a file of the run directory": "echo '{}' >/run/mrcd/running.json",
    "fill the run directory": "head -c 9999 /dev/zero >/run/mrcd/full",
    "fill the state directory": "head -c 9999 /dev/zero >/var/lib/mrcd/full",
    "deny paths by the file of denials": "echo '[]' >/var/lib/mrcd/denials.json",
    "read the pins": "ls /sys/fs/bpf/mrcd/*",
    "read the environment of mrcd": "cat /proc/$PID/environ",
    "read the memory of mrcd": "head -c 1 /proc/$PID/mem",
    "end mrcd": "kill -TERM $PID",
    "stop the service": "systemctl --no-ask-password stop mrcd",
    "change the cluster file": "echo >>/etc/mrcd/mrcd.toml",
    "deny a plane": "mrcctl deny plane:0 --force",
    "drain a plane": "mrcctl drain plane:0",
    "reload": "mrcctl reload",
    "detach": "mrcctl detach --force",
    "delete mrc0": "ip link del mrc0",
    "delete the routes": "ip route flush proto 77",
    "send probes": "mrcctl probe h1 --count 1",
    "read packets": "mrcctl capture --count 1",
}
AS_NOBODY = ["setpriv", "--reuid=nobody", "--regid=nogroup"]


def _state(machine: Machine) -> list[str]:
    """Returns what no ordinary user may change: mrcd's process, files, programs, routes and denials."""
    looks = (
        "find /run/mrcd /var/lib/mrcd /sys/fs/bpf/mrcd -printf '%p %u %m\\n' | sort",
        "(ip route show proto 77; ip -6 route show proto 77) | grep mrc0; ip -o link show mrc0 | cut -d' ' -f1-5",
        "mrcctl denials --json",
        "sha256sum /etc/mrcd/mrcd.toml",
    )
    found = [machine.run("sh", "-c", look).stdout for look in looks]
    status = json.loads(machine.run("mrcctl", "status", "--json").stdout)
    return [*found, str(machine.main_pid()), str(status["attached"])]


@pytest.mark.parametrize("groups", ["--clear-groups", "--groups=mrcd"], ids=["a stranger", "a reader"])
def test_an_ordinary_user_can_change_nothing(running: Machine, groups: str) -> None:
    before, pid = _state(running), running.main_pid()
    for what, script in ATTEMPTS.items():
        done = running.run(*AS_NOBODY, groups, "env", f"PID={pid}", "sh", "-c", script, check=False)
        assert done.returncode != 0, what
        assert "Traceback" not in done.stderr, what
    is_refused = running.run(*AS_NOBODY, groups, "python3", "-c", _CONNECT, check=False).returncode != 0
    assert is_refused is (groups == "--clear-groups")
    assert _state(running) == before


def test_a_reader_cannot_fill_the_control_socket(running: Machine) -> None:
    filling = [*AS_NOBODY, "--groups=mrcd", "python3", "-c", _FILL]
    answer = running.run("sh", "-ec", _ASK_WHILE_FULL, "sh", *filling)
    assert json.loads(answer.stdout)["daemon"]["running"]


@pytest.mark.usefixtures("pinged")
def test_stop_and_start_lose_no_packet(running: Machine) -> None:
    before = sprayed(running)
    running.run("systemctl", "stop", "mrcd")
    assert (running.show("ActiveState"), running.show("Result")) == ("inactive", "success")
    stopped = sprayed(running)  # from the tables: /run/mrcd is still there
    wait_until("forwarding goes on", lambda: sprayed(running) > stopped + 20)
    running.run("systemctl", "start", "mrcd")
    assert sprayed(running) > stopped > before


@pytest.mark.usefixtures("pinged")
def test_a_killed_daemon_is_restarted_and_counters_continue(running: Machine) -> None:
    pid, before, restarts = running.main_pid(), sprayed(running), int(running.show("NRestarts"))
    running.signal(signal.SIGKILL)
    wait_until("mrcd is started again", lambda: running.main_pid() not in (0, pid))
    wait_until("and is ready", lambda: running.show("SubState") == "running")
    assert int(running.show("NRestarts")) == restarts + 1
    assert sprayed(running) > before


@pytest.mark.usefixtures("pinged")
def test_a_hanging_daemon_is_killed_with_a_traceback(running: Machine) -> None:
    drop_in(running, "[Service]\\nWatchdogSec=1\\n")
    running.run("systemctl", "restart", "mrcd")
    pid, began = running.main_pid(), time.monotonic()
    wait_until("the watchdog is fed for some time", lambda: time.monotonic() - began > 2)
    assert running.main_pid() == pid
    running.signal(signal.SIGSTOP)
    wait_until("the watchdog expires", lambda: running.show("Result") == "watchdog")
    wait_until("mrcd is started again", lambda: running.main_pid() not in (0, pid))
    assert "Fatal Python error: Aborted" in running.said()


@pytest.mark.usefixtures("pinged")
def test_an_invalid_configuration_is_reported_once_and_forwarding_continues(running: Machine) -> None:
    good = running.config.read_text()
    running.config.write_text(good.replace("planes = 2", "plains = 2"))
    try:
        assert running.run("systemctl", "restart", "mrcd", check=False).returncode != 0
        assert (running.show("ExecMainStatus"), running.show("ActiveState")) == ("78", "failed")  # no restarts
        assert "plains: unknown key" in running.said().splitlines()[-2]
    finally:
        running.config.write_text(good)
    running.run("systemctl", "reset-failed", "mrcd")
    running.run("systemctl", "start", "mrcd")


@pytest.mark.usefixtures("pinged")
def test_systemctl_reload_applies_the_file(running: Machine) -> None:
    pid, good = running.main_pid(), running.config.read_text()
    try:
        running.config.write_text(good + "\n[health]\nhold_down_ms = 1500\n")
        running.run("systemctl", "reload", "mrcd")
        running.config.write_text(good + "\n[health]\nhold_down = 1\n")
        refused = running.run("systemctl", "reload", "mrcd", check=False)
        assert refused.returncode != 0
        assert "unknown key" in running.said()
    finally:
        running.config.write_text(good)
    running.run("systemctl", "reload", "mrcd")
    assert (running.main_pid(), running.show("ActiveState")) == (pid, "active")


def test_systemd_analyze_reports_no_error(running: Machine) -> None:
    """Nothing to complain of; and the score that docs/benchmarks.md names."""
    verified = running.run("systemd-analyze", "verify", "/usr/local/lib/systemd/system/mrcd.service")
    assert not verified.stderr.strip(), verified.stderr
    text = running.run("systemd-analyze", "security", "--offline=true", str(UNIT)).stdout
    score = re.findall(r"Overall exposure level for mrcd.service: ([\d.]+) OK", text)
    named = re.findall(r"systemd-analyze security`?[^.]*? ([\d.]+) \(OK\)", BENCHMARKS.read_text(encoding="utf-8"))
    assert score == named, text
    assert float(score[0]) < 2.5


def test_the_peer_sees_all_evs_good_at_the_end(fabric: Lab, running: Machine) -> None:
    """The last test of this module."""
    running.run("systemctl", "restart", "mrcd")
    wait_until("all EVs are GOOD", lambda: {p["state"] for p in mrcctl(fabric, "h1", "paths")} == {"GOOD"})
