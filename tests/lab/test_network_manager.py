# SPDX-License-Identifier: BSD-2-Clause
"""Starts a real NetworkManager in a host, with and without the files that keep it from mrcd's interfaces."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.cluster.api import Lab
from tests.lab.conftest import TWO_HOSTS, a_lab, all_good, wait_until

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / "build/network-manager"  # by `scripts/set-up --network-manager`
TREE = next((tree for tree in (UNPACKED, Path("/")) if (tree / "usr/sbin/NetworkManager").exists()), None)
INTERFACES = ("mrc0", "pmrc0", "tmrc0", "tpmrc0", "p0", "p1")
# NetworkManager replaces what is on an interface when it activates a profile of it, as at boot.
PROFILE = """
[connection]
id=plane0
type=ethernet
interface-name=p0
autoconnect=false
[ipv4]
method=disabled
[ipv6]
method=link-local
"""
PLANES = "[keyfile]\nunmanaged-devices+=interface-name:p0;interface-name:p1\n"  # as docs/install.md says

pytestmark = pytest.mark.skipif(TREE is None, reason="there is no NetworkManager: `scripts/set-up --network-manager`")

# In a mount namespace of its own: its files must not be this machine's. With a read-only /sys it waits for no udev.
_START = """
mount -o remount,bind,ro /sys
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
mkdir -p /run/dbus /run/NetworkManager /run/none /var/lib/NetworkManager
dbus-daemon --session --nofork --address=unix:path=/run/dbus/system_bus_socket & bus=$!
trap 'kill $bus' EXIT
"$2" --no-daemon --config="$1/main" --config-dir=/run/none --system-config-dir="$1/conf.d" --intern-config=/run/none/x \
    --plugins=keyfile & manager=$!
trap 'kill $manager $bus' TERM
wait $manager
"""
_LIBRARIES = "LD_LIBRARY_PATH=" + ":".join(map(str, (TREE or ROOT).glob("usr/lib/*-linux-gnu")))


@pytest.fixture
def two() -> Iterator[Lab]:
    with a_lab("manager", **TWO_HOSTS) as lab:
        yield lab


@pytest.mark.parametrize("is_told", [True, False], ids=["with the files", "without"])
def test_network_manager_leaves_addresses_and_routes_alone_if_it_is_told_so(
    two: Lab, tmp_path: Path, is_told: bool
) -> None:
    assert TREE is not None
    files = {"main": f"[keyfile]\npath={tmp_path}/profiles\n", "profiles/plane0.nmconnection": PROFILE}
    if is_told:
        files["conf.d/mrcd.conf"] = (ROOT / "scripts/deploy/network-manager.conf").read_text()
        files["conf.d/planes.conf"] = PLANES
    for name in ("profiles", "conf.d"):
        (tmp_path / name).mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    log = tmp_path / "changes"
    with log.open("w") as changes, (tmp_path / "log").open("w") as said:
        monitor = two.popen("h0", ["ip", "monitor", "route", "address"], stdout=changes)
        start = ["unshare", "-m", "env", _LIBRARIES, "sh", "-ec", _START, "sh", str(tmp_path)]
        manager = two.popen("h0", [*start, f"{TREE}/usr/sbin/NetworkManager"], stdout=said, stderr=said)

        def nmcli(*words: str) -> "subprocess.CompletedProcess[str]":
            argv = ["nsenter", f"--target={manager.pid}", "--mount", "env", _LIBRARIES, str(TREE / "usr/bin/nmcli")]
            return two.exec("h0", [*argv, *words])

        def states() -> dict[str, str]:
            lines = nmcli("-t", "-f", "DEVICE,STATE", "device").stdout.splitlines()
            return {name: state for name, _, state in (line.partition(":") for line in lines) if name in INTERFACES}

        def has_looked() -> bool:
            found = states()
            return len(found) == len(INTERFACES) and (not is_told or set(found.values()) == {"unmanaged"})

        try:
            wait_until("NetworkManager has looked at all interfaces", has_looked)
            activated = nmcli("connection", "up", "plane0")
            assert (activated.returncode != 0) is is_told, activated.stdout + activated.stderr
            if not is_told:
                wait_until("routes of mrcd have gone", lambda: _deleted(log, "proto 77"))
                wait_until("the plane's address has gone", lambda: _deleted(log, "p0    inet6 fd10::1/128"))
                wait_until("mrcd has made it again", lambda: "fd10::1" in two.exec("h0", ["ip", "addr"]).stdout)
        finally:
            for process in (manager, monitor):
                process.terminate()
                process.wait(60)
    if is_told:
        assert "Deleted" not in log.read_text()
    wait_until("all EVs are GOOD", lambda: all_good(two))
    two.exec("h0", ["ping", "-c4", "-i0.01", "-W1", "10.99.0.2"], check=True)


def _deleted(log: Path, words: str) -> bool:
    return any(words in line for line in log.read_text().splitlines() if line.startswith("Deleted"))
