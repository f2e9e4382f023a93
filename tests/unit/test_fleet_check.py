# SPDX-License-Identifier: BSD-2-Clause
"""Tests the verdict on a job's hosts, cause by cause."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mrcd.ctl.commands.fleet_check import check_lines
from mrcd.fleet_check.findings import Level, Limits
from mrcd.fleet_check.samples import HostSample, Named, Samples
from mrcd.fleet_check.verdict import Verdict, judge

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


def test_healthy_hosts_are_ready() -> None:
    found = verdict(samples())
    assert (found.word, found.findings, found.not_ready_hosts, found.sweep_age_s) == ("ready", [], [], 0.4)


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


def test_a_cause_of_many_hosts_is_one_line() -> None:
    apart = {name: replace(WELL[name], attached=False) for name in WANTED[1:6]}
    (finding,) = verdict(samples(changed=apart)).findings
    assert finding.sentence.startswith("gpu[2-6] are detached: ")
    assert finding.do == "on each, such as gpu2: `mrcctl attach`"


def test_hosts_without_samples_are_down_or_not_known() -> None:
    found = verdict(samples(down=["gpu2"], without=["gpu7", "gpu8"]))
    assert causes(found) == [("not_ready", "not_scraped"), ("not_ready", "mrcd_down")]
    assert found.not_ready_hosts == ["gpu2", "gpu7", "gpu8"]
    assert [f.sentence for f in found.findings] == [
        "Prometheus has no samples of gpu[7-8]",
        "mrcd on gpu2 does not answer Prometheus",
    ]


def test_one_failed_scrape_makes_no_host_unready() -> None:
    """It would be drained by Slurm's prolog. If it is down, its peers say so."""
    found = verdict(samples(missed=["gpu2"]))
    assert (found.word, causes(found)) == ("degraded", [("degraded", "scrape_failed")])
    assert found.findings[0].sentence.startswith("the last scrape of gpu2 failed; an earlier one is at most 60 s old")
    silent = Named("peer_down", "peer:gpu2", {1.0: 7}, ("gpu1",))
    assert verdict(samples(silent, missed=["gpu2"])).not_ready_hosts == ["gpu2"]


def test_what_peers_say_of_a_host_without_samples_is_in_its_line() -> None:
    found = verdict(samples(Named("peer_down", "peer:gpu2", {1.0: 7}, ("gpu1",)), down=["gpu2"]))
    assert causes(found) == [("not_ready", "mrcd_down")]
    assert found.findings[0].sentence.endswith("; other hosts do not hear gpu2 either")


def test_only_hosts_that_are_not_known_to_be_down_have_a_line_of_their_own() -> None:
    silent = [Named("peer_down", f"peer:gpu{i}", {1.0: 6}, ("gpu1",)) for i in (2, 5)]
    found = verdict(samples(*silent, down=["gpu2"]))
    assert [f.sentence for f in found.findings] == [
        "mrcd on gpu2 does not answer Prometheus; other hosts do not hear gpu2 either",
        "gpu5 does not answer: 6 of 7 hosts see it",
    ]


def test_a_dead_t1_is_named_once_for_all_hosts() -> None:
    """Hosts under T0 0 cannot tell it from link:1:0:2, those under T0 1 from link:1:1:2."""
    found = verdict(
        samples(
            Named("t1", "t1:1:2", {0.5: 8}, ("gpu1",)),
            Named("link", "link:1:0:2", {0.5: 4}, ("gpu1",)),
            Named("link", "link:1:1:2", {0.5: 4}, ("gpu5",)),
        )
    )
    assert causes(found) == [("degraded", "t1")]
    assert found.findings[0].sentence == "t1:1:2 is dead: 8 of 8 hosts see it"
    assert found.findings[0].do == "on gpu1: `mrcctl status` says how to confirm it"
    assert found.findings[0].brief == "plane 1 lacks t1:1:2"
    assert (found.word, found.not_ready_hosts) == ("degraded", [])


def test_a_dead_link_is_named_if_it_explains_more_than_its_t1() -> None:
    found = verdict(
        samples(
            Named("t1", "t1:1:2", {0.5: 4}, ("gpu5",)),
            Named("link", "link:1:1:2", {0.5: 4, 1.0: 4}, ("gpu1",)),
        )
    )
    assert [f.target for f in found.findings] == ["link:1:1:2"]


def test_targets_that_no_host_can_tell_apart_are_one_line() -> None:
    found = verdict(
        samples(
            Named("own_cable", "nic:gpu5:1", {0.5: 1}, ("gpu5",)),
            Named("t0", "t0:1:1", {0.5: 1}, ("gpu5",)),
        )
    )
    assert causes(found) == [("degraded", "own_cable")]
    assert found.findings[0].sentence == "nic:gpu5:1 or t0:1:1 is dead: 1 of 8 hosts see it"


