# SPDX-License-Identifier: BSD-2-Clause
"""Starts a real systemd-networkd in a host, with and without the files that the package gives it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.cluster.api import Lab
from tests.lab.conftest import TWO_HOSTS, a_lab, all_good, mrcctl, wait_until

DEPLOY = Path(__file__).parents[2] / "scripts/deploy"
NETWORKD = Path("/usr/lib/systemd/systemd-networkd")
PLANES = "[Match]\nName=p*\n\n[Network]\nIPv6AcceptRA=no\n"
KEPT = PLANES + "KeepConfiguration=static\n"

pytestmark = pytest.mark.skipif(not NETWORKD.exists(), reason="this machine has no systemd-networkd")

# In a mount namespace of its own: its files must not be this machine's. With a read-only /sys it waits for no udev.
_START = """
mount -o remount,bind,ro /sys
mount -t tmpfs none /run/systemd
mkdir -p /run/dbus
mount -t tmpfs none /run/dbus
mkdir /run/systemd/network /run/systemd/networkd.conf.d
cp "$1"/*.network /run/systemd/network
cp "$1"/*.conf /run/systemd/networkd.conf.d
dbus-daemon --system --nofork & bus=$!
trap 'kill $bus' EXIT
"$2" & networkd=$!
trap 'kill $networkd $bus' TERM
wait $networkd
"""
ADDRESS = "fd77::1"


@pytest.fixture
def two() -> Iterator[Lab]:
    with a_lab("networkd", **TWO_HOSTS) as lab:
        yield lab


@pytest.mark.parametrize("is_told", [True, False], ids=["with the files", "without"])
def test_networkd_leaves_addresses_and_routes_alone_if_it_is_told_so(two: Lab, tmp_path: Path, is_told: bool) -> None:
    files = tmp_path / "files"
    files.mkdir()
    planes = files / "20-planes.network"
    planes.write_text(KEPT if is_told else PLANES)
    (files / "mrcd.conf").write_text((DEPLOY / "networkd.conf").read_text() if is_told else "")
    if is_told:
        (files / "10-mrcd.network").write_text((DEPLOY / "mrc0.network").read_text())
    log = tmp_path / "changes"
    with log.open("w") as changes:
        monitor = two.popen("h0", ["ip", "-6", "monitor", "route", "address"], stdout=changes)
        words = ["unshare", "-m", "sh", "-ec", _START, "sh", str(files), str(NETWORKD)]
        networkd = two.popen("h0", words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until("networkd has set up the plane NICs", lambda: _configured(two, networkd.pid))
            # It sets them up anew, now that it knows all routes: as at a start with udev.
            file = Path(f"/proc/{networkd.pid}/root/run/systemd/network", planes.name)
            file.write_text(f"{planes.read_text()}Address={ADDRESS}/128\n")
            two.exec("h0", ["nsenter", f"--target={networkd.pid}", "--mount", "networkctl", "reload"], check=True)
            wait_until("it has done so", lambda: ADDRESS in log.read_text())
        finally:
            for process in (networkd, monitor):
                process.terminate()
                process.wait(120)
    deleted = [line for line in log.read_text().splitlines() if line.startswith("Deleted") and "proto 77" in line]
    assert bool(deleted) is not is_told, log.read_text()
    wait_until("all EVs are GOOD", lambda: all_good(two))
    two.exec("h0", ["ping", "-c4", "-i0.01", "-W1", "10.99.0.2"], check=True)


def _configured(lab: Lab, pid: int) -> bool:
    """Returns whether networkd says so of all plane NICs."""
    links = Path(f"/proc/{pid}/root/run/systemd/netif/links")
    numbers = [plane["ifindex"] for plane in mrcctl(lab, "h0", "status")["planes"]]
    try:
        return all("ADMIN_STATE=configured\n" in (links / str(n)).read_text() for n in numbers)
    except FileNotFoundError:
        return False
