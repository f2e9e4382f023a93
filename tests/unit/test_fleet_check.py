# SPDX-License-Identifier: BSD-2-Clause
"""Tests the verdict on a job's hosts, cause by cause, and the queries that it rests on."""

import json
import math
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mrcd.ctl.commands.fleet_check import check_lines
from mrcd.fleet_check.findings import HostSample, Limits, Named, Samples
from mrcd.fleet_check.read import read
from mrcd.fleet_check.verdict import Verdict, judge
from mrcd.prometheus import Prometheus, Sample

WANTED = [f"gpu{i}" for i in range(1, 9)]  # four under each of two T0s
WELL = {
    name: HostSample(
        age_s=7, version="1.0", auth_mode="required", key_ids=("3",), t0=i // 4,
        agreed="a1b2", sha256="0123456789ab", generation="4711", in_use=1.0, sweep_age_s=0.4, full_sweep_s=1.0,
    )
    for i, name in enumerate(WANTED)
}  # fmt: skip


def samples(
    *named: Named,
    down: Sequence[str] = (),
    without: Sequence[str] = (),
    missed: Sequence[str] = (),
    changed: Mapping[str, HostSample] | None = None,
) -> Samples:
    """Returns healthy hosts, but for these."""
    hosts = {name: s for name, s in (WELL | dict(changed or {})).items() if name not in (*down, *without, *missed)}
    return Samples(hosts, frozenset(down), frozenset(missed), named)


def verdict(known: Samples, wanted: Sequence[str] = tuple(WANTED)) -> Verdict:
    hosts = {name: sample for name, sample in known.hosts.items() if name in wanted}
    return judge(replace(known, hosts=hosts), wanted, Limits())


def causes(found: Verdict) -> list[tuple[str, str]]:
    return [(str(f.level), f.cause) for f in found.findings]


@pytest.mark.parametrize(
    ("changes", "level", "cause", "sentence", "do"),
    [
        ({"attached": False}, "not_ready", "detached", "gpu3 is detached: ", "on gpu3: `mrcctl attach`"),
        ({"age_s": 61}, "not_ready", "old_samples", "the newest samples of gpu3 are up to 61 s old", "/targets"),
        ({"sweep_age_s": 10.1}, "not_ready", "old_sweep", "the last full sweep of gpu3 is 10 s old", "wait 10 s"),
        ({"sweep_age_s": math.inf}, "not_ready", "old_sweep", "no full sweep of gpu3 is over", "mrcctl doctor"),
        ({"sweep_age_s": None}, "not_ready", "no_sweep", "it is an older version", "upgrade mrcd"),
        ({"in_use": 0.49}, "not_ready", "few_evs", "49 % of the EVs of gpu3 are in use; 50 %", "`mrcctl paths --bad`"),
        ({"agreed": "ffff"}, "not_ready", "config_differs", "[cluster] differs", "on gpu3 and another host"),
        ({"sha256": "x"}, "degraded", "file_differs", "gpu3 and the others run different generations", "fleet status"),
        ({"generation": "4698"}, "degraded", "file_differs", "different generations", "`mrcctl fleet status`"),
        ({"version": "0.9"}, "degraded", "version_differs", "mrcd 0.9 on gpu3, 1.0 on the others", "upgrade gpu3"),
        ({"auth_mode": "permissive"}, "degraded", "auth_mode", "permissive, required", "on gpu3 and another host"),
        ({"auth_mode": "off", "key_ids": ()}, "not_ready", "auth_mode", "refuses the packets of off", "config show"),
        ({"key_ids": ("3", "4")}, "degraded", "keys_differ", "a rotation is not over", "`mrcctl keys rotate`"),
        ({"key_ids": ("4",)}, "not_ready", "wrong_key", "no secret in common", "on gpu3: `mrcctl keys status`"),
        ({"planes_down": (1,)}, "degraded", "plane_down", "plane 1 of gpu3 is down", "on gpu3: `mrcctl status`"),
    ],
)
def test_what_a_host_says_of_itself(changes: dict[str, Any], level: str, cause: str, sentence: str, do: str) -> None:
    found = verdict(samples(changed={"gpu3": replace(WELL["gpu3"], **changes)}))
    assert causes(found) == [(level, cause)]
    assert found.word == level
    assert found.not_ready_hosts == (["gpu3"] if level == "not_ready" else [])
    assert sentence in found.findings[0].sentence
    assert do in found.findings[0].do
    assert verdict(samples(changed={"gpu3": replace(WELL["gpu3"], **changes)}), ["gpu1", "gpu2"]).word == "ready"


