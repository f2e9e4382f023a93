# SPDX-License-Identifier: BSD-2-Clause
"""Tests commands that need root or Prometheus in terminals of 40, 80 and 200 columns: no line wraps, and what a narrow
table leaves out is named. test_ctl_golden.py has the other commands.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click import testing
from click.testing import Result

from mrcd.ctl.packets.exchange import Tally
from mrcd.fleet_check.samples import HostSample, Samples
from tests.unit.canned_daemon import BAD_PATH, PATH, PEER, Daemon

Mrcctl = Callable[..., Result]

NAME = "gpu-node-0017"
COUNTS = Tally(20, rtts=[31_200] * 19).document()
ROUTE = ["5f00:0:4800:8801:4801:c800::"]
EV = {"ev": 6, "plane": 1, "t1": 2, "state": "ASSUMED_BAD", "carrier": ROUTE[0]} | COUNTS
PROBED = {"peer": NAME, "size_bytes": 176, "evs": [EV], "sent": 20, "received": 19, "loss_ratio": 0.05}
HOP = {"name": "T0 3 → T1 2 → T0 7 (back)", "hop": 1, "ok": False, "slow": False, "segments": ROUTE * 2} | COUNTS
TRACED = {
    "host": "h0", "peer": NAME, "ev": 6, "plane": 1, "t1": 2, "state": "ASSUMED_BAD", "hops": [HOP], "checks": [HOP],
    "verdict": "broken in plane 1: t1:1:2 (T1 2), or link:1:0:2 (T0 0 → T1 2)", "targets": ["t1:1:2"], "broken": True,
}  # fmt: skip
CHECK = {
    "id": "nic.receive_queues", "status": "FAIL", "fix": "ethtool -N p0 rx-flow-hash udp6 sdfn",
    "evidence": "p0 receives 98 % of its packets in one of 16 queues: its RSS does not hash the UDP source port",
}  # fmt: skip
EXAMINED = {"command": "doctor", "checks": [CHECK], "summary": {"PASS": 0, "WARN": 0, "FAIL": 1, "SKIP": 0}}

LOST = {
    "target": f"nic:{NAME}:1", "kind": "nic", "direction": "both", "loss_ratio": 0.0123, "lost_packets": 1234,
    "confidence": 0.512, "or_targets": ["t0:1:0", "link:1:0:2"], "since_s": 720.0, "hosts": [NAME] * 4,
    "host_count": 17,
}  # fmt: skip
LOCALISED = {
    "time": "2030-01-02T03:04:05+00:00", "window_s": 60.0, "hosts": 17, "packets": 10**9, "lost_packets": 1234,
    "links": [LOST], "differing": ["h2"], "differing_is_sure": True,
}  # fmt: skip

# A command, and how the headings of its tables begin.
TABLES = {
    f"fleet check --hosts {NAME},h[1-9] --prometheus http://prometheus:9090": [],
    "fleet links --prometheus http://prometheus:9090": ["TARGET "],
    f"probe {NAME}": ["EV "],
    f"trace {NAME} --ev 6": ["HOP "],
    f"trace {NAME}": [],
    "doctor": [],
    "preflight": [],
}


@pytest.fixture
def terminal(
    mrcctl: Mrcctl, daemon: Daemon, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, int], list[str]]:
    """Runs a command in a terminal of so many columns, and returns its lines; the documents have long names."""
    daemon.answers |= {
        "/v1/peers": (200, [PEER | {"peer": NAME}]),
        "/v1/paths": (200, [PATH | {"peer": NAME}, BAD_PATH | {"peer": NAME}]),
    }
    (run_dir / "links").mkdir()
    hosts = [{"name": "h0", "id": 0}, {"name": "h2", "id": 2}]
    running = {"host": "h0", "pins": str(run_dir), "config": {"hosts": hosts}}
    (run_dir / "running.json").write_text(json.dumps(running))
    for where, made in {
        "mrcd.ctl.packets.probe.run": lambda *given, **options: PROBED,
        "mrcd.ctl.packets.trace.run": lambda *given, **options: TRACED,
        "mrcd.fleet_check.read.read": lambda *given: Samples({NAME: HostSample(attached=False)}),
        "mrcd.fleet_links.document.localised": lambda *given: LOCALISED,
        "mrcd.ctl.examine.command.doctor": lambda *given: EXAMINED,
        "mrcd.ctl.examine.command.preflight": lambda *given: EXAMINED,
    }.items():
        monkeypatch.setattr(where, made)
    wrapper = testing._NamedTextIOWrapper  # noqa: SLF001 - click's stdout in tests
    monkeypatch.setattr(wrapper, "isatty", lambda self: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")

    def run(command: str, columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        result = mrcctl(*command.split())
        assert "Traceback" not in result.output
        assert result.stdout, result
        return result.stdout.splitlines()

    return run


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("command", TABLES)
def test_no_table_wraps_and_what_is_left_out_is_named(
    terminal: Callable[[str, int], list[str]], command: str, columns: int
) -> None:
    lines, whole = terminal(command, columns), terminal(command, 10_000)
    assert [line for line in lines if len(line) > columns] == []
    text = " ".join(line.strip() for line in lines)
    begins = TABLES[command]
    found = [line for line in whole if any(line.lstrip().startswith(b) for b in begins)]
    assert len(found) >= len(begins)
    headings = {h for line in found for h in re.split(r" {2,}", line.strip())}
    assert {h for h in headings if h not in text} == set()
    if begins and any("…" in line for line in lines):
        assert "the text at …" in text
