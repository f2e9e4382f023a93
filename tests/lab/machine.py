# SPDX-License-Identifier: BSD-2-Clause
"""Boots a machine for the systemd unit: systemd as PID 1 in namespaces, with the files of `make install`.

Its network is that of a lab's host; its /etc, /run, /usr/local, /var/lib, cgroups and BPF file system are its own.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from labkit.cluster import observe
from labkit.cluster.api import Lab
from mrcd.errors import DaemonError
from tests.lab.conftest import TWO_HOSTS, gone, own_name, wait_until

SYSTEMD = Path("/usr/lib/systemd/systemd")
UNITS = Path("/usr/lib/systemd/system")
# The units that a boot needs, of all those of a distribution.
TARGETS = (
    *("basic", "sysinit", "multi-user", "network", "network-pre", "network-online", "paths", "slices", "sockets"),
    *("timers", "local-fs", "local-fs-pre", "swap", "shutdown", "umount", "final"),
)
# The test runner's own is not used: its first python3 may be one in root's home, which no other user can run.
ENVIRONMENT = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8")
BOOT = """
set -e
mount --make-rprivate /
umount --recursive --lazy /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mount --bind "$1/etc" /etc
mount --bind "$2/usr/local" /usr/local
mount --bind "$1/units" /usr/lib/systemd/system
mount -t tmpfs tmpfs /var/lib
mount -t bpf -o mode=0700 bpf /sys/fs/bpf
mount -t tmpfs -o mode=0755 tmpfs /run
hostname "$3"
systemd-sysusers
export container=pytest
exec /usr/lib/systemd/systemd --system --unit=multi-user.target --log-target=console --log-level=notice --show-status=no
"""


def _cgroup2() -> Path | None:
    """Returns the mount point of cgroup v2."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, kind = line.split()[:3]
        if kind == "cgroup2":
            return Path(point)
    return None


def need_systemd() -> None:
    """Skips the test where such a machine cannot run."""
    if not SYSTEMD.exists():
        pytest.skip("systemd is not installed: `make set-up` installs it")
    if _cgroup2() is None:
        pytest.skip("systemd as PID 1 needs cgroup v2, which is not mounted")