@pytest.mark.parametrize(
    "changes",
    [
        {"age_s": 60},
        {"sweep_age_s": 10.0},
        {"sweep_age_s": 60.0, "full_sweep_s": 20.0},
        {"sweep_age_s": math.nan},
        {"in_use": 0.5},
        {"in_use": math.nan},
        {"in_use": None},
    ],
)
def test_what_is_still_ready(changes: dict[str, Any]) -> None:
    assert verdict(samples(changed={"gpu3": replace(WELL["gpu3"], **changes)})).findings == []


def named(cause: str, target: str, shares: dict[float, int], *hosts: str) -> Named:
    return Named(cause, target, shares, hosts or ("gpu1",))


def detached(*hosts: str) -> dict[str, HostSample]:
    return {name: replace(WELL[name], attached=False) for name in hosts}


NO_PLANE_1 = {"gpu5": replace(WELL["gpu5"], planes_down=(1,), in_use=0.75)}
PEER_2_DOWN = named("peer_down", "peer:gpu2", {1.0: 7})
OWN_CABLE, ITS_T0 = (named(c, t, {0.5: 1}, "gpu5") for c, t in (("own_cable", "nic:gpu5:1"), ("t0", "t0:1:1")))
DOUBTS = [named("wrong_key", f"peer:gpu{i}", {0.5: 6}) for i in (5, 6)]
TWO = ["gpu1", "gpu2"]
# Samples; each finding as "level cause: first words … first words of what to do"; the hosts that are not ready.
VERDICTS: dict[str, tuple[Samples, list[str], list[str]]] = {
    "healthy hosts": (samples(), [], []),
    "a cause of many hosts is one line": (
        samples(changed=detached(*WANTED[1:6])),
        ["not_ready detached: gpu[2-6] are detached: … on each, such as gpu2: `mrcctl attach`"], WANTED[1:6],
    ),
    "hosts without samples are down or not known": (
        samples(down=["gpu2"], without=["gpu7", "gpu8"]),
        [
            "not_ready not_scraped: Prometheus has no samples of gpu[7-8]",
            "not_ready mrcd_down: mrcd on gpu2 does not answer Prometheus",
        ],
        ["gpu2", "gpu7", "gpu8"],
    ),
    "one failed scrape makes no host unready: Slurm's prolog would drain it": (
        samples(missed=["gpu2"]),
        ["degraded scrape_failed: the last scrape of gpu2 failed; an earlier one is at most 60 s old"], [],
    ),
    "if it is down, its peers say so": (
        samples(PEER_2_DOWN, missed=["gpu2"]),
        ["not_ready peer_down: gpu2 does not answer", "degraded scrape_failed: the last scrape of gpu2"], ["gpu2"],
    ),
    "what peers say of a host that is down is in its line": (
        samples(PEER_2_DOWN, named("peer_down", "peer:gpu5", {1.0: 6}), down=["gpu2"]),
        [
            "not_ready mrcd_down: mrcd on gpu2 does not answer Prometheus; other hosts do not hear gpu2 either",
            "not_ready peer_down: gpu5 does not answer: 6 of 7 hosts see it",
        ],
        ["gpu2", "gpu5"],
    ),
    # Hosts under T0 0 cannot tell it from link:1:0:2, those under T0 1 from link:1:1:2.
    "a dead T1 is named once for all hosts": (
        samples(
            named("t1", "t1:1:2", {0.5: 8}), named("link", "link:1:0:2", {0.5: 4}),
            named("link", "link:1:1:2", {0.5: 4}, "gpu5"),
        ),
        ["degraded t1: t1:1:2 is dead: 8 of 8 hosts see it … on gpu1: `mrcctl status` says how to confirm it"], [],
    ),
    "a dead link is named if it explains more than its T1": (
        samples(named("t1", "t1:1:2", {0.5: 4}, "gpu5"), named("link", "link:1:1:2", {0.5: 4, 1.0: 4})),
        ["degraded link: link:1:1:2 "], [],
    ),
    "targets that no host can tell apart are one line": (
        samples(OWN_CABLE, ITS_T0), ["degraded own_cable: nic:gpu5:1 or t0:1:1 is dead: 1 of 8 hosts see it"], [],
    ),
    "a NIC of which peers are sure is not its T0": (
        samples(OWN_CABLE, ITS_T0, named("peer_nic", "nic:gpu5:1", {1.0: 7}), changed=NO_PLANE_1),
        [
            "degraded own_cable: nic:gpu5:1 is dead: 8 of 8 hosts see it"
            " … on gpu5: `mrcctl status`; check NIC, cable and the T0's port",
        ],
        [],
    ),
    "hosts with the same cause are one line": (
        samples(*(named("peer_down", f"peer:gpu{i}", {1.0: i}) for i in (4, 5, 7))),
        [
            "not_ready peer_down: gpu[4-5,7] do not answer: up to 7 of 8 hosts see it"
            " … on each, such as gpu4: `systemctl status mrcd`, `mrcctl doctor`",
        ],
        ["gpu4", "gpu5", "gpu7"],
    ),
    "what a host says of itself is not repeated": (
        samples(
            named("peer_detached", "peer:gpu2", {1.0: 7}), named("detached", "host:gpu2", {1.0: 1}, "gpu2"),
            changed=detached("gpu2"),
        ),
        ["not_ready detached: gpu2 is detached"], ["gpu2"],
    ),
    "a host that is sure explains doubts about the same cause": (
        samples(*DOUBTS, named("wrong_key", "host:gpu5", {1.0: 1})),
        ["not_ready wrong_key: gpu5 has other secrets"], ["gpu5"],
    ),
    "and about no other": (
        samples(*DOUBTS, named("loss", "peer:gpu2", {1.0: 7})),
        ["not_ready wrong_key: one of gpu[5-6] has other secrets than others", "degraded loss: "], ["gpu5", "gpu6"],
    ),
    "causes beyond the limit of series": (
        samples(named("others", "others", {5.0: 2, 9.0: 1})),
        ["degraded others: 3 hosts have more causes than mrc_fault can name"], [],
    ),
    "the worst is first": (
        samples(named("denied", "plane:1", {1.0: 1}), named("t1", "t1:1:2", {1.0: 8}), PEER_2_DOWN),
        ["not_ready peer_down: ", "degraded t1: ", "note denied: "], ["gpu2"],
    ),
}  # fmt: skip


