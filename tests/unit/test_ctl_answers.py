"""What mrcctl shows of the daemon's answers: documents, tables, texts."""

import json
from collections.abc import Callable

import pytest
from click.testing import Result

import mrcd
from tests.unit.canned_daemon import BAD_PATH, EVENT, HISTOGRAM, PATH, PEER, STATUS, VERSION, Daemon


@pytest.mark.parametrize(
    ("command", "document"),
    [("status", STATUS), ("peers", [PEER]), ("paths", [PATH, BAD_PATH])],
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
    cells = "h2 5 1 1 GOOD yes 90 s 1.23M 1.85G 67 0.00543 0 3 31.2 - - 5f00:0:4800:8801:4801:c800:: -"
    assert " ".join(good.split()) == cells
    assert bad.endswith("0.2 s      1.5 s  5f00:0:4800:8801:4801:c800::  loss")
    # Aligned: texts begin under their heading, numbers end under it.
    for name, cell in (("STATE", "GOOD"), ("CARRIER", "5f00")):
        assert head.index(name) == good.index(cell)
    for name, cell in (("TX pkts", "1.23M"), ("RTT µs", "31.2")):
        assert head.index(name) + len(name) == good.index(cell) + len(cell)
    assert "\033" not in result.stdout


def test_histograms(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    daemon.answers["/v1/histograms"] = (200, [HISTOGRAM])
    assert json.loads(mrcctl("histograms", "--json").stdout) == [HISTOGRAM]
    lines = mrcctl("histograms").stdout.splitlines()
    assert lines[1:] == ["  2: p50 ≤ 459 µs, p99 ≤ 459 µs, max ≤ 459 µs", f"  262 µs – 524 µs  {'█' * 40}  2"]


def test_paths_filters_are_the_daemons(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    daemon.answers["/v1/paths"] = (200, [])
    result = mrcctl("paths", "--peer", "h2", "--plane", "1", "--state", "assumed_bad")
    assert (result.exit_code, result.stdout) == (0, "no paths\n")
    assert daemon.requests == [("GET", "/v1/paths", {"peer": "h2", "plane": "1", "state": "ASSUMED_BAD"})]
    assert mrcctl("paths", "--json").stdout == "[]\n"


def test_peers_table(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    daemon.answers["/v1/peers"] = (200, [PEER, {**PEER, "peer": "h3", "reachable": False, "heard_s": None}])
    _, up, down = mrcctl("peers").stdout.splitlines()
    assert " ".join(up.split()) == (
        "h2 2 attached 15/16 GOOD 15 ASSUMED_BAD 1 0,1,2,3 999 12.3M 0 0 31.2 0.0 s 10.99.0.3/32,fd00:99::3/128"
    )
    assert "unreachable" in down


def test_status_text(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    assert mrcctl("status").stdout == (
        "host        h0 (id 0) of cluster lab\n"
        "daemon      mrcd 0.1.0 running for 67 min (pid 77)\n"
        "data plane  attached, steering usid, granularity burst, inner MTU 9020 bytes\n"
        "push        tc egress mrc0\n"
        "peers       3: 3 reachable, 0 unreachable, 0 detached\n"
        "EVs         36, 35 usable: 35 GOOD, 1 ASSUMED_BAD\n"
        "drops       TOO_BIG 3\n"
        "last event  2030-01-02T03:04:05.678 UTC h2 EV 5 (plane 1, T1 1): GOOD → ASSUMED_BAD, overdue\n"
        "\n"
        "PLANE  INTERFACE  LINK  GATEWAY            ADDRESS  SID            POP\n"
        "    0  p0         up    02:00:00:00:00:01  fd10::1  5f00:0:c000::  tc (auto: veth)\n"
        "    1  p1         down  -                  -        -              xdp\n"
    )


def test_events(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    assert json.loads(mrcctl("events", "--json").stdout) == []
    daemon.add(EVENT)
    assert json.loads(mrcctl("events", "--json").stdout) == [EVENT]
    head, line = mrcctl("events").stdout.splitlines()
    assert head.split()[:2] == ["TIME", "(UTC)"]
    assert " ".join(line.split()) == (
        "2030-01-02T03:04:05.678 ev h2 5 1 1 GOOD ASSUMED_BAD overdue silent_reports=4 silent_ms=0.25"
    )


@pytest.mark.parametrize("action", ["detach", "attach"])
def test_detach_and_attach(mrcctl: Callable[..., Result], daemon: Daemon, action: str) -> None:
    answer = {"attached": action == "attach", "message": "done"}
    daemon.answers[f"/v1/{action}"] = (200, answer)
    assert mrcctl(action).stdout == "done\n"
    assert json.loads(mrcctl(action, "--force", "--json").stdout) == answer
    assert [body for _, _, body in daemon.requests] == [{"force": False}, {"force": True}]


def test_version(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    ours = f"mrcctl {mrcd.__version__}"
    assert mrcctl("version").stdout == f"{ours}\nmrcd 0.1.0 (ABI 1, wire 1, schema 1)\n"
    assert json.loads(mrcctl("version", "--json").stdout) == {"mrcctl": mrcd.__version__, "daemon": VERSION}
    assert mrcctl("--version").stdout == f"{ours}\n"
