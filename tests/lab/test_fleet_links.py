# SPDX-License-Identifier: BSD-2-Clause
"""Tests `mrcctl fleet links` with a Prometheus server: faults that lose 1 % are named with their direction."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from labkit.cluster.api import Lab
from labkit.cluster.patience import patience
from labkit.monitoring.prometheus import Prometheus
from labkit.traffic.mesh import Mesh
from tests.lab.conftest import a_lab, all_good, wait_until

WINDOW_S = 8
RATE = 200  # packets per second from each host to each other one
WAYS = {"up": "up", "both": "up and down"}  # as the text says it
NAMED_S = FORGOTTEN_S = patience(300.0)  # a busy machine answers late, and loses and counts in other seconds


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Three T0s with two hosts each, under load: fewer could not tell links of a T1 apart. Two rails share the T1s."""
    if not Prometheus.is_installed():
        pytest.skip("Prometheus is not installed: `make set-up` installs it")
    with a_lab("links", hosts=6, hosts_per_t0=2, planes=4, rails=2, t1=3) as made, Mesh(made, RATE):
        yield made


@pytest.fixture(scope="module")
def server(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with Prometheus(lab, list(lab.fabric.hosts), tmp_path_factory.mktemp("prometheus")) as made:
        wait_until("all hosts are scraped", lambda: ask(made)[1].get("hosts") == 6, patience(180.0), 0.5)
        yield made


def _run(server: Prometheus, *options: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "mrcd.ctl", "fleet", "links", "--prometheus", server.url, "--window", str(WINDOW_S)]
    return subprocess.run([*argv, *options], capture_output=True, text=True)


def ask(server: Prometheus) -> tuple[int, dict[str, Any]]:
    """Returns the exit status of `mrcctl fleet links`, and what it prints."""
    done = _run(server, "--json")
    return done.returncode, json.loads(done.stdout or "{}")


def is_quiet(server: Prometheus) -> bool:
    """Returns whether the whole window is without a loss."""
    status, document = ask(server)
    return (status, document.get("lost_packets"), document.get("links")) == (0, 0, [])


@pytest.mark.parametrize(
    ("target", "direction", "planes", "hosts"),
    [
        ("link:1:0:2", "up", [1], {"h0", "h1"}),
        ("t1:0:1", "both", [0, 2], {f"h{i}" for i in range(6)}),
    ],
)
def test_a_part_that_loses_packets_is_named_and_nothing_else(
    lab: Lab, server: Prometheus, target: str, direction: str, planes: list[int], hosts: set[str]
) -> None:
    wait_until("nothing is lost", lambda: is_quiet(server), FORGOTTEN_S, 0.2)
    lab.fail(target, drop=0.01, **({} if direction == "both" else {"direction": direction}))  # type: ignore[arg-type]

    def is_named() -> bool:
        status, document = ask(server)
        named = [(n["target"], n["direction"], n["planes"], set(n["hosts"])) for n in document.get("links", [])]
        return status == 1 and named == [(target, direction, planes, hosts)]

    def is_printed() -> bool:
        text = _run(server).stdout
        return (
            text.startswith("1 part of the fabric loses packets: ")
            and re.search(rf"\n{target} +{WAYS[direction]} ", text) is not None
            and f"Do: `mrcctl drain {target}`" in text
        )

    try:
        wait_until(f"only {target} is named", is_named, NAMED_S, 0.2)
        wait_until("the text names it, too", is_printed, NAMED_S, 0.2)
    finally:
        lab.heal()
    wait_until("all EVs are GOOD again", lambda: all_good(lab), FORGOTTEN_S)
