# SPDX-License-Identifier: BSD-2-Clause
"""Tests the Debian package on a machine of its own: install, start, upgrade, remove, purge. `make test-deb` runs this.

The machine's root is this one's behind a temporary overlay (so dpkg knows the packages of this machine); systemd
is its PID 1. It downloads nothing. It is not part of `make test`: building the package takes half a minute.
"""

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.conftest import mrcctl, wait_until
from tests.lab.machine import TARGETS, Machine, half_lab, need_systemd

ROOT = Path(__file__).parents[2]
BOOT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
cd "$1/root"
rm -rf lib/systemd/system etc/systemd/system
mkdir -p lib/systemd/system etc/systemd/system
rm -f etc/init.d/*
for t in $4; do cp "/usr/lib/systemd/system/$t.target" lib/systemd/system/; done
echo "$3" >etc/hostname
mount --rbind /dev dev
mount --rbind /sys sys
umount --recursive --lazy sys/fs/cgroup
mount -t cgroup2 none sys/fs/cgroup
mount -t bpf -o mode=0700 bpf sys/fs/bpf
mount -t proc proc proc
mount -t tmpfs -o mode=0755 tmpfs run
mount -t tmpfs tmpfs tmp
mkdir -p srv/upper srv/before
mount --bind "$1/upper" srv/upper
hostname "$3"
pivot_root . mnt
umount --lazy /mnt
cd /
export container=pytest
exec /usr/lib/systemd/systemd --system --unit=multi-user.target --log-target=console --log-level=notice --show-status=no
"""


class Root(Machine):
    """A machine with a whole file system of its own."""

    boot = BOOT

    def _files(self) -> None:
        (self._directory / "root").mkdir()

    def _arguments(self) -> list[str]:
        return [str(self._directory / "root"), "-", self._host, " ".join(TARGETS)]

    def changed(self) -> set[str]:
        """Returns the files that differ from those below the overlay, or are gone (whiteouts), without caches."""
        found = self.run("find", "/srv/upper", "!", "-type", "d", "-printf", "%P\n").stdout.split()
        return {f for f in found if not f.startswith(("var/cache/", "var/log/", "var/lib/dpkg/", "var/lib/systemd/"))}


@pytest.fixture(scope="module")
def package() -> Path:
    """Returns the newest package in build/."""
    found = sorted((ROOT / "build").glob("mrcd_*.deb"), key=lambda p: p.stat().st_mtime)
    if not found:
        pytest.skip("there is no package in build/: `make deb` makes it, and `make test-deb` all of this")
    return found[-1]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    """Returns h0 of a lab, booted; h1 has a daemon of the lab."""
    need_systemd()
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        pytest.skip("the kernel has no overlay file system for a root that is thrown away")
    with half_lab("debian") as lab, Root(lab, "h0", ROOT, tmp_path_factory.mktemp("debian"), {}) as made:
        yield made


def install(machine: Root, package: Path) -> None:
    text = package.read_bytes()
    done = subprocess.run([*machine.enter(), "sh", "-c", "cat >/tmp/mrcd.deb"], input=text, check=True)
    assert done.returncode == 0
    machine.run("dpkg", "--install", "/tmp/mrcd.deb")


def removed(machine: Root) -> None:
    machine.run("dpkg", "--remove", "mrcd")
    assert machine.run("systemctl", "is-active", "mrcd", check=False).stdout.strip() == "inactive"
    assert not machine.run("sh", "-c", "ls -d /sys/fs/bpf/mrcd /run/mrcd", check=False).stdout
    assert "mrc_" not in machine.run("bpftool", "net").stdout
    assert "encap seg6" in machine.run("ip", "route", "get", "10.99.0.2").stdout
    machine.run("ping", "-c3", "-W1", "10.99.0.2")


def test_the_package_installs_upgrades_removes_and_purges(machine: Root, package: Path) -> None:
    lab = machine.lab
    before = machine.changed()
    assert machine.run("id", "mrcd", check=False).returncode != 0
    install(machine, package)

    # Installed files.
    for path in (
        *("/usr/bin/mrcd", "/usr/bin/mrcctl", "/usr/lib/systemd/system/mrcd.service", "/usr/lib/sysusers.d/mrcd.conf"),
        "/usr/lib/NetworkManager/conf.d/mrcd.conf",
        *("/usr/share/man/man8/mrcd.8", "/usr/share/man/man1/mrcctl.1", "/usr/share/man/man5/mrcd.toml.5"),
        *("/usr/share/bash-completion/completions/mrcctl", "/usr/share/zsh/site-functions/_mrcctl"),
        *("/usr/share/fish/vendor_completions.d/mrcctl.fish", "/etc/mrcd/mrcd.toml.example"),
        "/usr/share/doc/mrcd/copyright",
        *("/usr/share/mrcd/alerts.yml", "/usr/share/mrcd/recording.yml", "/usr/share/mrcd/dashboard.json"),
    ):
        machine.run("test", "-s", path)
    assert "mrcd" in machine.run("id", "mrcd").stdout
    assert machine.run("dpkg-query", "-W", "-f=${Status}", "mrcd").stdout == "install ok installed"
    assert not machine.run("dpkg", "--verify", "mrcd").stdout
    assert machine.run("mrcctl", "version").stdout.startswith("mrcctl ")
    assert machine.show("ActiveState") == "inactive"  # there is no configuration yet
    machine.run("mrcctl", "config", "check", "/etc/mrcd/mrcd.toml.example", "--host", "gpu1")

    # The daemon runs, and an upgrade loses no packet.
    text = lab.state.cluster_file.read_text().replace('secret_file = "secrets"\n', "")
    subprocess.run([*machine.enter(), "sh", "-c", "cat >/etc/mrcd/mrcd.toml"], input=text, text=True, check=True)
    keys = "umask 077; cat >/etc/mrcd/secrets; chown mrcd /etc/mrcd/secrets"
    subprocess.run([*machine.enter(), "sh", "-c", keys], input=lab.state.secrets.read_text(), text=True, check=True)
    machine.run("systemctl", "enable", "--now", "mrcd")
    assert machine.show("ActiveState") == "active"
    wait_until("h1 knows all paths", lambda: {p["state"] for p in mrcctl(lab, "h1", "paths")} == {"GOOD"}, 15)
    machine.run("mrcctl", "deny", "--peer", "h1", "--ev", "0")
    pid, ping = machine.main_pid(), ["ping", "-i0.005", "-q", "10.99.0.1"]
    pinging = lab.popen("h1", ping, stdout=subprocess.PIPE, text=True)
    install(machine, package)
    wait_until("mrcd is another", lambda: machine.main_pid() not in (0, pid))
    pinging.send_signal(signal.SIGINT)
    sent, received = re.findall(r"(\d+) packets transmitted, (\d+) received", pinging.communicate(timeout=120)[0])[0]
    assert int(sent) - int(received) <= 1  # the last may be on its way
    assert "ev:h1:0" in machine.run("mrcctl", "denials").stdout or "h1" in machine.run("mrcctl", "denials").stdout

    # Removed, while it runs and after it has been stopped: no program forwards, all traffic takes the kernel's routes,
    # and the administrator's files stay.
    removed(machine)
    install(machine, package)
    machine.run("systemctl", "start", "mrcd")
    machine.run("mrcctl", "attach")
    wait_until("h0 sprays", lambda: "dev mrc0" in machine.run("ip", "route", "get", "10.99.0.2").stdout)
    machine.run("systemctl", "stop", "mrcd")
    machine.run("ping", "-c1", "-W1", "10.99.0.2")
    removed(machine)
    left = machine.changed() - before
    users = {f"etc/{f}" for f in ("passwd", "group", "shadow", "gshadow", ".pwd.lock")}
    users |= {f"{f}-" for f in users}
    kept = {"etc/mrcd/mrcd.toml", "etc/mrcd/secrets", "var/lib/mrcd/denials.json", "var/lib/mrcd/events.jsonl"}
    assert left - users == kept, left

    # Purged: only the user is left, as Debian's policy says, because files may belong to it.
    machine.run("dpkg", "--purge", "mrcd")
    assert machine.changed() - before - users == set()
    assert machine.run("dpkg-query", "-W", "mrcd", check=False).returncode != 0
