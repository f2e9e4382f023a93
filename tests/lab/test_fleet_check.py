# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl fleet check` with a Prometheus server: words and exit status in health and under faults."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from labkit.cluster.api import Lab
from labkit.cluster.patience import patience
from labkit.monitoring.prometheus import Prometheus
from tests.lab.conftest import a_lab, wait_until

WITHIN_S = patience(120.0)
ALL = "h[0-3]"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two T0s with two hosts each."""
    if not Prometheus.is_installed():
        pytest.skip("Prometheus is not installed: `make set-up` installs it")
    with a_lab("check", hosts=4, hosts_per_t0=2, planes=2, t1=2) as made:
        yield made


@pytest.fixture(scope="module")
def server(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with Prometheus(lab, list(lab.fabric.hosts), tmp_path_factory.mktemp("prometheus")) as made:
        yield made


def ask(server: Prometheus, *options: str, hosts: str = ALL) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "mrcd.ctl", "fleet", "check", "--hosts", hosts, "--prometheus", server.url]
    return subprocess.run([*argv, "--max-age", "5", *options], capture_output=True, text=True)


def wait_for(server: Prometheus, head: str, *texts: str, hosts: str = ALL) -> "subprocess.CompletedProcess[str]":
    """Returns the answer that begins with `head`, and has the other texts."""
    seen: list[str] = []

    def answer() -> "subprocess.CompletedProcess[str] | None":
        done = ask(server, hosts=hosts)
        seen[:] = [done.stdout + done.stderr]
        return done if done.stdout.startswith(head) and all(text in done.stdout for text in texts) else None

    try:
        found: subprocess.CompletedProcess[str] = wait_until(head, answer, WITHIN_S, 0.1)
    except pytest.fail.Exception:
        pytest.fail(f"{(head, *texts)} were wanted, the last answer is:\n{seen[0]}")
    return found


@contextlib.contextmanager
def broken(lab: Lab, server: Prometheus, target: str, *, down: bool = False) -> Iterator[None]:
    """A block with a fault; after it the hosts are ready again."""
    lab.fail(target, down=down)
    try:
        yield
    finally:
        lab.heal()
    wait_for(server, "READY: 4 hosts")


def document(server: Prometheus, hosts: str = ALL) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(server, "--json", hosts=hosts).stdout)
    return found


def test_a_healthy_lab_is_ready(server: Prometheus) -> None:
    done = wait_for(server, "READY: 4 hosts, last full sweep ")
    assert (done.returncode, done.stderr, len(done.stdout.splitlines())) == (0, "", 1)
    found = document(server)
    assert (found["verdict"], found["findings"], found["not_ready_hosts"]) == ("ready", [], [])
    assert 0 <= found["sweep_age_s"] < 10
    takes = server.query("mrc_full_sweep_seconds")
    assert [value for _, value in takes] == [1.0] * 4
    kept = "max(max_over_time(mrc_full_sweep_age_seconds[3s])) < 1.5"
    wait_until("the schedule is kept for 3 s", lambda: server.query(kept), WITHIN_S, 0.2)


def test_a_dead_t1_degrades_jobs_whose_paths_cross_it(lab: Lab, server: Prometheus) -> None:
    with broken(lab, server, "t1:1:0"):
        named = "t1:1:0 is dead: 4 of 4 hosts see it\n    Do: on h"
        done = wait_for(server, "READY, degraded: plane 1 lacks t1:1:0\n", named)
        assert (done.returncode, done.stderr) == (0, "")
        assert ask(server, "--strict").returncode == 1
        under_one_t0 = ask(server, "--strict", hosts="h[0-1]")
        assert (under_one_t0.returncode, under_one_t0.stdout[:6]) == (0, "READY:")


def test_a_nic_without_carrier_degrades_jobs_of_its_host(lab: Lab, server: Prometheus) -> None:
    with broken(lab, server, "nic:h1:1", down=True):
        do = "\n    Do: on h1: `mrcctl status`; check NIC, cable and the T0's port\n"
        done = wait_for(server, "READY, degraded: plane 1 lacks nic:h1:1\n", do, "4 of 4 hosts see it")
        assert done.returncode == 0
        assert ask(server, hosts="h0,h[2-3]").stdout.startswith("READY: 3 hosts")
        assert ask(server, "--least-evs", "60").returncode == 2


@pytest.mark.parametrize(
    ("break_", "mend", "head", "do"),
    [
        (
            lambda lab: lab.exec("h2", ["mrcctl", "detach"], check=True),
            lambda lab: lab.exec("h2", ["mrcctl", "attach"], check=True),
            "NOT READY: h2 detached\n",
            "Do: on h2: `mrcctl attach`",
        ),
        (
            lambda lab: os.kill(lab.daemon_pid("h3"), signal.SIGKILL),
            lambda lab: None,
            "NOT READY: h3 down\n",
            "Do: on h3: is the host up? `systemctl status mrcd`",
        ),
    ],
    ids=["detached", "mrcd killed"],
)
def test_a_host_without_mrcd_is_not_ready(
    lab: Lab, server: Prometheus, break_: Callable[[Lab], None], mend: Callable[[Lab], None], head: str, do: str
) -> None:
    """mrcd on h3 is not started again: it is the last fault."""
    wait_for(server, "READY: 4 hosts")
    break_(lab)
    try:
        done = wait_for(server, head, do)
        assert (done.returncode, done.stderr) == (2, "")
        assert document(server)["not_ready_hosts"] == [head.split()[2]]
        assert ask(server, hosts="h[0-1]").stdout.startswith("READY: 2 hosts")
    finally:
        mend(lab)
