# SPDX-License-Identifier: BSD-2-Clause
"""Lists the faults of part `alerts`: those of part `diagnosis`, and others for the alerts that those do not fire.

Alerts are written as in labkit/monitoring/watched_lab.py, each with the commands that its text must name.
"""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from labkit.bench.alerts.activities import FlappingLink, ForeignPackets
from labkit.bench.diagnosis import cases as diagnosis
from labkit.bench.diagnosis.cases import HOSTS, Change, both, fail, heal, nics, start_dead
from labkit.cluster.api import Lab

LAB = {**diagnosis.LAB, "health": {"hold_down_max_ms": 6000}}
"""Flaps are forgotten sooner than by default, as the durations in the rules are shorter, too."""

Alerts = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Case:
    """A fault, and the alerts that it must fire."""

    name: str
    break_: Change
    mend: Change
    alerts: Alerts


def _fault(*targets: str) -> Alerts:
    return {f"MrcFault critical target={t}": ("mrcctl status", f"mrcctl drain {t}") for t in targets}


def _impaired(cause: str, target: str) -> Alerts:
    return {f"MrcImpaired warning cause={cause} target={target}": ("mrcctl status", f"mrcctl drain {target}")}


def _unreachable(*peers: str) -> Alerts:
    commands = "systemctl status mrcd", "mrcctl doctor"
    return {f"MrcPeerUnreachable critical peer={p}": (f"mrcctl probe {p}", *commands) for p in peers}


def _kill(*hosts: str) -> Change:
    """Kills daemons. The programs in the kernel go on."""

    def kill(lab: Lab) -> None:
        for host in hosts:
            pid = lab.daemon_pid(host)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    return kill


_START = both(start_dead, heal)


_FOREIGN = ForeignPackets()
_FLAPPING = FlappingLink("link:2:0:1", HOSTS)
_OTHER_FILE: Alerts = {
    "MrcHostsDiffer critical cause=config_differs target=peer:h2": ("mrcctl status", "mrcctl config show"),
}
_OF_DIAGNOSIS: Mapping[str, Alerts] = {
    "T1 dead": _fault("t1:1:2"),
    "T0 dead": _fault("t0:1:1"),
    "T0–T1 link dead": _fault("link:1:1:2"),
    "link loses 20 %": _impaired("loss", "link:1:1:2"),
    "link loses 1 % one way": _impaired("loss", "link:1:1:2"),
    "own NIC down": _fault("nic:h0:1"),
    "peer's NIC without carrier": _fault("nic:h2:1"),
    "cables of a host swapped": _fault("nic:h0:1", "nic:h0:2"),
    "cables of two hosts swapped": _fault("nic:h0:1", "nic:h2:1"),
    "peer detached": {"MrcDetached info instance=h2": ("mrcctl attach",)},
    "plane 5 ms slower": _impaired("slow_plane", "plane:2"),
    "wrong key on a host": {
        "MrcHostsDiffer critical cause=wrong_key target=peer:h2": ("mrcctl status", "mrcctl keys status"),
    },
    "wrong file on a host: fewer EVs": _OTHER_FILE,
    "wrong file on a host: more T1s": _OTHER_FILE,
}
_SEVERAL = ("nic:h1:0", "nic:h1:1", "t1:2:0", "t1:2:1")

CASES = (
    *(Case(c.name, c.break_, c.mend, _OF_DIAGNOSIS[c.name]) for c in diagnosis.CASES if c.name in _OF_DIAGNOSIS),
    Case("peer dead", both(_kill("h2"), fail(*nics("h2"))), _START, _unreachable("h2")),
    Case("peer cut off, but scraped", fail(*nics("h2")), heal, _unreachable("h2")),
    Case(
        "NIC dead, no other host under its T0s", both(_kill("h5"), fail(*nics("h5"), "nic:h4:1")), _START,
        {**_unreachable("h5"), "MrcFaultUnclear critical plane=1": ("mrcctl status",)},
    ),
    Case(
        "one path left to a host", fail(*_SEVERAL), heal,
        {
            **_fault(*_SEVERAL),
            "MrcEvsBelowFloor critical": ("mrcctl status", "mrcctl paths --peer PEER --state ASSUMED_BAD"),
        },
    ),
    Case(
        "daemon dead", _kill("h1"), _START,
        {
            "MrcdDownWhileForwarding critical host=h1 instance=h1": (
                "systemctl status mrcd", "journalctl -u mrcd", "mrcctl status",
            ),
        },
    ),
    Case(
        "all daemons dead", _kill(*HOSTS), _START,
        {f"MrcdDown warning instance={host}": ("systemctl status mrcd",) for host in HOSTS},
    ),
    Case(
        "packets of an unknown source", _FOREIGN.begin, _FOREIGN.end,
        {"MrcDrops warning instance=h0 reason=foreign_source": ("mrcctl doctor",)},
    ),
    Case(
        "link fails and recovers, again and again", _FLAPPING.begin, _FLAPPING.end,
        {"MrcEvsFlapping warning": ("mrcctl events", "mrcctl drain")},
    ),
)  # fmt: skip
