# SPDX-License-Identifier: BSD-2-Clause
"""Tests the rules by promtool: syntax, and the alerts that fire for given metrics.

A series is written as `INSTANCE NAME LABEL=VALUE… | VALUES`, with promtool's notation of values; a line each. An alert
is written as its name, its severity, and its other labels: `MrcFault critical target=t1:1:2`.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

RULES = Path(__file__).parents[2] / "scripts/deploy/prometheus"
ALERTS = dict(re.findall(r"(?ms)^ *- alert: (\w+)\n(.*?)(?=^ *- alert:|\Z)", (RULES / "alerts.yml").read_text()))


class Case(NamedTuple):
    """Metrics; the set of all alerts that fire by minute; and values of recorded series at 5 minutes."""

    what: str
    series: str
    firing: Mapping[int, set[str]]
    recorded: Mapping[str, float] = {}


def uplinks(instance: str, host: str, t0: int, received: list[int]) -> str:
    """Returns the counters of a host of plane 1: 100,000 packets sent per T1 in 15 s, and those that arrive."""
    lines = [f"{instance} mrc_fabric_host_info host={host} t0={t0} | 1x100"]
    for t1, arrived in enumerate(received):
        lines.append(f"{instance} mrc_fabric_uplink_tx_packets_total plane=1 t1={t1} | 0+100000x100")
        lines.append(f"{instance} mrc_fabric_uplink_rx_packets_total plane=1 t1={t1} | 0+{arrived}x100")
    return "\n".join(lines) + "\n"


ALL = 100_000
CASES = [
    Case(
        "a healthy pair of hosts, a drained T1, and a fault that is soon over",
        """
        a up | 1x40
        a mrc_build_info host=h0 | 1x40
        a mrc_peer_reachable peer=h1 | 1x40
        a mrc_attached | 1x40
        a mrc_evs peer=h1 state=GOOD | 16x40
        a mrc_evs peer=h1 state=ASSUMED_BAD | 0x40
        a mrc_peers state=below_floor | 0x40
        a mrc_tx_packets_total peer=h1 plane=0 | 0+30000x40
        a mrc_tx_packets_total peer=h1 plane=1 | 0+30300x40
        a mrc_drops_total reason=too_big | 7x40
        a mrc_hook_fallback plane=0 | 0x40
        a mrc_evs_flapping | 0x40
        a mrc_events_lost_total | 0x40
        a mrc_fault cause=denied target=t1:1:0 | 1x40
        a mrc_fault cause=t1 target=t1:1:1 | _x10 1x10 stale
        """,
        {5: set(), 9: set()},
        {'instance_plane:mrc_tx_packets:share1m{instance="a", plane="0"}': 0.9950248756218906}
        | {'instance:mrc_evs_bad:ratio{instance="a"}': 0},
    ),
    Case(
        "the daemon of h0 has died but its kernel answers; h2 is off; d has never answered",
        """
        a up | 1x4 0x40
        b up | 1x44
        c up | 1x4 0x40
        d up | 0x44
        a mrc_build_info host=h0 | 1x4 stale
        b mrc_build_info host=h1 | 1x44
        c mrc_build_info host=h2 | 1x4 stale
        b mrc_peer_reachable peer=h0 | 1x44
        b mrc_peer_reachable peer=h2 | 1x4 0x40
        """,
        {
            3: {"MrcdDownWhileForwarding critical instance=a host=h0", "MrcPeerUnreachable critical peer=h2"},
            7: {
                *("MrcdDownWhileForwarding critical instance=a host=h0", "MrcPeerUnreachable critical peer=h2"),
                "MrcdDown warning instance=d job=mrcd",
            },
        },
    ),
    Case(
        "a T1 of three T0s is dead, and no host can tell it from a link of its T0; a link loses packets",
        """
        a mrc_fault cause=t1 target=t1:1:2 | 0.5x40
        a mrc_fault cause=link target=link:1:0:2 | 0.5x40
        b mrc_fault cause=t1 target=t1:1:2 | 0.5x40
        b mrc_fault cause=link target=link:1:1:2 | 0.5x40
        c mrc_fault cause=t1 target=t1:1:2 | 0.5x40
        c mrc_fault cause=link target=link:1:2:2 | 0.5x40
        b mrc_fault cause=loss target=link:0:2:3 | 1x40
        b mrc_fault cause=slow_plane target=plane:3 | 1x40
        b mrc_fault cause=small_mtu target=nic:h5:0 | 1x40
        b mrc_fault cause=others target=others | 9x40
        """,
        {
            4: set(),
            6: {
                "MrcFault critical target=t1:1:2",
                "MrcImpaired warning cause=loss target=link:0:2:3",
                "MrcImpaired warning cause=slow_plane target=plane:3",
                "MrcImpaired warning cause=small_mtu target=nic:h5:0",
            },
        },
    ),
    Case(
        "a link is dead; hosts under its T0 cannot tell it from the T1, the others can; a T1 of the plane is dead, too",
        """
        a mrc_fault cause=link target=link:1:1:2 | 1x40
        b mrc_fault cause=t1 target=t1:1:2 | 0.5x40
        b mrc_fault cause=link target=link:1:1:2 | 0.5x40
        c mrc_fault cause=link target=link:1:1:2 | 1x40
        a mrc_fault cause=t1 target=t1:1:0 | 0.5x40
        a mrc_fault cause=link target=link:1:0:0 | 0.5x40
        b mrc_fault cause=t1 target=t1:1:0 | 0.5x40
        b mrc_fault cause=link target=link:1:1:0 | 0.5x40
        """,
        {6: {"MrcFault critical target=link:1:1:2", "MrcFault critical target=t1:1:0"}},
    ),
    Case(
        "a host cannot tell its NIC from its T0, and no other host sees either; two hosts have different secrets",
        """
        a mrc_fault cause=own_cable target=nic:h0:1 | 0.5x40
        a mrc_fault cause=t0 target=t0:1:0 | 0.5x40
        a mrc_fault cause=wrong_key target=peer:h1 | 1x40
        b mrc_fault cause=wrong_key target=peer:h0 | 1x40
        b mrc_fault cause=peer_down target=peer:h5 | 0.5x40
        b mrc_fault cause=host target=host:h1 | 0.5x40
        """,
        {
            4: set(),
            6: {
                "MrcFaultUnclear critical plane=1",
                "MrcHostsDiffer critical cause=wrong_key target=peer:h1",
                "MrcHostsDiffer critical cause=wrong_key target=peer:h0",
            },
        },
    ),
    Case(
        "a host with many faults",
        """
        a mrc_peer_reachable peer=h1 | 1x60
        a mrc_attached | 0x160
        a mrc_evs peer=h1 state=GOOD | 3x60
        a mrc_evs peer=h1 state=ASSUMED_BAD | 13x60
        a mrc_peers state=below_floor | 1x60
        a mrc_tx_packets_total peer=h1 plane=0 | 0+30000x60
        a mrc_tx_packets_total peer=h1 plane=1 | 0+90000x60
        a mrc_drops_total reason=wrong_source | 0+60x60
        a mrc_drops_total reason=too_big | 5x60
        a mrc_hook_fallback plane=0 | 1x60
        a mrc_evs_flapping | 2x60
        a mrc_events_lost_total | 0x20 9x40
        """,
        {
            12: {
                "MrcEvsBelowFloor critical",
                "MrcPlaneImbalance warning instance=a plane=0",
                "MrcPlaneImbalance warning instance=a plane=1",
                "MrcEvsFlapping warning",
                "MrcHookFallback warning instance=a job=mrcd plane=0",
                "MrcDrops warning instance=a reason=wrong_source",
                "MrcEventsLost info instance=a job=mrcd",
            },
            35: {"MrcDetached info instance=a job=mrcd"},
        },
        {'instance:mrc_evs_bad:ratio{instance="a"}': 0.8125},
    ),
    Case(
        "h2 is cut off, but its endpoint answers",
        """
        a mrc_peer_reachable peer=h1 | 1x40
        a mrc_peer_reachable peer=h2 | 0x40
        b mrc_peer_reachable peer=h0 | 1x40
        b mrc_peer_reachable peer=h2 | 0x40
        c mrc_peer_reachable peer=h0 | 0x40
        c mrc_peer_reachable peer=h1 | 0x40
        c mrc_fault cause=host target=host:h2 | 1x40
        """,
        {8: {"MrcPeerUnreachable critical peer=h2"}},
    ),
    Case(
        "h2 hears nobody, but others hear it",
        """
        a mrc_peer_reachable peer=h2 | 1x40
        c mrc_peer_reachable peer=h0 | 0x40
        c mrc_fault cause=host target=host:h2 | 1x40
        """,
        {8: {"MrcFault critical target=host:h2"}},
    ),
    Case(
        "two hosts do not hear each other",
        """
        a mrc_peer_reachable peer=h1 | 0x20
        b mrc_peer_reachable peer=h0 | 0x20
        """,
        {3: {"MrcPeerUnreachable critical peer=h0", "MrcPeerUnreachable critical peer=h1"}},
    ),
    Case(
        "no series by peer; h2 is off, h0 has fewer good EVs than the floor to h3, h1 sends unevenly and loses",
        """
        a up | 1x44
        b up | 1x44
        c up | 1x4 0x40
        a mrc_build_info host=h0 peers=groups | 1x44
        b mrc_build_info host=h1 peers=off | 1x44
        c mrc_build_info host=h2 peers=off | 1x4 stale
        a mrc_peers peer_t0=1 state=unreachable | 0x4 1x40
        a mrc_peers peer_t0=0 state=below_floor | 1x44
        b mrc_peers state=unreachable | 0x4 1x40
        a mrc_fault cause=peer_down target=peer:h2 | _x4 1x40
        b mrc_fault cause=peer_down target=peer:h2 | _x4 1x40
        a mrc_evs peer_t0=0 state=GOOD | 30x44
        a mrc_evs peer_t0=0 state=DENIED | 10x44
        b mrc_tx_packets_total plane=0 | 0+30000x44
        b mrc_tx_packets_total plane=1 | 0+30000x44
        b mrc_tx_packets_total plane=2 | 0+60000x44
        b mrc_judged_tx_packets_total | 0+1000x44
        b mrc_judged_rx_packets_total | 0+900x44
        a mrc_judged_tx_packets_total peer_t0=1 | 0+1000x44
        a mrc_judged_rx_packets_total peer_t0=1 | 0+500x44
        """,
        {8: {"MrcPeerUnreachable critical peer=h2", "MrcEvsBelowFloor critical"}},
        {'instance:mrc_evs_bad:ratio{instance="a"}': 0.25}
        | {'instance_plane:mrc_tx_packets:share1m{instance="b", plane="2"}': 1.5}
        | {'instance_peer:mrc_loss:ratio1m{instance="a", peer_t0="1"}': 0.5},
    ),
    Case(
        "no series by peer; the daemon of h2 has died and its kernel answers; two hosts do not hear each other",
        """
        a up | 1x44
        c up | 1x4 0x40
        a mrc_build_info host=h0 peers=off | 1x44
        c mrc_build_info host=h2 peers=off | 1x4 stale
        d mrc_build_info host=h3 peers=groups | 1x44
        e mrc_build_info host=h4 peers=groups | 1x44
        d mrc_peers peer_t0=1 state=unreachable | 1x44
        e mrc_peers peer_t0=0 state=unreachable | 1x44
        d mrc_fault cause=peer_down target=peer:h4 | 0.5x44
        d mrc_fault cause=host target=host:h3 | 0.5x44
        e mrc_fault cause=peer_down target=peer:h3 | 0.5x44
        e mrc_fault cause=host target=host:h4 | 0.5x44
        """,
        {
            8: {
                "MrcdDown warning instance=c job=mrcd",
                "MrcPeerUnreachable critical peer=h3",
                "MrcPeerUnreachable critical peer=h4",
            }
        },
    ),
    Case(
        "h2 has another secret than h0 and h1, and names itself",
        """
        a mrc_peer_reachable peer=h1 | 1x40
        a mrc_peer_reachable peer=h2 | 0x40
        c mrc_peer_reachable peer=h0 | 0x40
        c mrc_peer_reachable peer=h1 | 0x40
        a mrc_fault cause=wrong_key target=peer:h2 | 1x40
        c mrc_fault cause=wrong_key target=host:h2 | 1x40
        c mrc_drops_total reason=bad_tag | 0+6000x40
        """,
        {8: {"MrcHostsDiffer critical cause=wrong_key target=peer:h2"}},
    ),
    Case(
        "a T1 loses packets, and no host can tell it from a link of its T0; traffic of a NIC is lost, or of its T0",
        """
        a mrc_fault cause=loss target=t1:1:2 | 0.5x40
        a mrc_fault cause=loss target=link:1:0:2 | 0.5x40
        b mrc_fault cause=loss target=t1:1:2 | 0.5x40
        b mrc_fault cause=loss target=link:1:1:2 | 0.5x40
        c mrc_fault cause=loss target=nic:h2:0 | 0.5x40
        c mrc_fault cause=loss target=t0:0:1 | 0.5x40
        """,
        {8: {f"MrcImpaired warning cause=loss target={at}" for at in ("t1:1:2", "nic:h2:0", "t0:0:1")}},
    ),
    Case(
        "EVs flap and traffic is uneven on hosts with a lasting fault; those of b flap with one that comes and goes",
        f"""
        a up | 1x60
        b up | 1x60
        a mrc_evs_flapping | 2x60
        b mrc_evs_flapping | _x20 2x20 0x20
        a mrc_fault cause=t1 target=t1:1:2 | 1x60
        b mrc_fault cause=t1 target=t1:1:2 | _{11 * " _ 1 stale"}
        a mrc_tx_packets_total peer=h1 plane=0 | 0+30000x60
        a mrc_tx_packets_total peer=h1 plane=1 | 0+90000x60
        """,
        {
            4: set(),
            8: {"MrcFault critical target=t1:1:2", "MrcEvsFlapping warning"},
            14: {"MrcFault critical target=t1:1:2"},
        },
    ),
    Case(
        "a link from a T0 to a T1 and a NIC lose too few packets for a host to leave them; a T1 loses; g names a link",
        "".join(uplinks(i, f"h{n}", 0, [ALL, ALL, 99_900, 99_700]) for n, i in enumerate("abc"))
        + uplinks("d", "h3", 1, [99_800, 99_800, 99_800, 99_700])
        + "".join(uplinks(i, f"h{n}", 1, [ALL, ALL, ALL, 99_700]) for n, i in ((4, "e"), (5, "f")))
        + uplinks("g", "h6", 2, [99_500, ALL, ALL, 99_700])
        + "g mrc_fault cause=loss target=link:1:2:0 | 1x100\n"
        + "a mrc_fault cause=config_differs target=peer:h6 | _x89 1x11\n",
        {
            14: {"MrcImpaired warning cause=loss target=link:1:2:0"},
            22: {
                "MrcImpaired warning cause=loss target=link:1:2:0",
                "MrcReplaceCable warning kind=link target=link:1:0:2 plane=1 t0=0 t1=2",
                "MrcReplaceCable warning kind=nic target=nic:h3:1 plane=1 t0=1 host=h3",
            },
            23: {"MrcImpaired warning cause=loss target=link:1:2:0"},
        },
    ),
    Case(
        "a link from a T1 to a T0 loses packets, so the other two T0s lose alike by that T1",
        uplinks("a", "h0", 0, [ALL, 99_500, ALL])
        + uplinks("b", "h1", 1, [ALL, ALL, ALL])
        + uplinks("c", "h2", 2, [ALL, 99_350, ALL]),
        {22: set()},
    ),
    Case(
        "with two T0s an uplink that loses cannot be told from the other T0's downlink",
        uplinks("a", "h0", 0, [ALL, 99_500, ALL]) + uplinks("b", "h1", 1, [99_999, ALL, 99_999]),
        {22: set()},
    ),
]


def labels(words: list[str], **more: str) -> str:
    pairs = {**dict(word.split("=", 1) for word in words), **more}
    return "{" + ", ".join(f"{k}={json.dumps(v)}" for k, v in pairs.items()) + "}"


def input_series(text: str) -> Iterator[dict[str, str]]:
    for line in filter(None, map(str.strip, text.splitlines())):
        (instance, name, *words), values = line.partition(" | ")[0].split(), line.partition(" | ")[2]
        job = "mrcd-fabric" if name.startswith("mrc_fabric") else "mrcd"
        yield {"series": name + labels(words, job=job, instance=instance), "values": values}


def sample(alert: str) -> dict[str, Any]:
    name, severity, *words = alert.split()
    more = {"alertname": name, "alertstate": "firing", "severity": severity}
    return {"labels": f"ALERTS{labels(words, **more)}", "value": 1}


def as_promtool(case: Case) -> dict[str, Any]:
    firing = [
        {"expr": 'ALERTS{alertstate="firing"}', "eval_time": f"{m}m", "exp_samples": list(map(sample, alerts))}
        for m, alerts in case.firing.items()
    ]
    recorded = [
        {"expr": series, "eval_time": "5m", "exp_samples": [{"labels": series, "value": value}]}
        for series, value in case.recorded.items()
    ]
    series = list(input_series(case.series))
    return {"name": case.what, "interval": "15s", "input_series": series, "promql_expr_test": firing + recorded}


def promtool(*words: str) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: `make set-up` installs it with prometheus")
    done = subprocess.run(["promtool", *words], cwd=RULES, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_the_rules_are_valid() -> None:
    promtool("check", "rules", "recording.yml", "alerts.yml")


def test_the_alerts_that_fire(tmp_path: Path) -> None:
    files = [str(RULES / name) for name in ("recording.yml", "alerts.yml")]
    document = {"rule_files": files, "evaluation_interval": "15s", "tests": list(map(as_promtool, CASES))}
    (tmp_path / "tests.yml").write_text(json.dumps(document))
    promtool("test", "rules", str(tmp_path / "tests.yml"))


def test_every_alert_fires_and_its_text_uses_its_labels() -> None:
    known = {
        (a.split()[0], *(w.split("=")[0] for w in a.split()[2:])) for c in CASES for f in c.firing.values() for a in f
    }
    assert {name for name, *_ in known} == set(ALERTS)
    for name, *have in known:
        assert set(re.findall(r"\$labels\.(\w+)", ALERTS[name])) <= set(have), name
