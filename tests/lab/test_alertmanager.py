# SPDX-License-Identifier: BSD-2-Clause
"""Tests that real faults of a lab fire the right alerts, and no other, in a real Prometheus and Alertmanager.

The rules are those of scripts/deploy/prometheus, with shorter durations. An alert is written here as its name, its
severity, and its other labels: `MrcFault critical target=t1:1:2`; the label `instance` has the host's name.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from labkit.bench.diagnosis.part import RATE
from labkit.cluster import processes
from labkit.cluster.api import Lab
from labkit.traffic.mesh import Mesh
from mrcd.auth import secrets_file
from tests.lab.alertmanager import PROGRAM, Alertmanager, Notice, write_faster_rules
from tests.lab.conftest import a_lab, mrcctl, out_of_use, wait_until
from tests.lab.prometheus import Prometheus

PLANES = 3
HOSTS = [f"h{i}" for i in range(5)]  # h4 is alone under its T0s
LAB: dict[str, Any] = {
    "hosts": len(HOSTS), "hosts_per_t0": 2, "planes": PLANES, "t1": 3,
    "health": {"hold_down_max_ms": 2000},  # a flap is forgotten after 2 s, as other times are shorter, too
}  # fmt: skip
GREY = "link:2:0:1"
GREY_ALERT = f"MrcImpaired warning cause=loss target={GREY}"
# A peer is silent after 3 s; until then other alerts may be pending.
LEAST_FOR_S, LEAST_WINDOW_S = 4.0, 1.5

Change = Callable[[Lab], object]


@dataclass(frozen=True)
class Site:
    """A lab with traffic, whose daemons Prometheus scrapes, and whose alerts arrive in the inbox of Alertmanager."""

    lab: Lab
    prometheus: Prometheus
    alertmanager: Alertmanager

    def words(self, notice: Notice) -> str:
        """Returns an alert as it is written in this file."""
        labels = {k: v for k, v in notice.labels.items() if k != "job"}
        name, severity = labels.pop("alertname"), labels.pop("severity")
        if "instance" in labels:
            labels["instance"] = next(h for h in HOSTS if self.prometheus.instance(h) == labels["instance"])
        return " ".join([name, severity, *(f"{k}={v}" for k, v in sorted(labels.items()))])

    def firing(self) -> set[str]:
        """Returns the alerts of which Alertmanager has sent that they fire, and not yet that they are over."""
        return {self.words(notice) for notice in list(self.alertmanager.inbox.firing.values())}

    def pending(self) -> list[str]:
        """Returns the alerts that Prometheus may still fire."""
        alerts = self.prometheus.get("alerts")["alerts"]
        return [self.words(Notice(a["labels"], {})) for a in alerts if a["state"] == "pending"]

    def fired(self, since: int) -> list[str]:
        """Returns all alerts but the first `since`, sorted."""
        return sorted(self.words(notice) for notice in self.alertmanager.inbox.fired[since:])

    def wait_until_settled(self, expected: set[str], timeout_s: float) -> None:
        """Waits until the alerts fire, and no other one may fire soon."""

        def is_settled() -> bool:
            return expected <= self.firing() and not self.pending()

        try:
            wait_until("the alerts fire, and no others are pending", is_settled, timeout_s, 0.1)
        except pytest.fail.Exception as e:
            named = {h: [c["target"] for c in mrcctl(self.lab, h, "status")["diagnosis"]] for h in self.alive()}
            pytest.fail(f"{e.msg}: firing {self.firing()}, pending {self.pending()}, diagnoses {named}")

    def alive(self) -> list[str]:
        """Returns the hosts with a daemon."""
        return [h for h in HOSTS if self.lab.daemon_pid(h) is not None]

    def wait_until_well(self, known: set[str]) -> None:
        """Waits until only the alerts `known` are left."""
        wait_until("all EVs are in use again", lambda: not out_of_use(self.lab), 30, 0.2)
        wait_until("the alerts are over", lambda: self.firing() <= known and not self.pending(), 30, 0.1)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if shutil.which("prometheus") is None or shutil.which(PROGRAM) is None:
        pytest.skip("Prometheus or Alertmanager is not installed: `make set-up` installs both")
    rules = tmp_path_factory.mktemp("rules")
    write_faster_rules(rules, LEAST_FOR_S, LEAST_WINDOW_S)
    with (
        a_lab("alert", **LAB) as lab,
        Mesh(lab, RATE),
        Alertmanager(tmp_path_factory.mktemp("alertmanager")) as alertmanager,
        Prometheus(lab, HOSTS, tmp_path_factory.mktemp("prometheus"), rules, alertmanager.address) as prometheus,
    ):
        made = Site(lab, prometheus, alertmanager)
        query = f"count(mrc_build_info) == {len(HOSTS)} and sum(mrc_peer_reachable) == {len(HOSTS) * (len(HOSTS) - 1)}"
        wait_until("all is scraped", lambda: prometheus.query(query))
        made.wait_until_well(set())
        yield made


# ---- faults ----------------------------------------------------------------------------------


def _fail(*targets: str, **effect: object) -> Change:
    return lambda lab: [lab.fail(target, **effect) for target in targets]  # type: ignore[arg-type]


def _heal(lab: Lab) -> None:
    lab.heal()


def _run(host: str, *argv: str) -> Change:
    return lambda lab: lab.exec(host, argv, check=True)


def _all(*changes: Change) -> Change:
    return lambda lab: [change(lab) for change in changes]


def _kill(*hosts: str) -> Change:
    """Kills daemons. The programs in the kernel go on."""

    def kill(lab: Lab) -> None:
        for host in hosts:
            pid = lab.daemon_pid(host)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    return kill


def _start(lab: Lab) -> None:
    lab.heal()
    lab.up(**LAB)


def _use_other_secret(lab: Lab) -> None:
    """Starts the daemon of h2 with another secret under the same id."""
    right = secrets_file.read(lab.state.secrets)
    secrets_file.write(lab.state.secrets, [secrets_file.new(right[-1].key_id)])
    try:
        _restart_h2(lab)
    finally:
        secrets_file.write(lab.state.secrets, right)


def _restart_h2(lab: Lab) -> None:
    process = lab.state.daemon("h2")
    if process is not None:
        processes.end([process])
    lab.up(**LAB)


class Foreign:
    """Sends packets of an address that the cluster file gives to no host."""

    def __init__(self) -> None:
        self._ping: subprocess.Popen[bytes] | None = None

    def begin(self, lab: Lab) -> None:
        """Gives h0 the address, and pings from it."""
        lab.exec("h0", ["ip", "address", "add", "198.51.100.1/32", "dev", "lo"], check=True)
        argv = ["ping", "-q", "-i0.05", "-I198.51.100.1", "10.99.0.3"]
        self._ping = lab.popen("h0", argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self, lab: Lab) -> None:
        """Undoes it."""
        if self._ping is not None:
            self._ping.kill()
            self._ping.wait()
        lab.exec("h0", ["ip", "address", "del", "198.51.100.1/32", "dev", "lo"], check=True)


FOREIGN = Foreign()


@dataclass(frozen=True)
class Case:
    """A fault, and the alerts that it fires."""

    name: str
    break_: Change
    mend: Change
    alerts: tuple[str, ...]
    commands: tuple[str, ...]  # which the texts name


CASES = (
    Case(
        "T1 dead", _fail("t1:1:2"), _heal,
        ("MrcFault critical target=t1:1:2",), ("mrcctl status", "mrcctl drain t1:1:2"),
    ),
    Case(
        "link dead", _fail("link:0:1:0"), _heal,
        ("MrcFault critical target=link:0:1:0",), ("mrcctl status", "mrcctl drain link:0:1:0"),
    ),
    Case(
        "NIC down", _run("h0", "ip", "link", "set", "p0", "down"), _run("h0", "ip", "link", "set", "p0", "up"),
        ("MrcFault critical target=nic:h0:0",), ("mrcctl status", "mrcctl drain nic:h0:0"),
    ),
    Case(
        "NIC or T0 dead", _fail("nic:h4:1"), _heal,
        ("MrcFaultUnclear critical plane=1",), ("mrcctl status",),
    ),
    Case(
        "too few paths left", _fail("nic:h1:0", "nic:h1:1", "t1:2:0", "t1:2:1"), _heal,
        (
            "MrcEvsBelowFloor critical", "MrcFault critical target=nic:h1:0", "MrcFault critical target=nic:h1:1",
            "MrcFault critical target=t1:2:0", "MrcFault critical target=t1:2:1",
        ),
        ("mrcctl status", "mrcctl paths --peer PEER --state ASSUMED_BAD"),
    ),
    Case(
        "peer detached", _run("h3", "mrcctl", "detach"), _run("h3", "mrcctl", "attach"),
        ("MrcDetached info instance=h3",), ("mrcctl attach",),
    ),
    Case(
        "daemon dead", _kill("h1"), _start,
        ("MrcdDownWhileForwarding critical host=h1 instance=h1",), ("systemctl status mrcd", "journalctl -u mrcd"),
    ),
    Case(
        "host dead", _all(_kill("h3"), _fail(*(f"nic:h3:{plane}" for plane in range(PLANES)))), _start,
        ("MrcPeerUnreachable critical peer=h3",), ("mrcctl probe h3", "systemctl status mrcd"),
    ),
    Case(
        "wrong secret", _use_other_secret, _restart_h2,
        ("MrcHostsDiffer critical cause=wrong_key target=peer:h2",), ("mrcctl keys status",),
    ),
    Case(
        "packets of an unknown source", FOREIGN.begin, FOREIGN.end,
        ("MrcDrops warning instance=h0 reason=foreign_source",), ("mrcctl doctor",),
    ),
    Case(
        "all daemons dead", _kill(*HOSTS), _start,
        tuple(f"MrcdDown warning instance={host}" for host in HOSTS), ("systemctl status mrcd",),
    ),
)  # fmt: skip


def check(site: Site, case: Case, timeout_s: float = 30.0) -> None:
    """Makes a fault, waits for its alerts, and checks that no others have fired and that the texts help."""
    seen = len(site.alertmanager.inbox.fired)
    case.break_(site.lab)
    try:
        site.wait_until_settled(set(case.alerts), timeout_s)
        texts = [notice.text for notice in site.alertmanager.inbox.fired[seen:]]
        fired = site.fired(seen)
    finally:
        case.mend(site.lab)
    assert fired == sorted(case.alerts)
    assert not [text for text in texts if "no value" in text or "%!" in text]
    assert {c for c in case.commands if not any(f"`{c}`" in text for text in texts)} == set(), texts
    subjects = re.findall(r"(?:target|peer|host|plane)=(?:peer:)?(\S+)", " ".join(case.alerts))
    assert [s for s in subjects if not any(s in text.split("\n")[0] for text in texts)] == [], texts


def test_a_link_that_loses_packets_is_a_ticket(site: Site) -> None:
    """The end is tested last: hosts remember such a loss for a minute."""
    case = Case(
        "grey loss", _fail(GREY, drop=0.2), _heal,
        (GREY_ALERT,), ("mrcctl status", f"mrcctl drain {GREY}"),
    )  # fmt: skip
    check(site, case, 60)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_fault_fires_its_alerts_and_no_other(site: Site, case: Case) -> None:
    check(site, case)
    site.wait_until_well({GREY_ALERT})


def test_no_alert_is_left(site: Site) -> None:
    wait_until("all alerts are over", lambda: not site.firing() and not site.pending(), 70, 0.1)