def check_verdict(found: Verdict, lines: list[str], not_ready: list[str]) -> None:
    for finding, line in zip(found.findings, lines, strict=True):
        words, _, do = line.partition(" … ")
        assert f"{finding.level} {finding.cause}: {finding.sentence}".startswith(words.rstrip())
        assert finding.do.startswith(do)
    assert found.not_ready_hosts == not_ready
    assert found.word == (lines[0].split()[0] if lines else "ready")


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts(name: str) -> None:
    known, lines, not_ready = VERDICTS[name]
    check_verdict(verdict(known), lines, not_ready)


def test_two_hosts_that_do_not_hear_each_other_are_not_ready() -> None:
    """In a cluster of two, neither can tell which of them is to blame, unless one is known to be down."""
    two = [named("peer_down", f"peer:gpu{i}", {0.5: 1}) for i in (1, 2)]
    two += [named("host", f"host:gpu{i}", {0.5: 1}) for i in (1, 2)]
    sentence = "one of gpu[1-2] does not answer: 2 of 2 hosts see it"
    check_verdict(verdict(samples(*two), TWO), [f"not_ready peer_down: {sentence}"], TWO)
    known = samples(two[1], two[2], down=["gpu2"])
    check_verdict(verdict(known, TWO), ["not_ready mrcd_down: mrcd on gpu2"], ["gpu2"])


