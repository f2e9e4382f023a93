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

from mrcd.ctl.commands import watch
from tests.unit.canned_daemon import BAD_PATH, EVENT, Daemon

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
    lines = watch.frame(document, [EVENT] * 30, colour=True, columns=80, height=24)
    assert len(lines) <= 24
    plain = watch.frame(document, [EVENT] * 30, colour=False, columns=80, height=24)
    assert max(map(len, plain)) <= 80
    assert sum("ASSUMED_BAD" in line for line in plain) > 6


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
