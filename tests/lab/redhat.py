# SPDX-License-Identifier: BSD-2-Clause
"""Tests the RPM on a bare system: install, a sprayed flow from systemd's start on, upgrade, removal: `make test-rpm`.

RHEL is not to be had here. The system is the smallest Debian 12, which has Python 3.11, libbpf and systemd, as RHEL 9
can have them, and rpm. It installs without dependencies: Debian's packages are no RPMs.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.conftest import mrcctl, wait_until
from tests.lab.debian import ROOT, Root, configure, debian, upgraded_under_traffic
from tests.lab.machine import half_lab, need_systemd


@pytest.fixture
def package() -> Path:
    """Returns the newest RPM in build/."""
    found = sorted((ROOT / "build").glob(f"mrcd-*.{os.uname().machine}.rpm"), key=lambda p: p.stat().st_mtime)
    if not found:
        pytest.skip("there is no RPM in build/: `make rpm` makes it")
    return found[-1]


def test_the_rpm_installs_sprays_and_goes(
    package: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    need_systemd()
    with half_lab("rpm") as lab, Root(lab, "h0", debian("bookworm"), tmp_path, {}) as machine:
        begun = time.monotonic()
        subprocess.run([*machine.enter(), "sh", "-c", "cat >/tmp/mrcd.rpm"], input=package.read_bytes(), check=True)
        machine.run("rpm", "--install", "--nodeps", "/tmp/mrcd.rpm")
        assert "mrcd" in machine.run("id", "mrcd").stdout
        assert machine.run("mrcctl", "version").stdout.startswith("mrcctl ")
        configure(machine)
        machine.run("systemctl", "enable", "--now", "mrcd")
        wait_until("h1 knows all paths", lambda: {p["state"] for p in mrcctl(lab, "h1", "paths")} == {"GOOD"})
        machine.run("ping", "-c3", "-W1", "10.99.0.2")
        assert "dev mrc0" in machine.run("ip", "route", "get", "10.99.0.2").stdout
        measured = [f"a sprayed flow {time.monotonic() - begun:.1f} s after rpm began"]
        again = ("rpm", "--upgrade", "--oldpackage", "--replacepkgs", "--nodeps", "/tmp/mrcd.rpm")
        measured.append(upgraded_under_traffic(machine, lambda: machine.run(*again)))
        record_property("measured", measured)
        examined = machine.run("mrcctl", "preflight", check=False)
        assert examined.returncode == 0, examined.stdout + examined.stderr
        machine.run("rpm", "--erase", "--nodeps", "mrcd")
        assert not machine.run("sh", "-c", "ls -d /usr/lib/mrcd /usr/bin/mrcctl /sys/fs/bpf/mrcd", check=False).stdout
        assert "encap seg6" in machine.run("ip", "route", "get", "10.99.0.2").stdout
