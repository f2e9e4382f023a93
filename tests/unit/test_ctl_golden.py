# SPDX-License-Identifier: BSD-2-Clause
"""Compares what mrcctl prints of the daemon's answers with tests/unit/golden/: text, exit status, keys of --json.

An exit status of 0, a GET without parameters, and keys of --json as of a case before are not written.

`GOLDEN_UPDATE=1 pytest tests/unit/test_ctl_golden.py` writes the files anew: read `git diff` afterwards.
"""

import difflib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click import testing
from click.testing import Result

import mrcd
from mrcd.config import cluster_file
from mrcd.ctl.main import cli
from mrcd.fleet.etcd import Value
from mrcd.fleet.keys import trial_value
from mrcd.fleet_check.findings import HostSample, Samples
from mrcd.probes.exchange import Tally
from mrcd.versions import ABI_VERSION, SCHEMA_VERSION
from tests.cluster_files import host
from tests.lists import compare
from tests.unit.canned_daemon import (
    BAD_LINK,
    BAD_PATH,
    EVENT,
    HISTOGRAM,
    KEYS,
    LINK,
    PATH,
    PEER,
    STATUS,
    VERSION,
    Daemon,
)
from tests.unit.served_routes import routes
from tests.unit.test_fleet_report import KEYS as FLEET_KEYS
from tests.unit.test_fleet_report import document, said

GOLDEN = Path(__file__).parent / "golden"
HOW_TO_UPDATE = "If that is right: GOLDEN_UPDATE=1 .venv/bin/pytest tests/unit/test_ctl_golden.py"
Answers = dict[str, Any]
Mrcctl = Callable[..., Result]

# ---- answers of the daemon ----

T1 = {
    "cause": "t1", "target": "t1:1:2", "or_targets": ["link:1:0:2"], "severity": "critical", "confidence": "ambiguous",
    "since_s": 720.0, "evs": 6, "of_evs": 6, "peers": 6, "of_peers": 6,
    "sentence": "Plane 1: T1 2 lets nothing through: 6 of 6 EVs through it have failed, to 6 of 6 peers",
    "do": "`mrcctl trace gpu-node-0017 --ev 6` tells which it is",
}  # fmt: skip
LOSS = T1 | {
    "cause": "loss", "target": "link:0:2:3", "or_targets": [], "severity": "warning", "since_s": None,
    "confidence": "likely", "do": "look",
    "sentence": "Plane 0: the link between T0 2 and T1 3 loses packets | 3 of 3 EVs",
}  # fmt: skip
DENIED = LOSS | {"cause": "denied", "target": "t1:0:0", "severity": "ok", "sentence": "Plane 0: T1 0 is denied"}
DENIAL = {
    "target": "nic:gpu-node-0017:1", "action": "drain", "evs": 12, "in_flight_packets": 17, "unreported_evs": 1,
    "lost_packets": 0, "empty": False, "since": "2030-01-02T03:04:05+00:00", "remaining_s": 1680.0, "uid": 0,
    "reason": "the fan tray is replaced, ticket 4711",
}  # fmt: skip
DRAINED = DENIAL | {"target": "t1:1:2", "empty": True, "in_flight_packets": 0, "uid": None}
CHANGED = {
    "target": "t1:1:2", "changed": 1, "refused": 0, "message": "t1:1:2 is denied: 1 EV to 1 peer", "saved": True,
    "warning": None, "paths": [{"peer": "h2", "ev": 6, "plane": 1, "t1": 2}],
}  # fmt: skip
REFUSED = CHANGED | {"changed": 0, "refused": 4, "message": "too few would be left", "paths": []}
HOPS = [
    {"kind": kind, "number": n, "plane": p}
    for kind, n, p in (("t0", 3, 1), ("t1", 2, 1), ("t0", 7, 0), ("host", 1, 1), ("address", 0, 1), ("?", 0, 1))
]
LONG = {"peer": "gpu-node-0017"}
PATHS = {"paths": [PATH | LONG, BAD_PATH | LONG | {"denial": DENIAL}, PATH | {"weight": 0.125}]}
FLEET_ODD = document(h0=said(), h1=said(None, "there is no host h1 in this file"), h2=said(in_flight=3))
FLEET = document(h0=said(), h1=said(), h2=said())
FREE = document(h0=said(denies=False), h1=said(denies=False), h2=said(denies=False))
_TRIAL = {FLEET_KEYS.trial: Value(trial_value("other", ["h0", "h1"], 5), 8)}
TRIED = {"generation": 8, "lease": 5, "hosts": ["h0", "h1"], "watch_s": 22.0}
ON_TRIAL = document(_TRIAL, h0=said(8), h1=said(8), h2=said())
LOSES_PEERS = document(_TRIAL, h0=said(8) | {"lost_peers": ["h2"]}, h1=said(8), h2=said())
ASKED = {"target": "t1:1:2", "ended": [], "refused": False, "message": "t1:1:2 is to be denied on all hosts"}
CHANGES = {
    "changed": True, "file": "/etc/mrcd/mrcd.toml", "host": "h0", "message": "reloaded",
    "hosts": {"added": ["h3"], "removed": ["h1"], "changed": [{"host": "h2", "keys": ["t0", "port"]}]},
    "evs": [{"peer": "h2", "added": 0, "removed": 2, "changed": 0}],
    "settings": [
        {"key": "health.overdue_ms", "before": 10, "after": 12}, {"key": "auth.x", "before": None, "after": True},
    ],
    "steps": ["the programs are loaded anew with their settings, and replaced in place"],
}  # fmt: skip
RUNNING = {
    "schema_version": SCHEMA_VERSION, "file": "/none", "host": "h0",
    "config": cluster_file.parse(host(0) + host(1)).model_dump(mode="json"),
}  # fmt: skip
SECRET = KEYS["peers"][0]  # type: ignore[index]
EVENTS = [
    EVENT,
    EVENT | {"id": 2, "kind": "link", "evidence": {"target": "nic:h0:1", "unanswered_probes": 12}, "peer": None},
    EVENT | {"id": 3, "kind": "daemon", "peer": None, "ev": None, "plane": None, "t1": None, "from": None, "to": None}
    | {"reason": "reload_refused", "evidence": {"error": "cluster.mtu: too small"}},
]  # fmt: skip


