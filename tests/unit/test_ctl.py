"""mrcctl against a small HTTP server on a unix socket that serves canned documents."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from types import ModuleType
from typing import IO, Any, cast
from urllib.parse import parse_qsl, urlsplit

import pytest
from click.testing import CliRunner, Result

import mrcd
from mrcd.ctl import render
from mrcd.ctl.main import cli
from mrcd.errors import MachineError

EVENT = {
    "id": 1,
    "time": "2030-01-02T03:04:05.678+00:00",
    "monotonic_ns": 1000,
    "kind": "ev",
    "peer": "h2",
    "ev": 5,
    "plane": 1,
    "t1": 1,
    "from": "GOOD",
    "to": "ASSUMED_BAD",
    "reason": "overdue",
    "evidence": {"silent_reports": 4, "silent_ms": 0.25},
}
PATH = {
    "peer": "h2",
    "ev": 5,
    "plane": 1,
    "slot": 1,
    "t1": 1,
    "carrier": "5f00:0:4800:8801:4801:c800::",
    "segments": ["5f00:0:4800:8801:4801:c800::"],
    "state": "GOOD",
    "reason": "",
    "since_s": 90.5,
    "usable": True,
    "tx_packets": 1234567,
    "tx_bytes": 1851850500,
    "rx_packets": 1234500,
    "lost_packets": 67,
    "loss_ratio": 0.0000543,
    "rtt_ns": 31200,
    "ce_packets": 0,
    "skips": 3,
    "weight": 1.0,
    "relapses": 0,
    "next_probe_s": None,
    "hold_down_s": None,
    "last_tx_s": 0.1,
}
BAD_PATH = {
    **PATH, "ev": 6, "t1": None, "state": "ASSUMED_BAD", "reason": "loss", "usable": False, "rtt_ns": 0,
    "relapses": 2, "next_probe_s": 0.25, "hold_down_s": 1.5,
}  # fmt: skip
HISTOGRAM = {
    "histogram": "detection",
    "plane": None,
    "unit": "ns",
    "count": 2,
    "p50": 458751,
    "p99": 458751,
    "max": 458751,
    "buckets": [{"from": 393216, "to": 458751, "count": 2}],
}
PEER = {
    "peer": "h2",
    "host_id": 2,
    "reachable": True,
    "status": "attached",
    "evs": 16,
    "usable_evs": 15,
    "states": {"UNKNOWN": 0, "GOOD": 15, "SKIP": 0, "ASSUMED_BAD": 1, "DENIED": 0},
    "ports": [0, 1, 2, 3],
    "tx_packets": 999,
    "rx_packets": 12345678,
    "lost_packets": 0,
    "loss_ratio": 0.0,
    "rtt_ns": 31200,
    "heard_s": 0.02,
    "prefixes": ["10.99.0.3/32", "fd00:99::3/128"],
}
STATUS = {
    "schema_version": 1,
    "host": "h0",
    "host_id": 0,
    "cluster": "lab",
    "daemon": {"running": True, "pid": 77, "version": "0.1.0", "uptime_s": 4000.0},
    "steering": "usid",
    "granularity": "burst",
    "attached": True,
    "inner_mtu": 9020,
    "planes": [
        {
            "plane": 0,
            "interface": "p0",
            "ifindex": 3,
            "hook": "tc",
            "hook_reason": "auto: veth",
            "up": True,
            "gateway_mac": "02:00:00:00:00:01",
            "address": "fd10::1",
            "sid": "5f00:0:c000::",
        },
        {"plane": 1, "interface": "p1", "ifindex": 4, "hook": "xdp", "up": False},
    ],
    "peers": {"total": 3, "reachable": 3, "unreachable": 0, "detached": 0},
    "evs": {"UNKNOWN": 0, "GOOD": 35, "SKIP": 0, "ASSUMED_BAD": 1, "DENIED": 0},
    "usable_evs": 35,
    "drops": {"TOO_BIG": 3},
    "last_event": EVENT,
    "push": {"hook": "tc egress mrc0", "reason": None},
}
VERSION = {"version": "0.1.0", "abi_version": 1, "wire_version": 1, "schema_version": 1}


class Daemon(ThreadingMixIn, UnixStreamServer):
    """Serves `answers` by path, keeps `requests`; /v1/events is a real long poll over `events`."""

    daemon_threads = True

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.answers: dict[str, tuple[int, Any]] = {
            "/v1/version": (200, VERSION),
            "/v1/status": (200, STATUS),
            "/v1/peers": (200, [PEER]),
            "/v1/paths": (200, [PATH, BAD_PATH]),
        }
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.events: list[dict[str, Any]] = []
        self.news = threading.Condition()
        self.stopping = False
        super().__init__(str(run_dir / "mrcd.sock"), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def add(self, *events: dict[str, Any]) -> None:
        with self.news:
            self.events += events
            self.news.notify_all()

    def stop(self) -> None:
        """As kill -9 does it: the socket file stays, connections break."""
        self.shutdown()
        self.server_close()
        with self.news:
            self.stopping = True
            self.news.notify_all()

    def poll(self, after: int, wait: float) -> dict[str, Any] | None:
        with self.news:
            self.news.wait_for(lambda: self.stopping or any(e["id"] > after for e in self.events), wait)
            if self.stopping:
                return None
            fresh = [e for e in self.events if e["id"] > after]
            return {"events": fresh, "last_id": self.events[-1]["id"] if self.events else 0}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(dict(parse_qsl(urlsplit(self.path).query)))

    def do_POST(self) -> None:
        self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def answer(self, given: dict[str, Any]) -> None:
        daemon = cast(Daemon, self.server)
        path = urlsplit(self.path).path
        daemon.requests.append((self.command, path, given))
        code, document = daemon.answers.get(path, (200, None))
        if path == "/v1/events" and document is None:
            document = daemon.poll(int(given["after"]), float(given["wait"]))
            if document is None:
                return  # killed: no answer at all
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def daemon(run_dir: Path) -> Iterator[Daemon]:
    server = Daemon(run_dir)
    yield server
    server.stop()


@pytest.fixture
def mrcctl(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("MRCD_RUN_DIR", str(run_dir))
    return lambda *args: CliRunner().invoke(cli, args, prog_name="mrcctl")


@pytest.fixture
def spawn(run_dir: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """mrcctl as a process of its own, for what CliRunner cannot show."""
    children: list[subprocess.Popen[str]] = []

    def start(*args: str) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, "-c", "from mrcd.ctl.main import main; main()", *args],
            # Unbuffered, Python would forget what a pipe did not take, and never meet the broken pipe.
            env={**os.environ, "MRCD_RUN_DIR": str(run_dir), "PYTHONUNBUFFERED": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


# ---- the daemon answers ----------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("usable", "weight", "shown"),
    [(True, 1.0, "yes"), (True, 0.125, "1/8"), (True, 0.5, "1/2"), (False, 0.125, "no"), (True, None, "yes")],
)
def test_an_ev_that_has_just_returned_takes_some_of_its_turns(usable: bool, weight: float | None, shown: str) -> None:
    heading, line = render.paths([{**PATH, "usable": usable, "weight": weight}], colour=False)
    assert line[heading.index("USABLE") :].split()[0] == shown


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


@pytest.mark.parametrize("action", ["deny", "allow"])
def test_deny_and_allow(mrcctl: Callable[..., Result], daemon: Daemon, action: str) -> None:
    affected = {"peer": "h2", "ev": 5, "plane": 1, "t1": 1}
    answer = {"changed": 1, "paths": [affected], "refused": 0, "message": "1 EV denied"}
    daemon.answers[f"/v1/{action}"] = (200, answer)
    result = mrcctl(action, "--peer", "h2", "--ev", "5")
    assert (result.exit_code, result.stdout) == (0, "1 EV denied\n  h2 EV 5 (plane 1, T1 1)\n")
    assert daemon.requests == [("POST", f"/v1/{action}", {"peer": "h2", "ev": 5, "plane": None})]
    answer["paths"] = [affected] * 20
    assert json.loads(mrcctl(action, "--plane", "0", "--json").stdout) == answer
    shown = mrcctl(action, "--plane", "0").stdout.splitlines()
    assert (len(shown), shown[-1]) == (18, "  and 4 more (all with --json)")


def test_all_refused_is_a_failure(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    daemon.answers["/v1/deny"] = (200, {"changed": 0, "paths": [], "refused": 4, "message": "the floor holds"})
    result = mrcctl("deny", "--peer", "h2")
    assert (result.exit_code, result.stdout) == (2, "the floor holds\n")


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


# ---- following -------------------------------------------------------------------------------


def lines(stream: IO[str] | None, n: int) -> list[str]:
    assert stream is not None
    return [stream.readline() for _ in range(n)]


def test_follow_prints_each_event_at_once(daemon: Daemon, spawn: Callable[..., "subprocess.Popen[str]"]) -> None:
    daemon.add(EVENT)
    child = spawn("events", "--follow", "--json")
    assert json.loads(lines(child.stdout, 1)[0]) == EVENT
    second, third = ({**EVENT, "id": n, "monotonic_ns": 2000} for n in (2, 3))  # two within one tick of the clock
    daemon.add(second)
    assert json.loads(lines(child.stdout, 1)[0]) == second
    daemon.add(third)
    assert json.loads(lines(child.stdout, 1)[0]) == third
    child.send_signal(signal.SIGINT)
    rest, errors = child.communicate(timeout=10)
    assert (child.returncode, rest, errors) == (130, "", "")


def test_follow_table_has_one_heading(daemon: Daemon, spawn: Callable[..., "subprocess.Popen[str]"]) -> None:
    daemon.add(EVENT)
    child = spawn("events", "-f")
    head, first = lines(child.stdout, 2)
    daemon.add({**EVENT, "id": 2, "monotonic_ns": 2000, "peer": None, "kind": "plane", "ev": None, "to": "down"})
    second = lines(child.stdout, 1)[0]
    for name, one, other in (
        ("KIND", "ev ", "plane "),
        ("TO", "ASSUMED_BAD", "down"),
        ("REASON", "overdue", "overdue"),
    ):
        assert head.index(name) == first.index(one) == second.index(other)


def test_follow_lives_through_a_restart(
    daemon: Daemon, run_dir: Path, spawn: Callable[..., "subprocess.Popen[str]"]
) -> None:
    daemon.add(EVENT, {**EVENT, "id": 2, "monotonic_ns": 2000})
    child = spawn("events", "-f", "--json")
    assert [json.loads(line)["id"] for line in lines(child.stdout, 2)] == [1, 2]
    daemon.stop()
    assert "mrcd is not running" in lines(child.stderr, 1)[0]
    (run_dir / "mrcd.sock").unlink()
    again = Daemon(run_dir)
    try:
        # It remembers an old event under a number of its own, and has a new one.
        again.add({**EVENT, "monotonic_ns": 2000}, {**EVENT, "id": 2, "monotonic_ns": 3000})
        assert json.loads(lines(child.stdout, 1)[0])["monotonic_ns"] == 3000
    finally:
        again.stop()


def test_follow_needs_a_daemon_to_begin_with(mrcctl: Callable[..., Result]) -> None:
    result = mrcctl("events", "--follow")
    assert result.exit_code == 2
    assert "mrcd is not running" in result.stderr


def test_a_reader_that_goes_away_is_no_error(daemon: Daemon, spawn: Callable[..., "subprocess.Popen[str]"]) -> None:
    daemon.answers["/v1/paths"] = (200, [PATH] * 5000)
    child = spawn("paths")
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == ""
    assert child.wait(10) == 141


# ---- the daemon is down, or strange ----------------------------------------------------------


class FakeView:
    def status(self) -> dict[str, Any]:
        return {**STATUS, "daemon": {"running": False}}

    def peers(self) -> list[dict[str, Any]]:
        return [PEER]

    def paths(
        self, peer: str | None = None, plane: int | None = None, state: str | None = None
    ) -> list[dict[str, Any]]:
        return [PATH] if (peer, plane, state) == ("h2", 1, "GOOD") else [BAD_PATH]


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> None:
    module = ModuleType("mrcd.view")

    def open_pinned(where: Path) -> FakeView:
        assert where == run_dir
        return FakeView()

    module.open_pinned = open_pinned  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mrcd.view", module)


SAYS_SO = "mrcctl: mrcd is not running; from the pinned tables\n"


@pytest.mark.usefixtures("pinned")
def test_pinned_tables_answer_for_the_daemon(mrcctl: Callable[..., Result]) -> None:
    result = mrcctl("status", "--json")
    assert (result.exit_code, result.stderr) == (0, SAYS_SO)
    assert json.loads(result.stdout)["daemon"] == {"running": False}
    assert "daemon      mrcd not running\n" in mrcctl("status").stdout
    assert json.loads(mrcctl("peers", "--json").stdout) == [PEER]
    assert json.loads(mrcctl("paths", "--json").stdout) == [BAD_PATH]
    result = mrcctl("paths", "--json", "--peer", "h2", "--plane", "1", "--state", "GOOD")
    assert (json.loads(result.stdout), result.stderr) == ([PATH], SAYS_SO)


@pytest.mark.usefixtures("pinned")
def test_a_socket_that_nobody_serves_means_down(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    daemon.stop()
    result = mrcctl("peers", "--json")
    assert (result.exit_code, result.stderr) == (0, SAYS_SO)


def test_down_and_no_pins(mrcctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mrcd.view")

    def open_pinned(_: Path) -> None:
        raise MachineError("there are no pinned tables", hint="not this one")

    module.open_pinned = open_pinned  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mrcd.view", module)
    result = mrcctl("status")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "mrcctl: mrcd is not running, and there are no pinned tables\n"
        "  hint: start it with `systemctl start mrcd`, or `mrcd --config FILE`\n"
    )


@pytest.mark.parametrize("args", [["deny", "--peer", "h2"], ["detach"], ["attach"], ["events"]], ids=" ".join)
@pytest.mark.usefixtures("pinned")
def test_what_needs_the_daemon_fails_without_it(mrcctl: Callable[..., Result], args: list[str]) -> None:
    result = mrcctl(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("mrcctl: mrcd is not running (no socket ")
    assert "\n  hint: start it with " in result.stderr


def test_version_does_not_need_the_daemon(mrcctl: Callable[..., Result]) -> None:
    result = mrcctl("version")
    assert (result.exit_code, result.stdout) == (0, f"mrcctl {mrcd.__version__}\nmrcd not running\n")
    assert json.loads(mrcctl("version", "--json").stdout)["daemon"] is None


@pytest.mark.parametrize(
    ("code", "document", "exit_code", "message"),
    [
        (
            404,
            {"error": "no peer 'h9'", "hint": "see `mrcctl peers`", "exit_code": 1},
            1,
            "mrcctl: no peer 'h9'\n  hint: see `mrcctl peers`\n",
        ),
        (500, {"error": "the kernel refused", "hint": None, "exit_code": 2}, 2, "mrcctl: the kernel refused\n"),
        (500, {"error": "no code"}, 2, "mrcctl: no code\n"),
        (500, b"<html>", 2, "mrcctl: mrcd answered 500 Internal Server Error without a JSON document\n"),
        (200, b"{", 2, "mrcctl: mrcd answered 200 OK without a JSON document\n"),
        (200, {"peers": 1}, 2, "mrcctl: internal error: "),
    ],
)
def test_errors_of_the_daemon(
    mrcctl: Callable[..., Result], daemon: Daemon, code: int, document: object, exit_code: int, message: str
) -> None:
    daemon.answers["/v1/paths"] = (code, document)
    result = mrcctl("paths")
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert result.stderr.startswith(message)
    assert "Traceback" not in result.stderr


def test_a_daemon_that_hangs(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    # The long poll of an event that never comes stands in for it.
    daemon.poll = lambda after, wait: Daemon.poll(daemon, after, 60)  # type: ignore[method-assign]
    result = mrcctl("events", "--timeout", "0.05")
    assert result.exit_code == 2
    assert result.stderr.startswith("mrcctl: mrcd did not answer within 0.05 s\n  hint: ")


def test_not_a_socket(mrcctl: Callable[..., Result], run_dir: Path) -> None:
    result = mrcctl("detach", "--run-dir", str(run_dir / ("long" * 40)))
    assert result.exit_code == 2
    assert "AF_UNIX path too long" in result.stderr


# ---- the user errs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["deny"], "deny what?"),
        (["allow", "--json"], "allow what?"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["paths", "--state", "WELL"], "Invalid value for '--state'"),
        (["paths", "--plane", "-1"], "Invalid value for '--plane'"),
        (["deny", "--ev", "x"], "Invalid value for '--ev'"),
        (["status", "--timeout", "0"], "Invalid value for '--timeout'"),
        (["status", "h2"], "Got unexpected extra argument"),
        (["config", "check"], "Missing argument 'FILE'"),
        (["config", "check", "/nowhere/mrcd.toml"], "/nowhere/mrcd.toml: no such file"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_usage_errors(mrcctl: Callable[..., Result], args: list[str], message: str) -> None:
    result = mrcctl(*args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"mrcctl: {message}")
    assert "\n  hint: " in result.stderr


def test_help(mrcctl: Callable[..., Result]) -> None:
    assert mrcctl("--help").exit_code == 0
    bare = mrcctl()
    assert (bare.exit_code, bare.stdout) == (1, "")
    assert bare.stderr.startswith("Usage: mrcctl ")


# ---- config check ----------------------------------------------------------------------------

CLUSTER = """
[cluster]
planes = 2
t0s = 2
t1s = 3
mtu = 1500
"""
HOST = '[[hosts]]\nname = "{}"\nid = {}\nport = {}\nt0 = {}\nprefixes = ["10.0.0.{}/32"]\n'


@pytest.fixture
def cluster_file(tmp_path: Path) -> Path:
    file = tmp_path / "mrcd.toml"
    hosts = [HOST.format("a", 0, 0, 0, 1), HOST.format("b", 1, 1, 0, 2), HOST.format("c", 2, 0, 1, 3)]
    file.write_text(CLUSTER + "".join(hosts))
    return file


def test_config_check(mrcctl: Callable[..., Result], cluster_file: Path) -> None:
    result = mrcctl("config", "check", str(cluster_file))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"{cluster_file}: valid",
        "  cluster     mrc: 3 hosts, 2 planes",
        "  fabric      in each plane 2 T0s, 3 T1s",
        "  paths       2 to 6 EVs per peer (at most 256)",
        "  data plane  steering usid, granularity burst",
        "  MTU         planes 1500, inner 1420 bytes",
        "  seen from   a: p0, p1",
    ]
    document = json.loads(mrcctl("config", "check", str(cluster_file), "--host", "c", "--json").stdout)
    assert (document["host"], document["evs"], document["inner_mtu"]) == ("c", {"min": 6, "max": 6}, 1420)


def test_config_check_tells_all_faults(mrcctl: Callable[..., Result], cluster_file: Path) -> None:
    cluster_file.write_text(cluster_file.read_text().replace("planes = 2", "plains = 2").replace("id = 2", "id = -2"))
    result = mrcctl("config", "check", str(cluster_file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"mrcctl: {cluster_file}: ")
    assert "cluster.plains: unknown key" in result.stderr
    assert "hosts[2].id: " in result.stderr


def test_config_check_of_an_unknown_host(mrcctl: Callable[..., Result], cluster_file: Path) -> None:
    result = mrcctl("config", "check", str(cluster_file), "--host", "z")
    assert result.exit_code == 1
    assert "no host named 'z'" in result.stderr


def test_config_check_looks_from_every_source_of_paths(mrcctl: Callable[..., Result], cluster_file: Path) -> None:
    one = '[[paths]]\nsource = "b"\npeer = "c"\nplane = 0\nsegments = ["5f00::1"]\n'
    cluster_file.write_text(cluster_file.read_text().replace("mtu = 1500", "evs_per_peer = 4") + one * 3)
    result = mrcctl("config", "check", str(cluster_file), "--host", "a")
    assert result.exit_code == 1
    assert "more than 2 paths b → c on plane 0" in result.stderr


# ---- completion ------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(mrcctl: Callable[..., Result], shell: str) -> None:
    result = mrcctl("completion", shell)
    assert result.exit_code == 0
    assert f"_MRCCTL_COMPLETE={shell}_complete" in result.stdout


def complete(monkeypatch: pytest.MonkeyPatch, mrcctl: Callable[..., Result], words: str) -> list[str]:
    monkeypatch.setenv("_MRCCTL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    result = mrcctl()
    assert result.stderr == ""
    return [line.split(",")[1] for line in result.stdout.splitlines() if line]


def test_completion_of_values(mrcctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, daemon: Daemon) -> None:
    daemon.answers["/v1/peers"] = (200, [{"peer": "h2"}, {"peer": "h3"}, {"peer": "store1"}])
    assert complete(monkeypatch, mrcctl, "mrcctl paths --peer h") == ["h2", "h3"]
    assert complete(monkeypatch, mrcctl, "mrcctl paths --state AS") == ["ASSUMED_BAD"]


def test_completion_without_a_daemon_is_silent(mrcctl: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete(monkeypatch, mrcctl, "mrcctl deny --peer ") == []


# ---- start-up and text -----------------------------------------------------------------------


def test_starts_without_the_heavy_modules(run_dir: Path) -> None:
    code = (
        "import sys; from mrcd.ctl.main import cli\n"
        "heavy = {'bcc', 'pydantic', 'aiohttp', 'numpy', 'scapy', 'pyroute2'}\n"
        "try: cli(['version'])\n"
        "except SystemExit: print(sorted(heavy & set(sys.modules)))"
    )
    env = {**os.environ, "MRCD_RUN_DIR": str(run_dir)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (9999, "9999"),
        (10_000, "10k"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (1_851_850_500, "1.85G"),
        (4 * 10**15, "4000T"),
    ],
)
def test_count(value: int | None, shown: str) -> None:
    assert render.count(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.0, "0"), (0.00002, "0.002"), (0.1234, "12.3"), (0.9999, "100"), (1.0, "100")],
)
def test_percent(value: float | None, shown: str) -> None:
    assert render.percent(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.04, "0.0 s"), (42, "42 s"), (119, "119 s"), (300, "5 min"), (9000, "2.5 h"), (10**6, "12 d")],
)
def test_duration(value: float | None, shown: str) -> None:
    assert render.duration(value) == shown


def test_colour_changes_nothing_but_colour() -> None:
    plain = render.paths([PATH, BAD_PATH], colour=False)
    coloured = render.paths([PATH, BAD_PATH], colour=True)
    assert "\033[32mGOOD\033[0m" in coloured[1]
    assert "\033[31mASSUMED_BAD\033[0m" in coloured[2]
    for code in ("\033[32m", "\033[31m", "\033[0m"):
        coloured = [line.replace(code, "") for line in coloured]
    assert coloured == plain
