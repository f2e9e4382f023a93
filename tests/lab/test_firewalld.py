# SPDX-License-Identifier: BSD-2-Clause
"""Starts a real firewalld in both hosts of a lab, with the zone of docs/install.md: mrcd's traffic passes."""

import contextlib
import errno
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.cluster.api import Lab
from labkit.traffic import candidates
from labkit.traffic.stream import Stream
from tests.lab.conftest import TWO_HOSTS, a_lab, all_good, mrcctl, wait_until
from tests.pages import ROOT, shell_commands

TREE = ROOT / "build/firewalld"  # by `scripts/set-up --firewalld`
RATE = 5_000  # packets per second
HOSTS = ("h0", "h1")
FILES = "/etc/firewalld"
COMMANDS = [c for c in shell_commands(ROOT / "docs/install.md") if c.startswith(("firewall-cmd ", "nft ", "sed "))]

pytestmark = pytest.mark.skipif(not TREE.exists(), reason="there is no firewalld: `scripts/set-up --firewalld`")

_LIBRARIES = next(iter(TREE.glob("usr/lib/*-linux-gnu")), TREE)
_ENV = {
    "PATH": f"{TREE}/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": str(TREE / "usr/lib/python3/dist-packages"),
    "LD_LIBRARY_PATH": str(_LIBRARIES),
    "GI_TYPELIB_PATH": str(_LIBRARIES / "girepository-1.0"),
}
# In a mount namespace of its own: its files must not be this machine's.
_BUS = """
mount -t tmpfs none /run
mount -t tmpfs none /var/log
mkdir /run/dbus
exec dbus-daemon --session --nofork --address=unix:path=/run/dbus/system_bus_socket
"""


class Firewall:
    """A firewalld in a host, with a bus and files of its own. `zone` is the zone of all interfaces at first."""

    def __init__(self, lab: Lab, host: str, directory: Path, zone: str) -> None:
        self._lab, self._host, self._etc, self._log = lab, host, directory / "etc", directory / "log"
        directory.mkdir()
        subprocess.run(["cp", "-r", TREE / "etc/firewalld", self._etc], check=True)
        settings = self._etc / "firewalld.conf"
        settings.write_text(settings.read_text().replace("DefaultZone=public", f"DefaultZone={zone}"))
        self._bus = lab.popen(host, ["unshare", "--mount", "sh", "-ec", _BUS], env=_ENV)
        wait_until("the bus is there", lambda: Path(f"/proc/{self._bus.pid}/root/run/dbus/system_bus_socket").exists())
        self.start()

    def _enter(self, *argv: str) -> list[str]:
        return ["nsenter", f"--target={self._bus.pid}", "--mount", *argv]

    def start(self) -> None:
        files = (f"--default-config={TREE}/usr/lib/firewalld", f"--system-config={self._etc}")
        with self._log.open("ab") as log:
            argv = self._enter(f"{TREE}/usr/sbin/firewalld", "--nofork", "--nopid", *files)
            self._daemon = self._lab.popen(self._host, argv, env=_ENV, stdout=log, stderr=log)
        wait_until("firewalld runs", lambda: self.run("firewall-cmd --state").returncode == 0)

    def stop(self) -> None:
        self._daemon.terminate()
        self._daemon.wait(60)

    def run(self, command: str) -> "subprocess.CompletedProcess[str]":
        """Runs a command, with this firewalld's files instead of FILES."""
        return self._lab.exec(self._host, self._enter("sh", "-c", command.replace(FILES, str(self._etc))), env=_ENV)

    def close(self) -> None:
        self.stop()
        self._bus.terminate()
        self._bus.wait(60)


@pytest.fixture
def two() -> Iterator[Lab]:
    with a_lab("firewalld", **TWO_HOSTS) as lab:
        yield lab


def is_let_in(lab: Lab) -> bool:
    """Returns whether h1's stack answers a SYN: by a reset, as nothing listens."""
    ends = candidates.overlay(lab, 4)
    with lab.inside(ends.source), socket.socket() as tcp:
        tcp.settimeout(0.5)
        return tcp.connect_ex((ends.target_address, 9)) == errno.ECONNREFUSED


def assert_passes(lab: Lab) -> None:
    """Checks that new flows of UDP from h0 to h1, and pings of both directions, lose nothing."""
    for version in (4, 6):
        ends = candidates.overlay(lab, version)
        for host, address in ((ends.source, ends.target_address), (ends.target, ends.source_address)):
            done = lab.exec(host, ["ping", "-q", "-c100", "-i0.002", "-W1", address])
            assert " 0% packet loss" in done.stdout, done.stdout
        with Stream(lab, ends, rate=RATE) as stream:
            wait_until("packets are sent", lambda s=stream: s.mark() > RATE / 5)  # type: ignore[misc]
            result = stream.finish()
        assert (result.lost(), result.socket_drops) == (0, 0)


@pytest.mark.parametrize("zone", ["public", "drop"])
def test_firewalld_lets_the_overlay_pass_by_a_zone_of_its_own(two: Lab, tmp_path: Path, zone: str) -> None:
    with contextlib.ExitStack() as stack:
        walls = [Firewall(two, host, tmp_path / host, zone) for host in HOSTS]
        for wall in walls:
            stack.callback(wall.close)
        assert COMMANDS
        assert not is_let_in(two)
        for command in COMMANDS:
            for wall in walls:
                done = wall.run(command)
                assert done.returncode == 0, f"{command}: {done.stderr}"
        assert is_let_in(two)
        assert_passes(two)

        # A reload and a restart, under pings.
        began = len(mrcctl(two, "h0", "events"))
        ends = [candidates.overlay(two, version) for version in (4, 6)]
        argv = [["ping", "-q", "-i0.002", "-w100", "-W1", e.target_address] for e in ends]
        pings = [two.popen("h0", words, stdout=subprocess.PIPE, text=True) for words in argv]
        for wall in walls:
            assert wall.run("firewall-cmd --reload").returncode == 0
            wall.stop()
            wall.start()
        for ping in pings:
            ping.send_signal(signal.SIGINT)
            out = ping.communicate(timeout=60)[0]
            assert " 0% packet loss" in out, out
        assert mrcctl(two, "h0", "events")[began:] == []

        for host in HOSTS:
            two.exec(host, ["mrcctl", "detach"], check=True)
            assert_passes(two)
        for host in HOSTS:
            two.exec(host, ["mrcctl", "attach"], check=True)
        wait_until("all EVs are GOOD", lambda: all_good(two))
        assert_passes(two)