class Machine:
    """One boot. `directory` is its own, `tree` has the installed files; mrcd and `units` (name → text) are enabled.

    Use as a context manager.
    """

    boot = BOOT

    def __init__(self, lab: Lab, host: str, tree: Path, directory: Path, units: dict[str, str]) -> None:
        self.lab, self._host, self._tree, self._directory, self._units = lab, host, tree, directory, units
        self.etc = directory / "etc"
        self.config = self.etc / "mrcd/mrcd.toml"
        self.log = directory / "mrcd.log"
        root = _cgroup2()
        assert root is not None
        self._cgroup = root / f"mrcd-test-{os.getpid()}"
        self._pid = 0

    def __enter__(self) -> Self:
        self._files()
        self._cgroup.mkdir()
        argv = ["unshare", "--mount", "--pid", "--uts", "--cgroup", "--fork", "--kill-child", "--mount-proc"]
        argv += ["bash", "-c", self.boot, "boot", *self._arguments()]
        console = (self._directory / "console").open("ab")
        try:
            with self.lab.inside(self._host), console:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=console,
                    preexec_fn=lambda: (self._cgroup / "cgroup.procs").write_text(str(os.getpid())),
                )
            self._pid = wait_until("systemd runs", self._first_process)
            wait_until("systemd answers", lambda: self.run("systemctl", "show", check=False).returncode == 0)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def _arguments(self) -> list[str]:
        """Returns the arguments of the boot script."""
        return [str(self._directory), str(self._tree), self._host]

    def _first_process(self) -> int:
        assert self._process.poll() is None, self.console()
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if not children:
            return 0
        return int(children[0]) if Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd" else 0

    def console(self) -> str:
        """Returns systemd's output."""
        return (self._directory / "console").read_text(errors="replace")

    def _files(self) -> None:
        units = self._directory / "units"
        units.mkdir()
        for target in TARGETS:
            shutil.copy(UNITS / f"{target}.target", units)
        subprocess.run(["cp", "-a", "/etc", str(self.etc)], check=True)
        shutil.rmtree(self.etc / "systemd/system")
        shutil.copytree(self._tree / "etc", self.etc, dirs_exist_ok=True)
        (self.etc / "hostname").write_text(f"{self._host}\n")
        text = self.lab.state.cluster_file.read_text(encoding="utf-8")
        self.config.write_text(text.replace('secret_file = "secrets"\n', ""), encoding="utf-8")
        shutil.copy(self.lab.state.secrets, self.etc / "mrcd/secrets")
        own = self.etc / "systemd/system"
        (own / "mrcd.service.d").mkdir(parents=True)
        log = f"[Service]\nStandardOutput=append:{self.log}\nStandardError=inherit\n"
        (own / "mrcd.service.d/log.conf").write_text(log)
        wants = own / "multi-user.target.wants"
        wants.mkdir()
        (wants / "mrcd.service").symlink_to("/usr/local/lib/systemd/system/mrcd.service")
        for name, text in self._units.items():
            (own / name).write_text(text)
            (wants / name).symlink_to(f"/etc/systemd/system/{name}")

    def enter(self) -> list[str]:
        """Returns the command prefix that runs a command in the machine, with the environment of a login there."""
        namespaces = ["--mount", "--pid", "--uts", "--cgroup", "--net"]
        return ["nsenter", f"--target={self._pid}", *namespaces, "--wd=/", "--", "env", "-i", *ENVIRONMENT]

    def run(self, *argv: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Runs a command in the machine."""
        done = subprocess.run([*self.enter(), *argv], capture_output=True, text=True, timeout=30)
        if check:
            assert done.returncode == 0, f"{argv}: {done.stderr}\n{self.console()}\n{self.said()}"
        return done

    def show(self, name: str, unit: str = "mrcd") -> str:
        """Returns a property of a unit (systemctl(1), show)."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).stdout.strip()

    def main_pid(self) -> int:
        """Returns the daemon's pid in the machine; 0 if it does not run."""
        return int(self.show("MainPID"))

    def signal(self, number: signal.Signals) -> None:
        """Sends the daemon a signal."""
        self.run("kill", f"-{number.name.removeprefix('SIG')}", str(self.main_pid()))

    def said(self) -> str:
        """Returns the daemon's log."""
        return self.log.read_text() if self.log.exists() else ""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the machine's PID 1, and with it all its processes."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        elif hasattr(self, "_process"):
            self._process.kill()
        if hasattr(self, "_process"):
            self._process.wait(120)

        def removed() -> Any:
            for path in sorted((p for p in self._cgroup.rglob("*") if p.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    path.rmdir()
            with contextlib.suppress(OSError):
                self._cgroup.rmdir()
            return not self._cgroup.exists()

        wait_until("its cgroups are gone", removed)


def _answers(lab: Lab, host: str) -> Any:
    with contextlib.suppress(DaemonError):
        return observe.client(lab, host).get("/v1/status")


@contextlib.contextmanager
def half_lab(name: str) -> Iterator[Lab]:
    """A block with two hosts: h1 with a daemon of the lab, h0 as a network only, for a machine."""
    lab = Lab(name := own_name(name), say=lambda _: None)
    lab.down()
    lab.up(**TWO_HOSTS, daemon=False)
    for host in ("h0", "h1"):
        lab.exec(host, ["ip", "-6", "route", "flush", "proto", "boot"], check=True)  # mrcd makes these routes
    run_dir = lab.run_dir("h1")
    with (run_dir / "mrcd.log").open("wb") as log:
        argv = ["mrcd", "--run-dir", str(run_dir), "--bpffs", str(run_dir / "bpf")]
        other = lab.popen("h1", argv, stdout=log, stderr=log)
    try:
        wait_until("mrcd of h1 answers", lambda: _answers(lab, "h1"))
        yield lab
    finally:
        other.terminate()
        other.wait(120)
        lab.down()
    assert gone(name)