@pytest.mark.parametrize(
    ("cause", "target", "level", "sentence"),
    [
        ("peer_down", "peer:gpu2", "not_ready", "gpu2 does not answer: 3 of 8 hosts see it"),
        ("host", "host:gpu2", "not_ready", "gpu2 does not answer"),
        ("wrong_key", "peer:gpu2", "not_ready", "gpu2 has other secrets"),
        ("config_differs", "host:gpu2", "not_ready", "gpu2 has another cluster file or version"),
        ("peer_detached", "peer:gpu2", "not_ready", "gpu2 is detached"),
        ("denied", "peer:gpu2", "not_ready", "gpu2 is denied by an administrator"),
        ("denied", "t1:1:2", "note", "t1:1:2 is denied by an administrator"),
        ("loss", "link:1:0:2", "degraded", "link:1:0:2 loses packets"),
        ("small_mtu", "link:1:0:2", "degraded", "link:1:0:2 has too small an MTU"),
        ("slow_plane", "plane:1", "degraded", "plane:1 delays packets"),
        ("wrong_cable", "nic:gpu2:1", "degraded", "nic:gpu2:1 has the cable of another NIC or port"),
        ("unknown", "ev:gpu2:5", "degraded", "ev:gpu2:5 has failed EVs, and no element explains them"),
        ("unknown", "peer:gpu2 plane:1", "degraded", "peer:gpu2 plane:1 has failed EVs"),
        ("own_t0", "t0:1:0", "degraded", "t0:1:0 is dead"),
        ("of_a_newer_mrcd", "t0:1:0", "degraded", "t0:1:0 has failed EVs"),
    ],
)
def test_what_hosts_name(cause: str, target: str, level: str, sentence: str) -> None:
    found = verdict(samples(Named(cause, target, {1.0: 3}, ("gpu1",))))
    assert [str(f.level) for f in found.findings] == [level]
    assert found.findings[0].sentence.startswith(sentence)
    assert found.findings[0].do
    assert found.not_ready_hosts == (["gpu2"] if level == "not_ready" else [])


@pytest.mark.parametrize(
    ("wanted", "targets", "crossed"),
    [
        (TWO, ["t0:1:0", "plane:1", "nic:gpu2:1", "peer:gpu1"], True),
        (TWO, ["peer:gpu3", "nic:gpu3:1", "ev:gpu3:5", "peer:gpu3 plane:1", "t0:1:1"], False),
        (TWO, ["t1:1:2", "link:1:0:2"], False),  # both are under T0 0: no path between them crosses a T1
        (["gpu1", "gpu5"], ["link:1:2:2"], False),
    ],
)
def test_only_what_paths_of_the_job_cross_counts(wanted: list[str], targets: list[str], crossed: bool) -> None:
    for target in targets:
        assert len(verdict(samples(named("t1", target, {1.0: 2})), wanted).findings) == crossed, target


def test_many_hosts_are_counted_in_the_first_line() -> None:
    wanted = [f"gpu{i}" for i in range(1, 41)]
    apart = {name: replace(WELL["gpu1"], attached=int(name[3:]) % 3 == 0) for name in wanted}
    head, sentence, *_ = lines(judge(Samples(apart), wanted, Limits()))
    assert head == "NOT READY: 27 hosts detached"
    assert sentence.startswith("  gpu[1-2,4-5,7-8,10-11,")


def lines(found: Verdict, width: int | None = None, colour: bool = False) -> list[str]:
    return check_lines(found.document(), colour=colour, width=width)


def test_the_first_line_is_the_verdict() -> None:
    assert lines(verdict(samples())) == ["READY: 8 hosts, last full sweep 0.4 s ago"]
    t1 = Named("t1", "t1:1:2", {1.0: 8}, ("gpu1",))
    assert lines(verdict(samples(t1))) == [
        "READY, degraded: plane 1 lacks t1:1:2",
        "  t1:1:2 is dead: 8 of 8 hosts see it",
        "    Do: on gpu1: `mrcctl status` says how to confirm it",
    ]
    assert lines(verdict(samples(t1, down=["gpu3"])))[0] == "NOT READY: gpu3 down"
    assert lines(verdict(samples()), colour=True)[0] == "\033[32mREADY\033[0m: 8 hosts, last full sweep 0.4 s ago"


# ---- queries ----


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
