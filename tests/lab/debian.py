# SPDX-License-Identifier: BSD-2-Clause
"""Tests the Debian package on machines of its own: install, start, upgrade, remove, purge. `make test-deb` runs this.

A machine's root is a directory behind a temporary overlay: this machine's own root, or the smallest system of a Debian
with what the package depends on (build/roots/). systemd is its PID 1, and only the lab is in its network, so it
downloads nothing. Only the upgrade from one Debian to the next does. It is not part of `make test`: building the
package, in a system of its own, takes a minute, and the systems two.
"""

import hashlib
import importlib.util
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.bench import lifecycle
from labkit.cluster.api import Lab
from labkit.traffic import candidates
from labkit.traffic.stream import Stream
from tests.lab.conftest import mrcctl, wait_until
from tests.lab.machine import TARGETS, Machine, half_lab, need_systemd
from tests.lab.test_ansible import played

ROOT = Path(__file__).parents[2]
# In a mount namespace: the root $2 behind an overlay in $1, where the script goes on.
OVERLAY = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
cd "$1/root"
"""
BOOT = f"""{OVERLAY}
rm -rf lib/systemd/system etc/systemd/system
mkdir -p lib/systemd/system etc/systemd/system
rm -f etc/init.d/*
for t in $4; do cp "$2/usr/lib/systemd/system/$t.target" lib/systemd/system/; done
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


DEBIANS = ("bookworm", "trixie")
NO_ARCHIVE = 99
# In a mount namespace: installs the package in the first Debian, and upgrades that to the second.
UPGRADE = f"""{OVERLAY}
mount -t proc proc proc
mount --rbind /dev dev
cp "$3" tmp/mrcd.deb
cp /etc/resolv.conf etc/
for f in /etc/apt/apt.conf /etc/apt/apt.conf.d/*proxy*; do [ ! -e "$f" ] || cp "$f" etc/apt/apt.conf.d/; done
in_root() {{ chroot . env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }}
in_root dpkg --install /tmp/mrcd.deb
in_root mrcctl version
sed -i "s/\\b$4\\b/$5/" etc/apt/sources.list
in_root apt-get -q -o APT::Update::Error-Mode=any update || exit {NO_ARCHIVE}
in_root apt-get -q -y dist-upgrade
in_root mrcctl version
in_root mrcd --check --config /etc/mrcd/mrcd.toml.example --host gpu1
in_root dpkg-query -W '-f=${{Status}}\n' mrcd
in_root /usr/lib/mrcd/bin/python3 --version
"""


class Root(Machine):
    """A machine with a whole file system of its own, over that of the directory `tree`."""

    boot = BOOT

    def _files(self) -> None:
        (self._directory / "root").mkdir()

    def _arguments(self) -> list[str]:
        return [str(self._directory / "root"), str(self._tree), self._host, " ".join(TARGETS)]

    def changed(self) -> set[str]:
        """Returns the files that differ from those below the overlay, or are gone (whiteouts), without caches."""
        found = self.run("find", "/srv/upper", "!", "-type", "d", "-printf", "%P\n").stdout.split()
        return {f for f in found if not f.startswith(("var/cache/", "var/log/", "var/lib/dpkg/", "var/lib/systemd/"))}


@pytest.fixture(scope="module")
def package() -> Path:
    """Returns the newest package in build/."""
    architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout
    found = sorted((ROOT / "build").glob(f"mrcd_*_{architecture.strip()}.deb"), key=lambda p: p.stat().st_mtime)
    if not found:
        pytest.skip("there is no package in build/: `make deb` makes it, and `make test-deb` all of this")
    return found[-1]


@pytest.fixture
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Root]:
    """Returns h0 of a lab, booted from this root or that of a Debian; h1 has a daemon of the lab."""
    need_systemd()
    root = debian(request.param) if hasattr(request, "param") else Path("/")
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        pytest.skip("the kernel has no overlay file system for a root that is thrown away")
    with half_lab("debian") as lab, Root(lab, "h0", root, tmp_path, {}) as made:
        yield made


def debian(release: str) -> Path:
    """Returns the root of a Debian."""
    root = ROOT / "build/roots" / release
    if not root.exists():
        pytest.skip(f"there is no {root}: `make test-deb` makes it")
    return root


def install(machine: Root, package: Path) -> None:
    text = package.read_bytes()
    done = subprocess.run([*machine.enter(), "sh", "-c", "cat >/tmp/mrcd.deb"], input=text, check=True)
    assert done.returncode == 0
    machine.run("dpkg", "--install", "/tmp/mrcd.deb")


def configure(machine: Root) -> None:
    """Writes the lab's cluster file and secrets."""
    text, secrets = cluster_file(machine.lab), machine.lab.state.secrets.read_text()
    subprocess.run([*machine.enter(), "sh", "-c", "cat >/etc/mrcd/mrcd.toml"], input=text, text=True, check=True)
    keys = "umask 077; cat >/etc/mrcd/secrets; chown mrcd /etc/mrcd/secrets"
    subprocess.run([*machine.enter(), "sh", "-c", keys], input=secrets, text=True, check=True)


def cluster_file(lab: Lab) -> str:
    """Returns the lab's cluster file, for a machine that has its secrets in /etc/mrcd/secrets."""
    return lab.state.cluster_file.read_text().replace('secret_file = "secrets"\n', "")


def removed(machine: Root) -> None:
    machine.run("dpkg", "--remove", "mrcd")
    assert machine.run("systemctl", "is-active", "mrcd", check=False).stdout.strip() == "inactive"
    assert not machine.run("sh", "-c", "ls -d /sys/fs/bpf/mrcd /run/mrcd", check=False).stdout
    assert "mrc_" not in machine.run("bpftool", "net").stdout
    assert "encap seg6" in machine.run("ip", "route", "get", "10.99.0.2").stdout
    machine.run("ping", "-c3", "-W1", "10.99.0.2")


def upgraded_under_traffic(machine: Root, install: Callable[[], object]) -> str:
    """Installs a package again while the host sends 50,000 packets/s. Returns what was measured."""
    lab, pid = machine.lab, machine.main_pid()
    with Stream(lab, candidates.overlay(lab, 4), rate=lifecycle.RATE, burst=lifecycle.BURST) as stream:
        wait_until("the flow runs", lambda: stream.mark() > lifecycle.RATE)
        install()
        wait_until("mrcd is another", lambda: machine.main_pid() not in (0, pid))
        wait_until("h1 knows all paths", lambda: {p["state"] for p in mrcctl(lab, "h1", "paths")} == {"GOOD"}, 15)
        result = stream.finish()
    assert (result.lost(), result.twice, result.socket_drops) == (0, 0, 0)
    return f"{result.sent} packets at {result.packets_per_s:,.0f}/s over an upgrade: 0 lost"


def test_the_package_installs_upgrades_removes_and_purges(
    machine: Root, package: Path, record_property: Callable[[str, object], None]
) -> None:
    lab = machine.lab
    before = machine.changed()
    assert machine.run("id", "mrcd", check=False).returncode != 0
    install(machine, package)

    # Installed files.
    for path in (
        *("/usr/bin/mrcd", "/usr/bin/mrcctl", "/usr/lib/systemd/system/mrcd.service", "/usr/lib/sysusers.d/mrcd.conf"),
        "/usr/lib/NetworkManager/conf.d/mrcd.conf",
        *("/usr/share/man/man8/mrcd.8.gz", "/usr/share/man/man1/mrcctl.1.gz", "/usr/share/man/man5/mrcd.toml.5.gz"),
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
    configure(machine)
    machine.run("systemctl", "enable", "--now", "mrcd")
    assert machine.show("ActiveState") == "active"
    wait_until("h1 knows all paths", lambda: {p["state"] for p in mrcctl(lab, "h1", "paths")} == {"GOOD"}, 15)
    machine.run("mrcctl", "deny", "--peer", "h1", "--ev", "0")
    record_property("measured", [upgraded_under_traffic(machine, lambda: install(machine, package))])
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
    kept = {
        "etc/mrcd/mrcd.toml",
        "etc/mrcd/mrcd.toml.example",
        "etc/mrcd/secrets",
        "var/lib/mrcd/denials.json",
        "var/lib/mrcd/events.jsonl",
    }
    assert left - users == kept, left

    # Purged: only the user is left, as Debian's policy says, because files may belong to it.
    machine.run("dpkg", "--purge", "mrcd")
    assert machine.changed() - before - users == set()
    assert machine.run("dpkg-query", "-W", "mrcd", check=False).returncode != 0


@pytest.mark.parametrize("machine", DEBIANS, indirect=True)
def test_a_bare_debian_sprays(
    machine: Root, package: Path, record_property: Callable[[str, object], None], request: pytest.FixtureRequest
) -> None:
    began = time.monotonic()
    install(machine, package)
    configure(machine)
    machine.run("systemctl", "enable", "--now", "mrcd")
    wait_until("h0 sprays", lambda: "dev mrc0" in machine.run("ip", "route", "get", "10.99.0.2").stdout)
    wait_until("all paths are GOOD", lambda: {p["state"] for p in paths(machine)} == {"GOOD"})
    before = {p["ev"]: p["tx_packets"] for p in paths(machine)}

    def is_on_every_path() -> bool:
        machine.run("ping", "-q", f"-c{len(before)}", "-i0.005", "10.99.0.2")
        return all(p["tx_packets"] > before[p["ev"]] for p in paths(machine))

    wait_until("packets have taken every path", is_on_every_path)
    took = f"{request.node.callspec.id}: {time.monotonic() - began:.1f} s from dpkg to a flow on every path"
    record_property("measured", [took])


@pytest.mark.skipif(importlib.util.find_spec("ansible") is None, reason="no ansible-core: `scripts/set-up --ansible`")
@pytest.mark.parametrize("machine", DEBIANS[:1], indirect=True)
def test_ansible_installs_and_upgrades_a_host(
    machine: Root, package: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    # Ansible's connection by SSH, with another program in the place of ssh: its last word is the command for the host.
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\nfor command; do :; done\nexec {" ".join(machine.enter())} sh -c "$command"\n')
    ssh.chmod(0o755)
    file = tmp_path / "mrcd.toml"
    file.write_text(cluster_file(machine.lab))
    inventory = tmp_path / "inventory.ini"
    inventory.write_text(f"""[rack1]
h0 ansible_user=root ansible_ssh_executable={ssh} ansible_ssh_transfer_method=piped
[all:vars]
ansible_python_interpreter=/usr/bin/python3
mrcd_file={file}
mrcd_secrets={machine.lab.state.secrets}
""")
    kept = "/var/cache/mrcd/installed.deb"

    def play(package: Path, watch_s: int) -> None:
        done = played(inventory, mrcd_package=package, mrcd_watch_seconds=watch_s)
        assert done.returncode == 0, done.stdout + done.stderr

    play(package, 0)
    wait_until("h1 knows all paths", lambda: {p["state"] for p in mrcctl(machine.lab, "h1", "paths")} == {"GOOD"}, 60)
    newer = another_version(package, tmp_path)
    machine.run("mv", kept, "/tmp")
    done, pid = played(inventory, mrcd_package=newer), machine.main_pid()
    assert "h0 has mrcd, but not its package, so it could not go back" in done.stdout + done.stderr
    machine.run("mv", "/tmp/installed.deb", kept)
    assert machine.main_pid() == pid
    measured = upgraded_under_traffic(machine, lambda: play(newer, 22))
    assert machine.run("dpkg-query", "-W", "-f=${Version}", "mrcd").stdout.endswith("+test")
    assert hashlib.sha256(newer.read_bytes()).hexdigest() in machine.run("sha256sum", kept).stdout
    record_property("measured", [f"by Ansible: {measured}"])


def another_version(package: Path, directory: Path) -> Path:
    """Returns the same package with a higher version."""
    tree = directory / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub("^(Version: .*)", r"\1+test", control.read_text(), flags=re.MULTILINE))
    made = directory / "newer.deb"
    subprocess.run(["dpkg-deb", "-Znone", "--build", tree, made], check=True, capture_output=True)
    return made


def paths(machine: Root) -> list[dict[str, Any]]:
    """Returns the paths to h1."""
    return list(json.loads(machine.run("mrcctl", "paths", "--json").stdout)["paths"])


def test_an_upgrade_of_debian_keeps_the_package(tmp_path: Path, package: Path) -> None:
    before, after = DEBIANS
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", UPGRADE, "upgrade", tmp_path, debian(before), package, before, after],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    if done.returncode == NO_ARCHIVE:
        pytest.skip("apt cannot reach Debian's archive")
    assert done.returncode == 0, done.stdout + done.stderr
    status, python = done.stdout.splitlines()[-2:]
    assert (status, python.rpartition(".")[0]) == ("install ok installed", "Python 3.13")
