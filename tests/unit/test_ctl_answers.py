# SPDX-License-Identifier: BSD-2-Clause
"""Tests what mrcctl shows of the daemon's answers: documents, tables, texts."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from click.testing import Result

import mrcd
from mrcd.versions import ABI_VERSION
from tests.unit.canned_daemon import BAD_PATH, EVENT, HISTOGRAM, PATH, PEER, STATUS, VERSION, Daemon


def rows(name: str, docs: list[dict[str, Any]], source: str = "daemon") -> dict[str, Any]:
    """Returns a list of the daemon as mrcctl prints it."""
    return {"schema_version": 2, "source": source, name: docs}


@pytest.mark.parametrize(
    ("command", "document"),
    [
        ("status", STATUS | {"source": "daemon"}),
        ("peers", rows("peers", [PEER])),
        ("paths", rows("paths", [PATH, BAD_PATH])),
    ],
    ids=lambda x: str(x)[:8],
)
def test_json_is_the_daemons_document(
    mrcctl: Callable[..., Result], daemon: Daemon, command: str, document: object
) -> None:
    for args in ((command, "--json"), ("--json", command)):
        result = mrcctl(*args)
        assert (result.exit_code, result.stderr) == (0, "")
        assert json.loads(result.stdout) == document


def test_paths_table(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    result = mrcctl("paths")
    assert (result.exit_code, result.stderr) == (0, "")
    head, good, bad = result.stdout.splitlines()
    assert head.split("  ")[0] == "PEER"
    cells = "h2 5 1 1 GOOD yes 90 s 1.23M 1.85G 67 0.00543 0 3 0 31.2 - - 5f00:0:4800:8801:4801:c800:: -"
    assert " ".join(good.split()) == cells
    assert bad.endswith("0.2 s      1.5 s  5f00:0:4800:8801:4801:c800::  loss")
    # Aligned: texts begin below their heading, numbers end below it.
    for name, cell in (("STATE", "GOOD"), ("CARRIER", "5f00")):
        assert head.index(name) == good.index(cell)
    for name, cell in (("TX pkts", "1.23M"), ("RTT µs", "31.2")):
        assert head.index(name) + len(name) == good.index(cell) + len(cell)
    assert "\033" not in result.stdout


def test_histograms(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    daemon.answers["/v1/histograms"] = (200, [HISTOGRAM])
    assert json.loads(mrcctl("histograms", "--json").stdout) == rows("histograms", [HISTOGRAM])
    lines = mrcctl("histograms").stdout.splitlines()
    assert lines[1:] == ["  2: p50 ≤ 459 µs, p99 ≤ 459 µs, max ≤ 459 µs", f"  262 µs – 524 µs  {'█' * 40}  2"]


def test_paths_filters_are_the_daemons(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    daemon.answers["/v1/paths"] = (200, [])
    result = mrcctl("paths", "--peer", "h2", "--plane", "1", "--state", "assumed_bad")
    assert (result.exit_code, result.stdout) == (0, "no paths\n")
    assert daemon.requests == [("GET", "/v1/paths", {"peer": "h2", "plane": "1", "state": "ASSUMED_BAD"})]
    assert json.loads(mrcctl("paths", "--json").stdout) == rows("paths", [])


def test_peers_table(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    daemon.answers["/v1/peers"] = (200, [PEER, {**PEER, "peer": "h3", "reachable": False, "heard_s": None}])
    _, up, down = mrcctl("peers").stdout.splitlines()
    assert " ".join(up.split()) == (
        "h2 2 attached 15/16 15 GOOD, 1 ASSUMED_BAD 0,1,2,3 999 12.3M 0 0 31.2 0.0 s 10.99.0.3/32,fd00:99::3/128"
    )
    assert "unreachable" in down


def test_status_text(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    assert mrcctl("status").stdout == (
        "host        h0 (id 0) of cluster lab\n"
        f"daemon      mrcd 0.1.0 (ABI {ABI_VERSION}) running for 67 min (pid 77)\n"
        "data plane  attached, encapsulation usid, granularity burst, inner MTU 9020 bytes\n"
        "            forwarding without the daemon: yes (mrc_push at mrc0 and mrc_pop at 2 planes are pinned)\n"
        "push        tc egress mrc0 by tcx\n"
        "peers       3 of 3 reachable\n"
        "EVs         35 of 36 usable: 35 GOOD, 1 ASSUMED_BAD\n"
        "drops       too_big 3\n"
        "probes      the daemon runs the tick; sent: 1200 traffic, 30 suspicion, 4 retry, 51k idle; "
        "budget 4000/s, 1999 left\n"
        "tables      peers 3 of 64, unread events 0 of 262144 bytes\n"
        "last change 12 s ago: h2 EV 5 (plane 1, T1 1) → ASSUMED_BAD, overdue\n"
        "last event  2030-01-02T03:04:05.678 UTC h2 EV 5 (plane 1, T1 1): GOOD → ASSUMED_BAD, overdue\n"
        "\n"
        "PLANE  INTERFACE  LINK  EVS USABLE  POP  GATEWAY            ADDRESS  SID\n"
        "    0  p0         up         18/18  tcx  02:00:00:00:00:01  fd10::1  5f00:0:c000::\n"
        "    1  p1         down       17/18  tcx  -                  -        -\n"
        "pop         plane 0: veth is a virtual interface: tc keeps its bursts whole, XDP would segment them\n"
        "pop         plane 1: FALLBACK: native XDP refused: Operation not supported (EOPNOTSUPP)\n"
        "unsent      plane 1: 1234 packets dropped by this host's queueing discipline, not counted as path loss\n"
    )


def test_status_in_a_line(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    line = "h0  attached  mrcd up  peers 3/3  EVs 35/36 (1 ASSUMED_BAD)  planes 1/2  drops 3"
    assert mrcctl("status", "--brief").stdout == f"{line}  fallback hooks 1\n"
    needs = {"forwarding_without_daemon": {"works": False, "how": "mrc_push is not attached"}}
    daemon.answers["/v1/status"] = (200, STATUS | needs)
    assert mrcctl("status", "-b").stdout == f"{line}  needs the daemon to forward  fallback hooks 1\n"


def test_events(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    assert json.loads(mrcctl("events", "--json").stdout) == rows("events", [])
    daemon.add(EVENT)
    assert json.loads(mrcctl("events", "--json").stdout) == rows("events", [EVENT])
    head, line = mrcctl("events").stdout.splitlines()
    assert head.split()[:2] == ["TIME", "(UTC)"]
    assert " ".join(line.split()) == (
        "2030-01-02T03:04:05.678 ev h2 5 1 1 GOOD ASSUMED_BAD overdue silent_reports=4 silent_ms=0.25"
    )


def test_events_since_and_of_a_peer(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    def of(*args: str) -> list[int]:
        return [e["id"] for e in json.loads(mrcctl("events", "--json", *args).stdout)["events"]]

    now = datetime.now(UTC)
    for n, (age_s, peer) in enumerate(((7200, "h2"), (300, "h2"), (20, "h3")), 1):
        time = (now - timedelta(seconds=age_s)).isoformat(timespec="milliseconds")
        daemon.add({**EVENT, "id": n, "time": time, "peer": peer})
    assert of() == [1, 2, 3]
    assert of("--since", "10m") == [2, 3]
    assert of("--since", "3h", "--peer", "h2") == [1, 2]
    assert of("--since", "30s") == [3]
    minute = now - timedelta(minutes=1)
    assert of("--since", minute.replace(tzinfo=None).isoformat()) == [3]
    assert of("--since", minute.astimezone(timezone(timedelta(hours=5))).isoformat()) == [3]


def test_events_are_filtered(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    def of(*args: str) -> list[int]:
        return [e["id"] for e in json.loads(mrcctl("events", "--json", *args).stdout)["events"]]

    daemon.add(EVENT, {**EVENT, "id": 2, "ev": 6}, {**EVENT, "id": 3, "kind": "plane", "peer": None, "ev": None})
    assert of("--plane", "1") == [1, 2, 3]
    assert of("--plane", "0") == []
    assert of("--ev", "6", "--plane", "1") == [2]
    assert of("--kind", "plane") == [3]
    assert of("-n", "2") == [2, 3]
    assert of("-n", "0") == []
    assert of("--kind", "ev", "-n", "1") == [2]


def test_hops(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    kinds = [("t0", 3), ("t1", 2), ("t0", 7), ("host", 1)]
    hops = [{"kind": kind, "number": number, "plane": 1} for kind, number in kinds]
    daemon.answers["/v1/paths"] = (200, [{**PATH, "hops": hops}])
    head, line = mrcctl("paths", "--decode").stdout.splitlines()
    assert line[head.index("HOPS") :].startswith("T0 3 → T1 2 → T0 7 → host port 1  5f00:0:4800:8801:")
    assert daemon.requests == [("GET", "/v1/paths", {"decode": "1"})]


@pytest.mark.parametrize(
    ("action", "option", "plain", "asked"),
    [("detach", "--force", {"force": False}, {"force": True}), ("attach", "--json", {}, {})],
)
def test_detach_and_attach(
    mrcctl: Callable[..., Result], daemon: Daemon, action: str, option: str, plain: object, asked: object
) -> None:
    answer = {"attached": action == "attach", "message": "done"}
    daemon.answers[f"/v1/{action}"] = (200, answer)
    assert mrcctl(action).stdout == "done\n"
    assert json.loads(mrcctl(action, option, "--json").stdout) == {"schema_version": 2} | answer
    assert [body for _, _, body in daemon.requests] == [plain, asked]


def test_version(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    ours = f"mrcctl {mrcd.__version__}"
    same = f"(ABI {ABI_VERSION}, wire 2, schema 2)"
    daemon.answers["/v1/version"] = (200, VERSION | {"version": mrcd.__version__})
    assert mrcctl("version").stdout == f"{ours} {same}\nmrcd {mrcd.__version__} {same}\n"
    daemon.answers["/v1/version"] = (200, VERSION | {"version": "0.0.9"})
    assert mrcctl("version").stdout.splitlines()[2].startswith("the versions differ: `systemctl restart mrcd`")
    document = json.loads(mrcctl("version", "--json").stdout)
    assert (document.pop("daemon"), document.pop("error")) == (VERSION | {"version": "0.0.9"}, None)
    assert document == {"schema_version": 2, "mrcctl": mrcd.__version__, "abi_version": ABI_VERSION, "wire_version": 2}
    daemon.answers["/v1/version"] = (500, {"error": "out of order"})
    refused = mrcctl("version")
    assert (refused.exit_code, refused.stdout) == (2, f"{ours} {same}\nmrcd not known: out of order\n")
    assert refused.stderr == "mrcctl: out of order\n"
    assert mrcctl("--version").stdout == f"{ours}\n"