# ---- what needs root or Prometheus ----

COUNTS = Tally(20, rtts=[31_200] * 19).document()
ROUTE = ["5f00:0:4800:8801:4801:c800::"]
EV = {"ev": 6, "plane": 1, "t1": 2, "state": "ASSUMED_BAD", "carrier": ROUTE[0]} | COUNTS
PROBED = {
    "host": "h0", "peer": "h2", "size_bytes": 176, "sent": 20, "received": 19, "loss_ratio": 0.05, "evs": [EV],
}  # fmt: skip
HOP = {"name": "T0 3 → T1 2 → T0 7 (back)", "hop": 1, "ok": False, "slow": False, "segments": ROUTE * 2} | COUNTS
TRACED = {
    "host": "h0", "peer": "h2", "ev": 6, "plane": 1, "t1": 2, "state": "ASSUMED_BAD", "hops": [HOP],
    "checks": [HOP | {"ok": True, "slow": True}], "targets": ["t1:1:2"], "broken": True,
    "verdict": "broken in plane 1: t1:1:2 (T1 2), or link:1:0:2 (T0 0 → T1 2)",
}  # fmt: skip
WORKS = TRACED | {"hops": [HOP | {"ok": True}], "broken": False, "verdict": "every hop answers", "targets": []}
UNSENT = WORKS | {
    "hops": [HOP | Tally(send_error="no first hop").document()],
    "verdict": "nothing was sent: no first hop",
}
PROBED_NONE = PROBED | {
    "evs": [EV | Tally(send_error="longer than the MTU of the NIC").document() | {"ev": n} for n in range(16)],
    "sent": 0, "received": 0, "loss_ratio": None,
}  # fmt: skip
CHECK = {
    "id": "nic.receive_queues", "status": "FAIL", "fix": "ethtool -N p0 rx-flow-hash udp6 sdfn",
    "evidence": "p0 receives 98 % of its packets in one of 16 queues: its RSS does not hash the UDP source port",
}  # fmt: skip
EXAMINED = {"command": "doctor", "checks": [CHECK], "summary": {"PASS": 0, "WARN": 0, "FAIL": 1, "SKIP": 0}}
LOST = {
    "target": "link:1:0:2", "kind": "link", "planes": [1], "direction": "up", "loss_ratio": 0.0101, "lost_packets": 56,
    "confidence": 1.0, "or_targets": [], "since_s": 70.0, "hosts": ["h0", "h1"], "host_count": 2,
}  # fmt: skip
LOST_T1 = LOST | {
    "target": "t1:2:1", "direction": "both", "confidence": 0.5, "or_targets": ["link:2:0:1"], "since_s": None,
    "hosts": [f"h{i}" for i in range(6)], "host_count": 70,
}  # fmt: skip
OF_RAILS = LOST_T1 | {"target": "t1:0:1", "kind": "t1", "planes": [0, 2, 4, 6], "confidence": 1.0, "or_targets": []}
LOCALISED = {
    "time": "2030-01-02T03:04:05+00:00", "window_s": 60.0, "hosts": 6, "packets": 175_000, "lost_packets": 56,
    "links": [LOST], "differing": [], "differing_is_sure": False,
}  # fmt: skip
PEER_CAUSE = T1 | {"target": "peer:h2", "cause": "peer_detached", "sentence": "h2 is detached", "do": "attach it"}
# The functions that return these documents, by a name under which a case may give another one.
MADE: Answers = {
    "probed": ("mrcd.ctl.packets.probe.run", PROBED), "traced": ("mrcd.ctl.packets.trace.run", TRACED),
    "doctor": ("mrcd.ctl.examine.command.doctor", EXAMINED),
    "preflight": ("mrcd.ctl.examine.command.preflight", EXAMINED | {"command": "preflight"}),
    "localised": ("mrcd.fleet_links.document.localised", LOCALISED),
    "samples": ("mrcd.fleet_check.read.read", Samples({"gpu-node-0017": HostSample(attached=False)})),
}  # fmt: skip
PROMETHEUS = "--prometheus http://127.0.0.1:1"