def test_a_nic_of_which_peers_are_sure_is_not_its_t0() -> None:
    found = verdict(
        samples(
            Named("own_cable", "nic:gpu5:1", {0.5: 1}, ("gpu5",)),
            Named("t0", "t0:1:1", {0.5: 1}, ("gpu5",)),
            Named("peer_nic", "nic:gpu5:1", {1.0: 7}, ("gpu1",)),
            changed={"gpu5": replace(WELL["gpu5"], planes_down=(1,), in_use=0.75)},
        )
    )
    assert causes(found) == [("degraded", "own_cable")]
    assert found.findings[0].sentence == "nic:gpu5:1 is dead: 8 of 8 hosts see it"
    assert found.findings[0].do == "on gpu5: `mrcctl status`; check NIC, cable and the T0's port"


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
    ("wanted", "target"),
    [
        (["gpu1", "gpu2"], "peer:gpu3"),
        (["gpu1", "gpu2"], "nic:gpu3:1"),
        (["gpu1", "gpu2"], "ev:gpu3:5"),
        (["gpu1", "gpu2"], "peer:gpu3 plane:1"),
        (["gpu1", "gpu2"], "t0:1:1"),
        (["gpu1", "gpu2"], "t1:1:2"),  # both are under T0 0: no path between them crosses a T1
        (["gpu1", "gpu2"], "link:1:0:2"),
        (["gpu1", "gpu5"], "link:1:2:2"),
    ],
)
def test_what_no_path_of_the_job_crosses_does_not_count(wanted: list[str], target: str) -> None:
    assert verdict(samples(Named("t1", target, {1.0: 2}, ("gpu1",))), wanted).findings == []


@pytest.mark.parametrize("target", ["t0:1:0", "plane:1", "nic:gpu2:1", "peer:gpu1"])
def test_what_a_job_under_one_t0_crosses(target: str) -> None:
    assert len(verdict(samples(Named("t0", target, {1.0: 2}, ("gpu1",))), ["gpu1", "gpu2"]).findings) == 1


def test_two_hosts_that_do_not_hear_each_other_are_not_ready() -> None:
    """In a cluster of two, neither can tell which of them is to blame."""
    named = [Named("peer_down", f"peer:gpu{i}", {0.5: 1}) for i in (1, 2)]
    named += [Named("host", f"host:gpu{i}", {0.5: 1}) for i in (1, 2)]
    found = verdict(samples(*named), ["gpu1", "gpu2"])
    (finding,) = found.findings
    assert finding.sentence == "one of gpu[1-2] does not answer: 2 of 2 hosts see it"
    assert found.not_ready_hosts == ["gpu1", "gpu2"]


def test_a_host_that_is_down_explains_what_its_only_peer_cannot_tell() -> None:
    named = Named("peer_down", "peer:gpu2", {0.5: 1}), Named("host", "host:gpu1", {0.5: 1})
    assert causes(verdict(samples(*named, down=["gpu2"]), ["gpu1", "gpu2"])) == [("not_ready", "mrcd_down")]


def test_a_host_that_is_sure_explains_doubts_about_the_same_cause_only() -> None:
    doubts = [Named("wrong_key", f"peer:gpu{i}", {0.5: 6}) for i in (5, 6)]
    assert [f.hosts for f in verdict(samples(*doubts, Named("wrong_key", "host:gpu5", {1.0: 1}))).findings] == [
        ["gpu5"]
    ]
    found = verdict(samples(*doubts, Named("loss", "peer:gpu2", {1.0: 7})))
    assert causes(found) == [("not_ready", "wrong_key"), ("degraded", "loss")]
    assert found.findings[0].sentence.startswith("one of gpu[5-6] has other secrets than others")


def test_hosts_with_the_same_cause_are_one_line() -> None:
    found = verdict(samples(*(Named("peer_down", f"peer:gpu{i}", {1.0: i}, ("gpu1",)) for i in (4, 5, 7))))
    (finding,) = found.findings
    assert finding.sentence == "gpu[4-5,7] do not answer: up to 7 of 8 hosts see it"
    assert finding.do == "on each, such as gpu4: `systemctl status mrcd`, `mrcctl doctor`"
    assert found.not_ready_hosts == ["gpu4", "gpu5", "gpu7"]


def test_many_hosts_are_counted_in_the_first_line() -> None:
    wanted = [f"gpu{i}" for i in range(1, 41)]
    apart = {name: replace(WELL["gpu1"], attached=int(name[3:]) % 3 == 0) for name in wanted}
    head, sentence, *_ = lines(judge(Samples(apart), wanted, Limits()))
    assert head == "NOT READY: 27 hosts detached"
    assert sentence.startswith("  gpu[1-2,4-5,7-8,10-11,")


def test_what_a_host_says_of_itself_is_not_repeated_by_what_others_name() -> None:
    found = verdict(
        samples(
            Named("peer_detached", "peer:gpu2", {1.0: 7}, ("gpu1",)),
            Named("detached", "host:gpu2", {1.0: 1}, ("gpu2",)),
            changed={"gpu2": replace(WELL["gpu2"], attached=False)},
        )
    )
    assert causes(found) == [("not_ready", "detached")]


def test_causes_beyond_the_limit_of_series_are_told() -> None:
    found = verdict(samples(Named("others", "others", {5.0: 2, 9.0: 1})))
    assert causes(found) == [("degraded", "others")]
    assert found.findings[0].sentence == "3 hosts have more causes than mrc_fault can name"


def test_the_worst_is_first() -> None:
    found = verdict(
        samples(
            Named("denied", "plane:1", {1.0: 1}, ("gpu1",)),
            Named("t1", "t1:1:2", {1.0: 8}, ("gpu1",)),
            Named("peer_down", "peer:gpu2", {1.0: 7}, ("gpu1",)),
        )
    )
    assert [f.level for f in found.findings] == [Level.NOT_READY, Level.DEGRADED, Level.NOTE]
    assert found.word == "not_ready"


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


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_fit_the_terminal(width: int) -> None:
    found = verdict(samples(Named("t1", "t1:1:2", {1.0: 8}, ("gpu1",)), down=["gpu3"], without=["gpu5", "gpu7"]))
    shown = lines(found, width)
    assert max(map(len, shown)) <= width
    assert " ".join(" ".join(shown).split()) == " ".join(" ".join(lines(found)).split())
