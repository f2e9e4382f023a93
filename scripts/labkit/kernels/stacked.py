# SPDX-License-Identifier: BSD-2-Clause
"""Checks devices that are stacked on mrcd's: a pod's ipvlan over mrc0, and a plane NIC in a VRF.

Kernels without modules have neither.
"""

import os
import time
from pathlib import Path

from labkit.bench.frame import NewEvents, evs_of
from labkit.cluster import observe
from labkit.cluster.api import Lab
from labkit.kernels.labs import (
    EVERY_DEVICE,
    LEAST,
    NO_DEVICE,
    PATIENCE_S,
    SMALLEST,
    address,
    dropped,
    iperf3,
    small_lab,
)
from labkit.kernels.programs import Say
from labkit.traffic.candidates import SOURCE

_POD, _POD_ADDRESS = "mrcdpod", "10.100.0.10"  # within the prefixes of SOURCE
_PINGS = 20
TARGET = "h1"  # of the smallest lab
_WATCHED_S = 5.0  # longer than a diagnosis takes


def stacked(say: Say, _: Path) -> None:
    """Runs both in one lab: packets arrive, none is dropped, and all EVs are GOOD in the end."""
    with small_lab(SMALLEST) as it:
        observe.wait_until_good(it, it.fabric.hosts, PATIENCE_S)
        _ipvlan(say, it)
        _vrf(say, it)
        drops = dropped(it)
        say("stacked", "no drops", not drops, f"drops {drops or 'none'}")


def _ipvlan(say: Say, it: Lab) -> None:
    """Makes a pod of SOURCE with an ipvlan in mode l3, by the commands of docs/containers.md."""
    it.exec(SOURCE, ["ip", "netns", "add", _POD], check=True)
    try:
        made = ["ip", "link", "add", "eth0", "link", "mrc0", "netns", _POD, "type", "ipvlan", "mode", "l3"]
        if not _made(say, it, "ipvlan", made):
            return
        for words in (f"addr add {_POD_ADDRESS}/32 dev eth0", "link set eth0 up", "route add default dev eth0"):
            it.exec(SOURCE, ["ip", "-n", _POD, *words.split()], check=True)
        inside = ["ip", "netns", "exec", _POD]
        _ping(say, it, SOURCE, address(TARGET, 4), "a pod's ipvlan sends", inside)
        _ping(say, it, TARGET, _POD_ADDRESS, "a pod's ipvlan receives")
        goodput, words = iperf3(it, TARGET, 4, 2, ["-B", _POD_ADDRESS], inside=inside)
        say("stacked", "TCP from a pod's ipvlan", goodput > LEAST, words, bits_per_second=goodput)
    finally:
        it.exec(SOURCE, ["ip", "netns", "del", _POD], check=True)


def _vrf(say: Say, it: Lab) -> None:
    """Puts a plane NIC of SOURCE into a VRF, and takes it out again.

    The kernel restarts the NIC each time, so its EVs are left for a moment. Traffic must not notice.
    """
    nic = observe.client(it, SOURCE).get("/v1/status")["planes"][0]["interface"]
    if not _made(say, it, "VRF", ["ip", "link", "add", "vrf7", "type", "vrf", "table", "77"]):
        return
    it.exec(SOURCE, ["ip", "link", "set", "vrf7", "up"], check=True)
    for how in (["master", "vrf7"], ["nomaster"]):
        events = NewEvents(it, it.fabric.hosts)
        it.exec(SOURCE, ["ip", "link", "set", nic, *how], check=True)
        when = f"{nic} {' '.join(how)}"
        _ping(say, it, SOURCE, address(TARGET, 4), when)
        observe.wait_until_good(it, it.fabric.hosts, PATIENCE_S)
        time.sleep(_WATCHED_S)
        left = evs_of(events.read(to="ASSUMED_BAD"))
        faults = observe.client(it, SOURCE).get("/v1/status")["diagnosis"]
        words = f"{left} EVs were left meanwhile; {[f['cause'] for f in faults] or 'no fault'}"
        say("stacked", f"{when}: nothing stays wrong", not faults, words)


def _made(say: Say, it: Lab, what: str, argv: list[str]) -> bool:
    """Makes a device. Returns False, and says so, if the kernel has none of its kind."""
    done = it.exec(SOURCE, argv)
    if done.returncode and any(why in done.stderr for why in NO_DEVICE):
        say("stacked", what, EVERY_DEVICE not in os.environ, "this kernel has no such device", cell="not had")
    elif done.returncode:
        say("stacked", what, False, done.stderr.strip())
    return not done.returncode


def _ping(say: Say, it: Lab, host: str, to: str, what: str, inside: list[str] | None = None) -> None:
    argv = [*(inside or []), "ping", "-q", f"-c{_PINGS}", "-i0.05", "-W5", to]
    done = it.exec(host, argv, timeout=PATIENCE_S)
    words = next((line for line in done.stdout.splitlines() if "received" in line), done.stderr.strip())
    say("stacked", what, " 0% packet loss" in words, words)
