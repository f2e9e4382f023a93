# SPDX-License-Identifier: BSD-2-Clause
"""Tests every command that prints a table in terminals of 40, 80 and 200 columns: no line wraps, and what a narrow
table leaves out is named.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click import testing
from click.testing import Result

from mrcd.ctl.main import cli
from mrcd.ctl.packets.tally import Tally
from mrcd.fleet_check.samples import HostSample, Samples
from tests.unit.canned_daemon import BAD_PATH, EVENT, HISTOGRAM, KEYS, LINK, PATH, PEER, STATUS, Daemon
from tests.unit.test_fleet_report import document, said

Mrcctl = Callable[..., Result]

CAUSE = {
    "cause": "t1", "target": "t1:1:2", "or_targets": ["link:1:0:2"], "severity": "critical", "confidence": "ambiguous",
    "since_s": 720.0, "evs": 6, "of_evs": 6, "peers": 6, "of_peers": 6,
    "sentence": "Plane 1: T1 2 lets nothing through: 6 of 6 EVs through it have failed, to 6 of 6 peers",
    "do": "`mrcctl trace gpu-node-0017 --ev 6` confirms it",
}  # fmt: skip
NAME = "gpu-node-0017"
DENIAL = {
    "target": "nic:gpu-node-0017:1", "action": "drain", "evs": 12, "in_flight_packets": 17, "lost_packets": 0,
    "empty": False, "since": "2030-01-02T03:04:05+00:00", "remaining_s": 1680.0, "uid": None,
    "reason": "the fan tray is replaced, ticket 4711",
}  # fmt: skip
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
    "status": ["PLANE "],
    "peers": ["PEER "],
    "peers -i 0.1": ["PEER "],
    "paths": ["PEER "],
    "paths --bad": ["PEER "],
    "paths --decode": ["PEER "],
    "paths -i 0.1": ["PEER "],
    "events": ["TIME "],
    "histograms": [],
    "watch -c 1": ["PEER  ", "PEER  "],
    "top -i 0.1": ["PEER "],
    "denials": ["TARGET "],
    "keys status": ["PEER "],
    "links": ["LINK "],
    "links -i 0.1": ["LINK "],
    "fleet status": ["HOST ", "DENIED "],
    f"fleet check --hosts {NAME},h[1-9] --prometheus http://prometheus:9090": [],
    "fleet links --prometheus http://prometheus:9090": ["TARGET "],
    "fabric plan --hosts 64 --radix 16": ["PLANE ", "FAILED "],
    f"probe {NAME}": ["EV "],
    f"trace {NAME} --ev 6": ["HOP "],
    f"trace {NAME}": [],
    "doctor": [],
    "preflight": [],
    "help words": [],
}
# These print sentences, files or single lines.
NO_TABLE = {
    *("version", "completion", "bugreport", "capture", "reload", "attach", "detach"),
    *(
        "deny",
        "drain",
        "allow",
        "undrain",
        "config check",
        "config diff",
        "config show",
        "keys rotate",
        "keys generate",
    ),
    *("fleet deny", "fleet drain", "fleet allow", "fleet get", "fleet put", "fabric config", "fabric check"),
}


def commands(group: click.Group, before: str = "") -> Iterator[str]:
    """Yields the names of all commands: "paths", "keys status"."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name


def test_every_command_is_here() -> None:
    """A new command either prints a table, and is tested for its width, or is known to print none."""
    tested = {name for name in commands(cli) for line in TABLES if f"{line} ".startswith(f"{name} ")}
    assert tested | NO_TABLE == set(commands(cli))
    assert not tested & NO_TABLE


@pytest.fixture
def terminal(
    mrcctl: Mrcctl, daemon: Daemon, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, int], list[str]]:
    """Runs a command in a terminal of so many columns, and returns its lines; the documents have long names."""
    daemon.answers |= {
        "/v1/status": (200, STATUS | {"diagnosis": [CAUSE], "denials": [DENIAL]}),
        "/v1/peers": (200, [PEER | {"peer": NAME}]),
        "/v1/paths": (200, [PATH | {"peer": NAME}, BAD_PATH | {"peer": NAME, "denial": DENIAL}]),
        "/v1/histograms": (200, [HISTOGRAM]),
        "/v1/denials": (200, {"denials": [DENIAL], "warning": None}),
        "/v1/links": (200, [LINK, LINK | {"link": "link:7:511:511"}]),
        "/v1/fleet": (
            200,
            document(h0=said(), h1=said(None, "there is no host h1 in this file"), h2=said(in_flight=3)),
        ),
        "/v1/keys": (200, KEYS | {"peers": [KEYS["peers"][0] | {"peer": NAME}]}),  # type: ignore[index]
    }
    daemon.add(EVENT | {"peer": NAME})
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


def test_a_narrow_terminal_is_a_real_restriction(terminal: Callable[[str, int], list[str]]) -> None:
    """Else the tests above would show nothing."""
    wide = {command: max(map(len, terminal(command, 10_000))) for command in TABLES}
    assert sum(most > 80 for most in wide.values()) >= 15
    assert any("no room for" in line for line in terminal("paths", 80))


def test_a_frame_of_watch_names_what_it_leaves_out_and_how_to_see_it(
    terminal: Callable[[str, int], list[str]],
) -> None:
    text = " ".join(line.strip() for line in terminal("watch -c 1", 40))
    assert text.count("(no room for") == 2
    assert text.count("widen the terminal)") == 2
    assert "--wide" not in text
