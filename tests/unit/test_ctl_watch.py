# SPDX-License-Identifier: BSD-2-Clause
"""Tests `watch` and `top`: in a terminal, in a pipe, over the daemon's end; the terminal is restored."""

import fcntl
import json
import os
import pty
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from mrcd.ctl.documents import live
from mrcd.ctl.terminal.render import cut
from tests.unit.canned_daemon import BAD_PATH, EVENT, PATH, STATUS, Daemon

LEFT = "\033[?1049l"


WATCH = [sys.executable, "-c", "from mrcd.ctl.entry import main; main()", "watch", "--interval", "0.1"]


class Terminal:
    """Runs a command in a terminal of 24 lines and 80 columns."""

    def __init__(self, run_dir: Path, *argv: str, errors: int | None = subprocess.PIPE) -> None:
        self.ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self._theirs)
        self.shown = ""
        self.child = subprocess.Popen(
            argv,
            env={**os.environ, "MRCD_RUN_DIR": str(run_dir), "TERM": "xterm"},
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs if errors is None else errors,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def until(self, text: str) -> None:
        deadline = time.monotonic() + 10
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.shown[-3000:]!r}"
            if select.select([self.ours], [], [], 0.1)[0]:
                self.shown += os.read(self.ours, 65536).decode()

    def keys(self, text: str) -> None:
        os.write(self.ours, text.encode())

    @property
    def restored(self) -> bool:
        return termios.tcgetattr(self._theirs) == self.before

    def end(self) -> tuple[int, str]:
        """The exit status, and what was said on standard error."""
        self.until(LEFT)
        _, errors = self.child.communicate(timeout=10)
        return self.child.returncode, errors

    def close(self) -> None:
        self.child.kill()
        self.child.communicate()
        os.close(self.ours)
        os.close(self._theirs)


@pytest.fixture
def watched(daemon: Daemon, run_dir: Path) -> Iterator[Terminal]:
    terminal = Terminal(run_dir, *WATCH)
    try:
        terminal.until("h0 of lab")
        yield terminal
    finally:
        terminal.close()


def test_q_quits_and_gives_the_terminal_back(watched: Terminal) -> None:
    watched.until("paths out of use or losing packets: 1")
    assert not watched.restored
    watched.keys("q")
    assert watched.end() == (0, "")
    assert watched.restored


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_gives_the_terminal_back(watched: Terminal, number: int, code: int) -> None:
    watched.child.send_signal(number)
    assert watched.end() == (code, "")
    assert watched.restored


def test_ctrl_z_gives_the_terminal_back_until_it_is_continued(daemon: Daemon, run_dir: Path) -> None:
    script = f"{shlex.join(WATCH)}; echo stopped; read; fg"
    terminal = Terminal(
        run_dir, "bash", "--norc", "-c", f"set -m; {script}", errors=None
    )  # job control: without a shell nothing stops
    try:
        terminal.until("h0 of lab")
        terminal.keys("\x1a")
        terminal.until("stopped")
        assert LEFT in terminal.shown
        assert terminal.restored
        terminal.shown = ""
        terminal.keys("\n")
        terminal.until("h0 of lab")
        terminal.keys("q")
        assert terminal.end()[0] == 0
        assert terminal.restored
    finally:
        terminal.close()


def test_watch_continues_after_the_daemon_ends(watched: Terminal, daemon: Daemon, run_dir: Path) -> None:
    daemon.stop()
    watched.until("NO ANSWER; last sample below")
    watched.until("mrcd is not running, and no usable")
    (run_dir / "mrcd.sock").unlink()
    again = Daemon(run_dir)
    try:
        watched.shown = ""
        watched.until("mrcd 0.1.0 up")
        watched.keys("q")
        assert watched.end() == (0, "")
    finally:
        again.stop()


def test_a_frame_fits_the_screen() -> None:
    document = look() | {"worst": [row(ev) for ev in range(40)], "bad_paths": 40}
    lines = live.lines(document, [EVENT] * 30, colour=True, columns=80, height=24)
    assert len(lines) <= 24
    plain = live.lines(document, [EVENT] * 30, colour=False, columns=80, height=24)
    assert max(map(len, plain)) <= 80
    assert sum("ASSUMED_BAD" in line for line in plain) > 6


def test_cutting_counts_no_colours() -> None:
    assert cut("\033[32mGOOD\033[0m news", 6) == "\033[32mGOOD\033[0m …"
    assert cut("\033[32mGOOD\033[0m", 4) == "\033[32mGOOD\033[0m"
    assert cut("GOOD", 3) == "GO…"


def row(ev: int) -> dict[str, Any]:
    rates = {"tx_packets_per_s": 1.0, "tx_bits_per_s": 8.0, "lost_packets_per_s": 1.0, "label": ""}
    return {**BAD_PATH, "ev": ev, **rates}


def look() -> dict[str, Any]:
    return {
        "time": "2030-01-02T03:04:05",
        "error": None,
        "source": "daemon",
        "status": {},
        "peers": [],
        "worst": [],
        "partial": False,
    }


# ---- not in a terminal -----------------------------------------------------------------------


