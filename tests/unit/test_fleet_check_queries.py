# SPDX-License-Identifier: BSD-2-Clause
"""Tests the queries of `mrcctl fleet check` with promtool, where Prometheus has each host several times."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import cast

import pytest

from mrcd.fleet_check.read import read
from mrcd.prometheus import Prometheus, Sample

# As a server has them that merges two others, with a label for each; and a second job scrapes the same pages.
COPIES = ["job='mrcd',replica='a'", "job='mrcd',replica='b'", "job='all',replica='a'"]
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: `make set-up` installs it with prometheus"
)
T1 = {"cause": "t1", "target": "t1:1:2"}


class Copies:
    """Answers as such a server: two hosts of which h0 lacks plane 1 and names a T1. Keeps what was asked."""

    def __init__(self, hosts: tuple[str, ...] = ("h0", "h1")) -> None:
        self._hosts = hosts
        self.asked: dict[str, str] = {}  # by their first words

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """Returns the samples of an expression."""
        hosts = {host: {"job": "mrcd", "instance": f"{host}:9479"} for host in self._hosts}
        word = expression.split(" ")[0].split("=~")[0]
        self.asked[word] = expression
        down = {"__name__": "mrc_plane_up", "plane": "1"}
        answers: dict[str, list[Sample]] = {
            "max": [],
            "time()": [(of | {"host": host}, 3.0) for host, of in hosts.items()],
            "{__name__": [(down | of, 0.0) for host, of in hosts.items() if host == "h0" for _ in COPIES],
            "count_values": [(T1 | {"share": "1"}, 1.0)],
            "topk": [(T1 | {"instance": "h0:9479"}, 1.0)],
        }
        return answers[word]


def test_a_plane_of_a_host_is_down_once() -> None:
    samples = read(cast(Prometheus, Copies()), ["h0", "h1"], 60.0)
    assert samples.hosts["h0"].planes_down == [1]
    assert [(named.shares, named.hosts) for named in samples.named] == [({1.0: 1}, ("h0",))]


@needs_promtool
def test_a_host_that_names_a_fault_counts_once(tmp_path: Path) -> None:
    server = Copies()
    read(cast(Prometheus, server), ["h0", "h1"], 60.0)
    series = [f"mrc_build_info{{host='{h}',instance='{h}:9479',{copy}}}" for h in ("h0", "h1") for copy in COPIES]
    series += [f"mrc_fault{{cause='t1',target='t1:1:2',instance='h0:9479',{copy}}}" for copy in COPIES]
    expected = {
        "count_values": '{cause="t1", target="t1:1:2", share="1"}',
        "topk": '{cause="t1", target="t1:1:2", instance="h0:9479"}',
    }
    tests: list[dict[str, object]] = [
        {"expr": server.asked[word], "eval_time": "20s", "exp_samples": [{"labels": labels, "value": 1}]}
        for word, labels in expected.items()
    ]
    run_promtool(tmp_path, dict.fromkeys(series, "1 1"), tests)


@needs_promtool
def test_a_host_is_down_if_it_was_not_reached_for_the_age_of_a_sample(tmp_path: Path) -> None:
    """Scrapes are 15 s apart: of h1 only the last one failed, of h2 those of 60 s, and h3 is reached."""
    server = Copies(("h0",))
    read(cast(Prometheus, server), ["h0", "h1", "h2", "h3"], 60.0)
    reached = {"h1": "1 1 1 1 1 0", "h2": "1 0 0 0 0 0", "h3": "1 1 1 1 1 1"}
    series = {}
    for host, up in reached.items():
        for copy in COPIES:
            series[f"up{{instance='{host}:9479',{copy}}}"] = up
            build = up.replace("0", "stale", 1).replace("0", "_")
            series[f"mrc_build_info{{host='{host}',instance='{host}:9479',{copy}}}"] = build
    expected = [
        {"labels": f'{{job="{job}", instance="{host}:9479", host="{host}"}}', "value": value}
        for host, value in (("h1", 1), ("h2", 0))
        for job in ("all", "mrcd")
    ]
    run_promtool(tmp_path, series, [{"expr": server.asked["max"], "eval_time": "80s", "exp_samples": expected}])


def run_promtool(directory: Path, series: dict[str, str], tests: list[dict[str, object]]) -> None:
    """Has promtool evaluate expressions over series, of which single quotes stand for double ones."""
    inputs = [{"series": name.replace("'", '"'), "values": values} for name, values in series.items()]
    rules = directory / "tests.yml"
    test = {"interval": "15s", "input_series": inputs, "promql_expr_test": tests}
    rules.write_text(json.dumps({"evaluation_interval": "5s", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", rules], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
