# SPDX-License-Identifier: BSD-2-Clause
"""Tests `watch` and `top`: rates, a terminal, a pipe, over the daemon's end; the terminal is restored."""

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
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from mrcd.ctl import rates
from mrcd.ctl.commands import peers, watch
from mrcd.ctl.rates import Sample
from mrcd.ctl.terminal.screen import Screen
from tests.unit.canned_daemon import BAD_PATH, EVENT, PATH, PEER, Daemon


def path(ev: int, sent: int = 0, lost: int = 0, **other: Any) -> dict[str, Any]:
    """Returns EV `ev` after `sent` packets of 1000 bytes."""
    return {**PATH, "ev": ev, "tx_packets": sent, "tx_bytes": sent * 1000, "lost_packets": lost, **other}


def moved(*pairs: tuple[dict[str, Any], dict[str, Any]], seconds: float = 2.0) -> list[dict[str, Any]]:
    return rates.per_second(Sample(10.0, [a for a, _ in pairs]), Sample(10.0 + seconds, [b for _, b in pairs]))


def test_rates_are_per_second_and_loss_is_of_what_was_sent_meanwhile() -> None:
    (row,) = moved((path(5, 100, 50), path(5, 300, 60)))
    assert (row["tx_packets_per_s"], row["tx_bits_per_s"], row["lost_packets_per_s"]) == (100, 800_000, 5)
    assert row["loss_ratio"] == 0.05
    (idle,) = moved((path(5, 300, 60), path(5, 300, 60)))
    assert (idle["tx_packets_per_s"], idle["loss_ratio"]) == (0, 0.0)


def test_reset_counters_and_new_paths_have_no_rate() -> None:
    (fell,) = moved((path(5, 300), path(5, 20)))
    assert (fell["tx_packets_per_s"], fell["tx_bits_per_s"], fell["loss_ratio"]) == (None, None, None)
    (new,) = rates.per_second(Sample(0, []), Sample(1, [path(5, 20)]))
    assert new["tx_packets_per_s"] is None


def test_the_busiest_carry_something() -> None:
    rows = moved(*((path(ev), path(ev, sent)) for ev, sent in ((1, 10), (2, 0), (3, 30), (4, 20))))
    assert [r["ev"] for r in rates.busiest(rows, 2)] == [3, 4]
    assert [r["ev"] for r in rates.busiest(rows, 9)] == [3, 4, 1]


def test_the_worst_have_something_wrong() -> None:
    good, lossy = (path(1, 0), path(1, 100)), (path(2, 0), path(2, 100, 10))
    slow = (path(3), path(3, state="SKIP", rtt_ns=9_000_000, usable=True))
    bad = (path(4), path(4, state="ASSUMED_BAD", usable=False))
    denied = (path(5), path(5, state="DENIED", usable=False))
    cut = (path(6), path(6, usable=False))  # GOOD, but its plane is down
    rows = moved(good, lossy, slow, bad, denied, cut)
    assert [r["ev"] for r in rates.worst(rows, 9)] == [4, 5, 3, 2, 6]
    assert [r["ev"] for r in rates.worst(rows, 1)] == [4]


def test_a_peer_has_its_rates_and_the_usable_paths_of_each_plane() -> None:
    before = {**PEER, "tx_packets": 100, "tx_bytes": 1000, "lost_packets": 9}
    after = {**PEER, "tx_packets": 500, "tx_bytes": 401_000, "lost_packets": 11}
    (of_peer,) = rates.per_second(Sample(10.0, [before]), Sample(12.0, [after]))
    rows = [path(0, plane=0), path(5, plane=1), path(6, plane=1, usable=False)]
    (peer,) = peers.with_rates([after], {"h2": of_peer}, rates.usable_by_plane(rows))
    assert (peer["tx_packets_per_s"], peer["tx_bits_per_s"], peer["lost_packets_per_s"]) == (200, 1_600_000, 1)
    assert peer["planes"] == [{"plane": 0, "usable_evs": 1, "evs": 1}, {"plane": 1, "usable_evs": 1, "evs": 2}]


def test_a_revoked_loss_is_no_counter_reset() -> None:
    (row,) = rates.per_second(Sample(10.0, [path(0, 100, 5)]), Sample(12.0, [path(0, 300, 3)]))
    assert (row["tx_packets_per_s"], row["lost_packets_per_s"], row["loss_ratio"]) == (100, 0, 0.0)


# ---- terminals ----


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
        _, errors = self.child.communicate(timeout=120)
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


def test_a_signal_may_draw_while_the_screen_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-Z does: the first drawing waits for its reader, and the signal comes in the middle."""
    source, sink = os.pipe()
    seen: list[bytes] = []
    monkeypatch.setattr(sys, "stdout", os.fdopen(sink, "w", encoding="utf-8"))
    screen = Screen()

    def read() -> None:
        while select.select([], [sink], [], 0)[1]:
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGUSR1)
        while not seen or b"last" not in seen[-1]:
            seen.append(os.read(source, 1 << 20))

    before = signal.signal(signal.SIGUSR1, lambda *_: screen.draw(["by the signal"]))
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        screen.draw(["x" * (1 << 20)])
        screen.draw(["last"])
        reader.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
        os.close(source)
        sys.stdout.close()
    assert b"by the signal" in b"".join(seen)