def located(*lost: Answers, **other: Any) -> Answers:
    return {"localised": LOCALISED | {"links": list(lost)} | other}


def diagnosed(*causes: Answers, **other: Any) -> Answers:
    return {"status": STATUS | {"diagnosis": list(causes)} | other}


DOWN = {"daemon": {"running": False}, "probing": {"tick_by": None}}
RICH = {
    "denials": [DENIAL] * 6, "kernel_lacks": ["x"], "fleet": {"etcd": ["a"], "away": "refused", "generation": 4},
    "other_programs": [{"program": "other", "program_id": 9, "point": "tc", "interface": "p0", "position": "before"}],
    "receive": {"interface": "mrc0", "rps_cpus": "0-1", "gro": True}, "pins": {"lost": "gone", "directory": "/x"},
    "forwarding_without_daemon": {"works": False, "how": "mrc_push is not attached"},
}  # fmt: skip


def keys(*peers: Answers, **other: Any) -> Answers:
    return {"keys": KEYS | {"peers": list(peers)} | other}


# A golden file → its commands, and the answers that differ from canned_daemon.py's. `@80` is the terminal's width.
CASES: dict[str, list[tuple[str, Answers]]] = {
    "status": [
        ("status", {}), ("status", diagnosed(T1, LOSS, DENIED)), ("status @80", diagnosed(T1)),
        ("status", diagnosed(*[T1] * 40)), ("status", diagnosed(**DOWN)),
        ("status", diagnosed(daemon={"running": True, "uptime_s": None})),
        ("status", diagnosed(**RICH)), ("status --brief", {}), ("status -b", diagnosed(T1, LOSS, DENIED, **RICH)),
        ("status -b", diagnosed(DENIED)),
    ],
    "status-check": [
        ("status --check", {}), ("status --check", diagnosed()), ("status --check", diagnosed(DENIED)),
        ("status --check", diagnosed(LOSS)), ("status --check", diagnosed(T1, LOSS)),
        ("status --check", diagnosed(T1 | {"severity": "new"})), ("status --check", diagnosed(**DOWN)),
        ("status --check", diagnosed(daemon={"running": True, "uptime_s": None})),
    ],
    "peers": [
        ("peers", {"peers": [PEER, PEER | {"peer": "h3", "reachable": False, "heard_s": None}]}),
        ("peers @40", {"peers": [PEER | LONG]}), ("peers", {"peers": []}),
        ("peers h3", {"peers": [PEER, PEER | {"peer": "h3"}]}), ("peers h9", {}), ("peers -i 0.5", {}),
    ],
    "paths": [
        ("paths", PATHS), ("paths @40", PATHS), ("paths --wide @40", PATHS),
        ("paths --peer h2 --plane 1 --state assumed_bad", {"paths": []}), ("paths h2 --bad", {}),
        ("paths --decode @40", {"paths": [PATH | {"hops": HOPS}]}),
        ("paths -i 0.5 @80", PATHS), ("paths -i 0.5", {"paths": []}),
    ],
    "events": [
        ("events", {}), ("events @40", {}), ("events --kind link", {}), ("events -n 1", {}),
        ("events --since 10s", {}), ("events --since 4s", {}), ("events --since 2030-01-02T03:04", {}),
        ("events --since 2030-01-02T08:05+05:00", {}), ("events h2 --ev 5 --plane 1", {}), ("events -n 0", {}),
    ],
    "histograms": [("histograms @40", {}), ("histograms", {"histograms": []})],
    "links": [
        ("links", {}), ("links", {"links": [BAD_LINK, LINK]}), ("links --plane 1", {"links": [BAD_LINK, LINK]}),
        ("links @40", {"links": [LINK | {"state": "dead", "link": "link:7:511:511"}]}),
        ("links", {"links": [LINK | {"state": "unknown", "last_rx_s": None}]}), ("links", {"links": []}),
        ("links -i 0.5", {}),
    ],
    "watch": [
        ("watch -c 2", {}), ("watch -c 1 @40", PATHS | diagnosed()), ("top -i 0.5", {}),
        ("top", {"paths": [PATH]}),
        ("watch -c 1", {"status": STATUS | {"evs": {"UNKNOWN": 1_000_000, "GOOD": 48_000, "ASSUMED_BAD": 1}}}),
    ],
    "denials": [
        ("deny t1:1:2 --peer h2 --for 30m --reason fan --force", {}), ("drain t1:1:2", {}), ("allow --all", {}),
        ("undrain t1:1:2", {}), ("denials", {}), ("denials @40", {}),
        ("denials", {"denials": {"denials": [], "warning": "not kept"}}),
        ("deny t1:1:2", {"deny": CHANGED | {"paths": CHANGED["paths"] * 20, "warning": "not kept: ENOSPC"}}),  # type: ignore[operator]
        ("deny --peer h2", {"deny": REFUSED}), ("drain --peer h2", {"deny": REFUSED}),
        ("allow ev:h2:5", {"allow": REFUSED}), ("allow plane:1", {"allow": REFUSED | {"ended": ["t1:1:3"]}}),
        ("drain t1:1:2 --wait 1", {"denials": {"denials": [DRAINED | {"empty": False}]}}),
        ("drain t1:1:2", {"denials": {"denials": []}}),
    ],
    "job": [(f"job env --interface {name}", {}) for name in ("lo", "none0", "lo --slurm")],
    "keys": [
        ("keys status", keys(SECRET, SECRET | {"peer": "h3"})),
        ("keys status", keys(SECRET | {"sent_with": 1}, SECRET)),
        ("keys status @40", keys(SECRET | LONG)), ("keys status", keys(*[SECRET | {"sent_with": 1}] * 8)),
        ("keys status", keys(SECRET, SECRET | {"peer": "h3", "reachable": False})), ("keys status", keys()),
        ("keys status", keys(SECRET | {"untagged_packets": 12_345, "clock_known": False}, mode="permissive")),
        ("keys status", keys(SECRET, mode="off", accepted=[], newest=None)),
        ("keys status", keys(SECRET, SECRET | {"sent_with": None}, newest=None)),
        ("keys status", keys(SECRET, SECRET | {"accepted_from_peer": [1]}, SECRET | {"accepted_from_peer": []})),
        ("keys status", keys(SECRET | {"reachable": False})), ("keys rotate", {}), ("keys rotate", keys(mode="off")),
        ("keys rotate --wait 1", keys(*[SECRET | {"sent_with": 1}] * 8)),
    ],
    "config": [
        ("config diff FILE", {"config": RUNNING}), ("reload", {}),
        ("reload --force", {"reload": CHANGES | {"changed": False}}), ("attach", {}),
        ("detach --force", {}),
    ],
    "fleet": [
        ("fleet status", {}), ("fleet status --all", {}), ("fleet status", {"fleet": FLEET_ODD}),
        ("fleet status @40", {"fleet": FLEET_ODD}), ("fleet get", {}),
        ("fleet deny t1:1:2 --for 2h --reason fan", {}), ("fleet drain t1:1:2 --wait 2", {"fleet": FLEET_ODD}),
        ("fleet deny plane:0", {"fleet/deny": ASKED | {"refused": True, "message": "h0 would refuse it: too few"}}),
        ("fleet allow plane:1 --wait 2", {"fleet/allow": ASKED | {"ended": ["t1:1:2"]}}),
        ("fleet allow --all", {"fleet": FREE}),
        ("fleet deny t1:1:2 --wait 2", {"fleet": (500, {"error": "etcd is away: refused", "exit_code": 2})}),
        ("fleet put FILE --if-generation 6", {}),
        ("fleet put FILE --first 0", {"fleet/file": {"generation": 9, "message": "generation 9 is in etcd"}}),
        ("fleet put FILE --watch 2", {"fleet": ON_TRIAL, "fleet/trial": TRIED}),
        ("fleet put FILE", {"fleet": LOSES_PEERS, "fleet/trial": TRIED}),
        ("fleet put FILE --wait 1 --watch 1", {"fleet/trial": TRIED}),
        ("fleet status", {"fleet": LOSES_PEERS}),
    ],
    "fabric": [
        ("fabric plan --hosts 12 --planes 2 --radix 8 @80", {}),
    ],
    "version": [
        ("version", {"version": VERSION | {"version": "0.0.9"}}),
        ("version", {"version": VERSION | {"version": mrcd.__version__}}),
        ("version", {"version": (500, {"error": "out of order"})}), ("--version", {}),
    ],
    "measure": [
        *((f"{argv}{at}", {}) for argv in ("probe h2", "trace h2 --ev 6") for at in ("", " @40")),
        ("trace h2", {}), ("trace h2", {"paths": [PATH]}),
        ("trace h2", {"paths": [PATH]} | diagnosed(PEER_CAUSE)),
        ("trace h2", {"paths": [PATH]} | diagnosed(PEER_CAUSE | {"target": "peer:h3"}, T1)),
        ("trace h2 --ev 6", {"traced": WORKS}), ("trace h2 --ev 6", {"traced": UNSENT}),
        ("trace h2", {"traced": UNSENT}), ("probe h2 --size 9101", {"probed": PROBED_NONE}),
        ("doctor @40", {}), ("preflight @80", {}),
        ("doctor", {"doctor": EXAMINED | {"checks": [], "summary": {"PASS": 3, "WARN": 1, "FAIL": 0, "SKIP": 2}}}),
    ],
    "fleet-links": [
        (f"fleet links {PROMETHEUS}", {}), (f"fleet links {PROMETHEUS} @40", located(LOST_T1)),
        (f"fleet links {PROMETHEUS}", located(LOST, LOST_T1)), (f"fleet links {PROMETHEUS}", located(OF_RAILS)),
        (f"fleet links {PROMETHEUS}", located(lost_packets=0)),
        (f"fleet links {PROMETHEUS}", located(LOST, differing=["h2"], differing_is_sure=True)),
        (f"fleet links {PROMETHEUS}", located(lost_packets=0, differing=["h2"])),
        (f"fleet links {PROMETHEUS}", located(differing=["h1", "h2"])),
        (f"fleet links {PROMETHEUS} @80", located(LOST, differing=[f"h{i}" for i in range(6)], differing_is_sure=True)),
    ],
    "fleet-check": [
        (f"fleet check --hosts gpu-node-0017,h[1-9] {PROMETHEUS}{at}", {}) for at in ("", " @80")
    ],
    "help": [("help words", {})],
}  # fmt: skip
# These need files: other tests have them.
ELSEWHERE = {
    *("completion", "bugreport", "capture", "keys generate", "config check", "config show", "fabric config"),
    *("fabric check", "job topology"),
}
DEFAULTS: Answers = {
    "histograms": [HISTOGRAM, HISTOGRAM | {"histogram": "rtt", "plane": 1, "count": 0, "buckets": []}],
    "denials": {"denials": [DENIAL, DRAINED], "warning": None}, "deny": CHANGED, "allow": CHANGED, "fleet": FLEET,
    "fleet/deny": ASKED, "fleet/allow": ASKED, "fleet/trial/end": {},
    "fleet/trial": {"generation": None, "lease": None, "hosts": [], "watch_s": 22.0},
    "fleet/file": {"generation": 7, "sha256": "x", "text": "[cluster]\n\n# end\n", "message": "generation 7 is put"},
    "attach": {"attached": True, "message": "attached"}, "detach": {"attached": False, "message": "detached"},
    "reload": CHANGES,
}  # fmt: skip