def test_lines_of_json(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    daemon.add(EVENT)
    result = mrcctl("watch", "--json", "--count", "2", "--interval", "0.1")
    assert (result.exit_code, result.stderr) == (0, "")
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert (first["schema_version"], first["source"], first["events"], second["events"]) == (2, "daemon", [EVENT], [])
    assert [p["tx_packets_per_s"] for p in (first["peers"][0], second["peers"][0])] == [0, 0]
    assert [(p["ev"], p["state"]) for p in second["worst"]] == [(6, "ASSUMED_BAD")]
    assert (first["worst"][0]["tx_packets_per_s"], second["worst"][0]["tx_packets_per_s"]) == (None, 0)


def test_with_many_paths_only_those_out_of_use_are_requested(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    many = {"UNKNOWN": 1_000_000, "GOOD": 48_000, "SKIP": 0, "ASSUMED_BAD": 1, "DENIED": 0}
    daemon.answers["/v1/status"] = (200, {**STATUS, "evs": many})
    daemon.answers["/v1/paths"] = (200, [BAD_PATH])
    shown = mrcctl("watch", "-c", "1").stdout
    assert [given for _, path, given in daemon.requests if path == "/v1/paths"] == [{"state": "ASSUMED_BAD"}]
    assert "paths out of use: 1000001 (too many paths to list those that lose packets: --peer NAME)" in shown
    assert shown.splitlines()[-2].split()[:5] == ["h2", "6", "1", "-", "ASSUMED_BAD"]
    daemon.requests.clear()
    assert mrcctl("watch", "-c", "1", "--peer", "h2").exit_code == 0
    assert [given for _, path, given in daemon.requests if path == "/v1/paths"] == [{"peer": "h2"}]


def test_in_a_pipe_no_escape_codes(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    result = mrcctl("watch", "-c", "2", "-i", "0.1")
    assert (result.exit_code, result.stdout.count("h0 of lab")) == (0, 2)
    assert "\033" not in result.stdout


def test_watch_without_a_daemon_or_tables_is_an_error(mrcctl: Callable[..., Result]) -> None:
    result = mrcctl("watch", "-c", "1")
    assert result.exit_code == 2
    assert result.stderr.startswith("mrcctl: mrcd is not running, and no usable ")


@pytest.mark.parametrize("answer", [[], {"peers": 1}, "text", None])
def test_an_invalid_answer_causes_no_traceback(mrcctl: Callable[..., Result], daemon: Daemon, answer: object) -> None:
    for path in ("/v1/status", "/v1/peers", "/v1/paths"):
        daemon.answers[path] = (200, answer)
    for command in (("watch", "-c", "1"), ("top", "-i", "0.1"), ("status",), ("peers",), ("paths", "--decode")):
        result = mrcctl(*command)
        assert result.exit_code in (0, 2), command
        assert "Traceback" not in result.stderr
        assert result.stderr.startswith("mrcctl: ") == (result.exit_code == 2)


def test_top(mrcctl: Callable[..., Result], daemon: Daemon) -> None:
    result = mrcctl("top", "--interval", "0.1", "--json")
    document = json.loads(result.stdout)
    assert (document["paths"], document["busiest"], document["interval_s"] >= 0.1) == (2, [], True)
    assert [p["ev"] for p in document["worst"]] == [6]
    lines = mrcctl("top", "-i", "0.1").stdout.splitlines()
    assert lines[1] == "no path carries traffic"
    assert " ".join(lines[-1].split()) == "h2 6 1 - ASSUMED_BAD no 90 s 0 0 0 0 - loss"
    daemon.answers["/v1/paths"] = (200, [PATH])
    assert mrcctl("top", "-i", "0.1").stdout.splitlines()[-1] == "none"


# ---- in a narrow terminal ----


def sample(**other: Any) -> dict[str, Any]:
    kept = {k: STATUS.get(k) for k in ("host", "cluster", "attached", "daemon", "evs", "usable_evs", "drops")}
    rates = dict.fromkeys(("tx_packets_per_s", "tx_bits_per_s", "lost_packets_per_s"), 0)
    worst = [{**BAD_PATH, "label": None, **rates}]
    peer = {
        "peer": "h2",
        "status": "attached",
        "reachable": True,
        "usable_evs": 15,
        "evs": 16,
        "rtt_ns": 1,
        "planes": [],
        "recent_loss_ratio": 0.0,
    }
    return {
        "time": "2030-01-02T03:04:05", "source": "daemon", "error": None, "partial": False, "bad_paths": 1,
        "status": kept | {"planes_up": [0, 1]}, "peers": [{**peer, **rates}], "worst": worst,
    } | other  # fmt: skip


def test_40_columns_show_the_reason_and_the_events() -> None:
    refused = {**EVENT, "kind": "daemon", "peer": None, "ev": None, "plane": None, "t1": None, "from": None, "to": None}
    refused |= {"reason": "reload_refused", "evidence": {"error": "cluster.mtu: too small"}}
    lines = live.lines(sample(), [refused], colour=False, columns=40, height=24)
    assert max(map(len, lines)) <= 40
    assert not [line for line in lines if "…" in line]
    text = " ".join(" ".join(lines).split())
    assert "REASON" in text
    assert "ASSUMED_BAD loss" in text
    assert "UTC daemon: reload_refused: cluster.mtu: too small" in text
    assert "q ends it" in text
    assert "q ends it" not in live.lines(sample(), [], colour=False)