def commands(group: click.Group, before: str = "") -> Iterator[str]:
    """Yields the names of all commands: "paths", "bpf maps"."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield from commands(command, f"{before}{name} ") if isinstance(command, click.Group) else [before + name]


def test_every_command_is_here_or_known_to_be_tested_elsewhere() -> None:
    argvs = [f"{argv} " for cases in CASES.values() for argv, _ in cases]
    here = {name for name in commands(cli) if any(argv.startswith(f"{name} ") for argv in argvs)}
    compare(
        sorted(here | ELSEWHERE),
        sorted(commands(cli)),
        in_file="CASES in tests/unit/test_ctl_golden.py",
        known_from="the commands of mrcctl",
    )
    assert not here & ELSEWHERE


def key_paths(value: Any, before: str = "") -> Iterator[str]:
    """Yields the keys of a document with their places: "paths[].ev"."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from key_paths(inner, f"{before}.{key}" if before else str(key))
    elif isinstance(value, list) and value:
        for inner in value:
            yield from key_paths(inner, f"{before}[]")
    else:
        yield before


@pytest.fixture
def shown(mrcctl: Mrcctl, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command, and returns what the golden file has of it."""
    (file := tmp_path / "new.toml").write_text(host(0) + host(2) + "[cluster]\nevs_per_peer = 8\n")
    (tmp_path / "links").mkdir()
    monkeypatch.setattr("pwd.getpwuid", lambda uid: type("User", (), {"pw_name": f"user-{uid}"}))
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb"), ("MRCD_CONFIG", "/none")):
        monkeypatch.setenv(name, value)

    def run(argv: str, answers: Answers) -> str:
        answers = dict(answers)
        for made, (function, usual) in MADE.items():
            found = answers.pop(made, usual)
            monkeypatch.setattr(function, lambda *_, found=found, **__: found)
        daemon.answers |= {
            f"/v1/{name}": value if isinstance(value, tuple) else (200, value)
            for name, value in (DEFAULTS | {"events": {"events": EVENTS, "last_id": 3}} | answers).items()
        }
        columns = int(argv.rpartition("@")[2]) if "@" in argv else None
        monkeypatch.setattr(testing._NamedTextIOWrapper, "isatty", lambda self: columns is not None)  # noqa: SLF001
        monkeypatch.setenv("COLUMNS", str(columns or 80))
        args = [str(file) if word == "FILE" else word for word in argv.partition(" @")[0].split()]
        result = mrcctl(*args)
        assert "\033" not in result.output
        assert "Traceback" not in result.output
        if columns is not None and "--wide" not in args:
            assert [line for line in result.stdout.splitlines() if len(line) > columns] == []
        text = f"$ mrcctl {argv}\n{result.stdout}"
        text += "".join(f"stderr: {line}\n" for line in result.stderr.splitlines())
        text += f"exit status {result.exit_code}\n" * bool(result.exit_code)
        for method, path, given in daemon.requests[:3]:
            body = "".join(f" {k}={v}" for k, v in given.items() if v is not None)
            text += f"asked: {method} {path}{body}\n" * (method != "GET" or bool(body))
        if argv not in ("--version",) and not argv.startswith("help"):
            as_json = mrcctl(*args, "--json")
            assert as_json.exit_code == result.exit_code
            documents = [json.loads(as_json.stdout)] if as_json.stdout.startswith("{\n") else (
                [json.loads(line) for line in as_json.stdout.splitlines()]
            )  # fmt: skip
            text += "json: " + " ".join(dict.fromkeys(k for d in documents for k in key_paths(d))) + "\n"
        for mine, fixed in (
            (str(tmp_path), "/RUN"), (mrcd.__version__, "VERSION"), (str(VERSION["version"]), "VERSION"),
            (f"ABI {ABI_VERSION}", "ABI N"),
        ):  # fmt: skip
            text = text.replace(mine, fixed)
        return text

    return run


@pytest.mark.parametrize("name", CASES)
def test_what_is_printed_is_as_before(shown: Callable[..., str], daemon: Daemon, name: str) -> None:
    first, parts = dict(daemon.answers), []
    for argv, answers in CASES[name]:
        daemon.answers = dict(first)
        daemon.requests.clear()
        parts.append(shown(argv, answers))
    lines, seen = "\n".join(parts).splitlines(keepends=True), set[str]()
    text = ""
    for line in lines:
        if line not in seen:
            text += line
        if line.startswith("json: "):
            seen.add(line)
    if os.environ.get("GOLDEN_UPDATE"):
        (GOLDEN / f"{name}.txt").write_text(text, encoding="utf-8")
    file = GOLDEN / f"{name}.txt"
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    difference = difflib.unified_diff(before.splitlines(), text.splitlines(), file.name, "now", n=1, lineterm="")
    assert text == before, "\n".join([*difference, HOW_TO_UPDATE])


@pytest.mark.parametrize("name", ["status", "peers", "paths", "links", "histograms"])
def test_json_is_the_daemons_document(mrcctl: Mrcctl, daemon: Daemon, name: str) -> None:
    daemon.answers["/v1/histograms"] = (200, [HISTOGRAM])
    given = daemon.answers[f"/v1/{name}"][1]
    shown = {"source": "daemon"} | (given if name == "status" else {"schema_version": 2, name: given})
    for args in ((name, "--json"), ("--json", name)):
        result = mrcctl(*args)
        assert (result.exit_code, result.stderr, json.loads(result.stdout)) == (0, "", shown)


@pytest.mark.parametrize("answer", [[], {}, [{}], {"peers": 1}, "text", None, 7, [[1]], b"{"], ids=str)
def test_no_answer_of_a_daemon_causes_a_traceback(mrcctl: Mrcctl, daemon: Daemon, answer: object) -> None:
    for path in routes():
        daemon.answers[path] = (200, answer)
    for argv in dict.fromkeys(argv.partition(" @")[0] for cases in CASES.values() for argv, _ in cases):
        if argv.startswith(("preflight", "fleet check", "fleet links")):  # they do not ask the daemon
            continue
        result = mrcctl(*argv.replace("FILE", __file__).split())
        assert result.exit_code in (0, 1, 2), argv
        assert "Traceback" not in result.output
        assert result.stderr.startswith("mrcctl: ") or result.exit_code == 0 or argv.startswith("status --check"), argv
