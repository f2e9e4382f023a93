# SPDX-License-Identifier: BSD-2-Clause
"""Lists faults of a lab: how to make and mend each, what hosts must say of it, and the alerts that it must fire.

The lab has six hosts, two under each of three T0s. Hosts under one T0 cannot tell a T1 from their T0's link to it.
Alerts are written as in labkit/monitoring/watched_lab.py, each with the commands that its text must name.
test_diagnosis.py and test_alertmanager.py run the quick ones; with `pytest --all-faults` all.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from labkit.cluster import observe, processes
from labkit.cluster.api import Lab
from labkit.cluster.fabric import PortRef
from labkit.cluster.observe import Document
from labkit.cluster.patience import wait_for
from labkit.faults import cables
from labkit.traffic.mesh import PORT, Mesh
from mrcd.auth import secrets_file
from mrcd.errors import MachineError, MrcdError

LAB = {"hosts": 6, "hosts_per_t0": 2, "planes": 3, "t1": 3}
HOSTS = tuple(f"h{i}" for i in range(LAB["hosts"]))
RATE = 400  # packets per second from each host to each other one
QUICK_S, GREY_S = 60.0, 120.0  # wide: a test ends as soon as the hosts name the fault
POLL_S = 0.4
_WELL_S = 240.0  # a grey loss is remembered for a minute

Change = Callable[[Lab], object]
Alerts = Mapping[str, tuple[str, ...]]
Diagnoses = Mapping[str, Sequence[Document]]  # host → causes, as in GET /v1/status


@dataclass(frozen=True)
class Truth:
    """A fault that hosts must name. `targets` are the names of the same thing for different hosts."""

    causes: frozenset[str]  # each of them is right: hosts see the same fault from different sides
    targets: frozenset[str]
    hosts: tuple[str, ...]  # that must name it; others may
    exit_status: int = 2  # of `status --check` on these hosts


def truth(causes: str, targets: str, hosts: Sequence[str], exit_status: int = 2) -> Truth:
    """Returns a Truth from words separated by spaces."""
    return Truth(frozenset(causes.split()), frozenset(targets.split()), tuple(hosts), exit_status)


@dataclass(frozen=True)
class Case:
    """A fault, or several at once. Without truths only its alerts are tested, without alerts only its truths."""

    name: str
    break_: Change
    mend: Change
    truths: tuple[Truth, ...] = ()
    within_s: float = QUICK_S
    dead: tuple[str, ...] = ()  # hosts that nobody can ask
    alerts: Alerts = field(default_factory=dict)


def others(*hosts: str) -> tuple[str, ...]:
    """Returns all hosts but these."""
    return tuple(h for h in HOSTS if h not in hosts)


def nic(host: str, port: str, state: str) -> Change:
    """Sets a NIC `up` or `down`."""
    return lambda lab: lab.exec(host, ["ip", "link", "set", port, state], check=True)


def fail(*targets: str, **effect: object) -> Change:
    """Breaks targets by `Lab.fail`."""
    return lambda lab: [lab.fail(target, **effect) for target in targets]  # type: ignore[arg-type]


def heal(lab: Lab) -> None:
    """Heals all targets."""
    lab.heal()


def both(first: Change, second: Change) -> Change:
    """Makes two changes, one after the other."""
    return lambda lab: (first(lab), second(lab))


def nics(host: str) -> list[str]:
    """Returns the links of a host's NICs, as targets."""
    return [f"nic:{host}:{plane}" for plane in range(LAB["planes"])]


def mrcctl(host: str, command: str) -> Change:
    """Runs mrcctl on a host."""
    return lambda lab: lab.exec(host, ["mrcctl", command], check=True)


def _use_other_secret(lab: Lab) -> None:
    """Starts the mrcd of h2 anew with another secret under the same id. Its data plane forwards meanwhile."""
    right = secrets_file.read(lab.state.secrets)
    secrets_file.write(lab.state.secrets, [secrets_file.new(right[-1].key_id)])
    try:
        restart(lab, "h2")
    finally:
        secrets_file.write(lab.state.secrets, right)


def _use_right_secret(lab: Lab) -> None:
    restart(lab, "h2")


def _other_file(before: str, after: str) -> Change:
    """Has h2 reload a cluster file with other words; the other hosts keep theirs."""

    def change(lab: Lab) -> None:
        path = lab.state.cluster_file
        right = path.read_text(encoding="utf-8")
        if before not in right:
            raise MachineError(f"{path} does not have {before!r}")
        path.write_text(right.replace(before, after), encoding="utf-8")
        try:
            _right_file(lab)
        finally:
            path.write_text(right, encoding="utf-8")

    return change


def _right_file(lab: Lab) -> None:
    """Has h2 reload the cluster file of all hosts."""
    lab.exec("h2", ["mrcctl", "--timeout", "60", "reload", "--force"], check=True, timeout=90)


def restart(lab: Lab, host: str) -> None:
    """Ends the mrcd of a host, and starts it again."""
    process = lab.state.daemon(host)
    if process is not None:
        processes.end([process])
    start_dead(lab)


def start_dead(lab: Lab) -> None:
    """Starts the daemons that do not run."""
    lab.up(**lab.fabric.parameters.as_json())


def _same(causes: str, target: str) -> tuple[Truth, ...]:
    return (truth(causes, target, HOSTS),)


def _swapped(name: str, *nics: str) -> Case:
    """Returns the case that the cables of two NICs are swapped at their T0s.

    Of two hosts neither can judge the other on that plane, where it gets nothing through itself.
    """
    first, second = (PortRef(host, f"p{plane}") for _, host, plane in (nic.split(":") for nic in nics))
    is_one_host = first.node == second.node
    return Case(
        name, lambda lab: cables.swap(lab.fabric, (first, second)),
        lambda lab: cables.restore(lab.fabric, (first, second)),
        tuple(
            truth("wrong_cable peer_nic", nic, HOSTS if is_one_host else others(other.node))
            for nic, other in zip(nics, (second, first), strict=True)
        ),
    )  # fmt: skip


class FullSize:
    """Packets as long as the MTU from each host to each other one, as long as a fault lasts."""

    RATE, BYTES = 50, 8992  # inner MTU 9020, less IPv4 and UDP headers

    def __init__(self) -> None:
        self._mesh: Mesh | None = None

    def begin(self, lab: Lab) -> None:
        """Begins to send."""
        self._mesh = Mesh(lab, self.RATE, self.BYTES, PORT + 1).__enter__()

    def end(self, _: Lab) -> None:
        """Ends it."""
        if self._mesh is not None:
            self._mesh.__exit__(None, None, None)


_FULL_SIZE = FullSize()


def _small_mtu(where: str, target: str, *truths: Truth) -> Case:
    """Returns the case that the switch ports of a target have too small an MTU."""
    begin, end = both(_FULL_SIZE.begin, fail(target, mtu=1500)), both(heal, _FULL_SIZE.end)
    return Case(f"small MTU of {where}", begin, end, truths or (truth("small_mtu", target, HOSTS, 1),))


def _mtu_of_nic(host: str, port: str, mtu: int) -> Change:
    return lambda lab: lab.exec(host, ["ip", "link", "set", port, "mtu", str(mtu)], check=True)


_T1 = Case("T1 dead", fail("t1:1:2"), heal, _same("t1", "t1:1:2"))
_LINK = Case("T0–T1 link dead", fail("link:1:1:2"), heal, _same("link", "link:1:1:2"))
_OWN_NIC = truth("own_nic peer_nic", "nic:h0:1", HOSTS)
_DIFFERS = (truth("config_differs", "host:h2", ["h2"]), truth("config_differs", "peer:h2", others("h2")))
_DETACHED = (truth("detached", "host:h2", ["h2"], 1), truth("peer_detached", "peer:h2", others("h2"), 1))

_DIAGNOSED = (
    _T1,
    Case("T0 dead", fail("t0:1:1"), heal, _same("t0 own_t0", "t0:1:1")),
    _LINK,
    Case(
        "link loses 20 %", fail("link:1:1:2", drop=0.2), heal,
        (truth("loss", "link:1:1:2", HOSTS, 1),), GREY_S,
    ),
    Case(
        "link loses 1 % one way", fail("link:1:1:2", drop=0.01, direction="down"), heal,
        (truth("loss", "link:1:1:2", others("h2", "h3"), 1),), GREY_S,
    ),
    Case("own NIC down", nic("h0", "p1", "down"), nic("h0", "p1", "up"), (_OWN_NIC,)),
    Case(
        "peer's NIC without carrier", fail("nic:h2:1", down=True), heal,
        _same("own_cable peer_nic", "nic:h2:1"),
    ),
    _swapped("cables of a host swapped", "nic:h0:1", "nic:h0:2"),
    _swapped("cables of two hosts swapped", "nic:h0:1", "nic:h2:1"),
    Case("peer detached", mrcctl("h2", "detach"), mrcctl("h2", "attach"), _DETACHED),
    Case(
        "peer dead", fail(*nics("h2")), heal, (truth("peer_down", "peer:h2", others("h2")),), dead=("h2",),
    ),
    _small_mtu("a T0's port to a host", "nic:h0:1"),
    _small_mtu("a T0", "t0:1:0"),
    _small_mtu("a T0–T1 link", "link:1:1:2"),
    _small_mtu("a T1", "t1:1:2"),
    Case(
        "small MTU of a NIC", both(_FULL_SIZE.begin, _mtu_of_nic("h0", "p1", 1500)),
        both(_mtu_of_nic("h0", "p1", 9100), _FULL_SIZE.end), (_OWN_NIC,),
    ),
    Case(
        "plane 5 ms slower", fail(*(f"t1:2:{t1}" for t1 in range(LAB["t1"])), delay="2500us"), heal,
        (truth("slow_plane", "plane:2", HOSTS, 1),), GREY_S,
    ),
    Case(
        "wrong key on a host", _use_other_secret, _use_right_secret,
        (truth("wrong_key", "host:h2", ["h2"]), truth("wrong_key", "peer:h2", others("h2"))),
    ),
    Case(
        "wrong file on a host: fewer EVs", _other_file("evs_per_peer = 9", "evs_per_peer = 6"), _right_file, _DIFFERS,
    ),
    Case("wrong file on a host: more T1s", _other_file("t1s = 3", "t1s = 4"), _right_file, _DIFFERS),
)  # fmt: skip
_PAIRS = (
    Case(
        "T1 dead, own NIC of another plane down",
        both(_T1.break_, nic("h0", "p0", "down")), both(heal, nic("h0", "p0", "up")),
        (*_T1.truths, truth("own_nic peer_nic", "nic:h0:0", HOSTS)),
    ),
    Case(
        "link dead, peer detached", both(_LINK.break_, mrcctl("h5", "detach")),
        both(heal, mrcctl("h5", "attach")),
        (
            truth("link", "link:1:1:2", others("h5")), truth("detached", "host:h5", ["h5"], 1),
            truth("peer_detached", "peer:h5", others("h5"), 1),
        ),
    ),
)  # fmt: skip


class ForeignPackets:
    """Packets of an address that the cluster file gives to no host."""

    ADDRESS = "198.51.100.1"

    def __init__(self) -> None:
        self._ping: subprocess.Popen[bytes] | None = None

    def begin(self, lab: Lab) -> None:
        """Gives h0 the address, and pings from it."""
        lab.exec("h0", ["ip", "address", "add", f"{self.ADDRESS}/32", "dev", "lo"], check=True)
        argv = ["ping", "-q", "-i0.05", f"-I{self.ADDRESS}", "10.99.0.3"]
        self._ping = lab.popen("h0", argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self, lab: Lab) -> None:
        """Undoes it."""
        if self._ping is not None:
            self._ping.kill()
            self._ping.wait()
        lab.exec("h0", ["ip", "address", "del", f"{self.ADDRESS}/32", "dev", "lo"], check=True)


class FlappingLink:
    """A link that fails for a moment each time its EVs have been in use for some seconds."""

    DEAD_S, WELL_S = 0.3, 4.5  # less than hold_down_max_ms: no flap is forgotten; enough for a diagnosis to end

    def __init__(self, target: str, hosts: Sequence[str]) -> None:
        self._target, self._hosts = target, hosts
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, lab: Lab) -> None:
        """Starts it."""
        self._is_over.clear()
        self._thread = threading.Thread(target=self._flap, args=(lab,), daemon=True)
        self._thread.start()

    def _flap(self, lab: Lab) -> None:
        while not self._is_over.is_set():
            lab.fail(self._target)
            self._is_over.wait(self.DEAD_S)
            lab.heal(self._target)
            while any(self._failed(lab, host) for host in self._hosts) and not self._is_over.wait(0.2):
                pass
            self._is_over.wait(self.WELL_S)

    def _failed(self, lab: Lab, host: str) -> int:
        return int(observe.client(lab, host).get("/v1/status")["evs"]["ASSUMED_BAD"])

    def end(self, lab: Lab) -> None:
        """Ends it, with a link that works."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()


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
    *(replace(c, alerts=_OF_DIAGNOSIS.get(c.name, {})) for c in _DIAGNOSED),
    *_PAIRS,
    Case("peer and its daemon dead", both(_kill("h2"), fail(*nics("h2"))), _START, alerts=_unreachable("h2")),
    Case("peer cut off, but scraped", fail(*nics("h2")), heal, alerts=_unreachable("h2")),
    Case(
        "NIC dead, no other host under its T0s", both(_kill("h5"), fail(*nics("h5"), "nic:h4:1")), _START,
        alerts={**_unreachable("h5"), "MrcFaultUnclear critical plane=1": ("mrcctl status",)},
    ),
    Case(
        "one path left to a host", fail(*_SEVERAL), heal,
        alerts={
            **_fault(*_SEVERAL),
            "MrcEvsBelowFloor critical": ("mrcctl status", "mrcctl paths --peer PEER --state ASSUMED_BAD"),
        },
    ),
    Case(
        "daemon dead", _kill("h1"), _START,
        alerts={
            "MrcdDownWhileForwarding critical host=h1 instance=h1": (
                "systemctl status mrcd", "journalctl -u mrcd", "mrcctl status",
            ),
        },
    ),
    Case(
        "all daemons dead", _kill(*HOSTS), _START,
        alerts={f"MrcdDown warning instance={host}": ("systemctl status mrcd",) for host in HOSTS},
    ),
    Case(
        "packets of an unknown source", _FOREIGN.begin, _FOREIGN.end,
        alerts={"MrcDrops warning instance=h0 reason=foreign_source": ("mrcctl doctor",)},
    ),
    Case(
        "link fails and recovers, again and again", _FLAPPING.begin, _FLAPPING.end,
        alerts={"MrcEvsFlapping warning": ("mrcctl events", "mrcctl drain")},
    ),
)  # fmt: skip


def is_sure(cause: Document, of: Truth) -> bool:
    """Returns whether a cause is the fault, and no other."""
    return cause["cause"] in of.causes and cause["target"] in of.targets and not cause["or_targets"]


def may_be(cause: Document, of: Truth) -> bool:
    """Returns whether a cause is the fault, or one of several that the host cannot tell apart includes it."""
    if cause["target"] in of.targets:
        return cause["cause"] in of.causes
    return bool(of.targets & set(cause["or_targets"]))


def unnamed(truths: Sequence[Truth], found: Diagnoses) -> list[str]:
    """Returns what is missing: hosts that do not name a fault, and faults of which no host is sure."""
    missing = []
    for t in truths:
        silent = [h for h in t.hosts if not any(may_be(c, t) for c in found[h])]
        missing += [f"{h} does not name {min(t.targets)}" for h in silent]
    return missing


def wrong(truths: Sequence[Truth], found: Diagnoses) -> list[str]:
    """Returns what hosts name although it is no fault of the case. Denials are no faults."""
    return [
        f"{host} names {c['cause']} {c['target']}"
        for host, causes in found.items()
        for c in causes
        if c["severity"] != "ok" and not any(may_be(c, t) for t in truths)
    ]


def sure(truths: Sequence[Truth], found: Diagnoses) -> list[int]:
    """Returns, per fault, how many hosts are sure of it."""
    return [sum(any(is_sure(c, t) for c in causes) for causes in found.values()) for t in truths]


def expected_status(truths: Sequence[Truth], host: str) -> int:
    """Returns the exit status that `status --check` must have on a host."""
    return max((t.exit_status for t in truths if host in t.hosts), default=0)


def diagnoses(lab: Lab, hosts: Sequence[str]) -> dict[str, list[Document]]:
    """Returns what each host names in `mrcctl status --json`."""
    return {host: observe.client(lab, host).get("/v1/status")["diagnosis"] for host in hosts}


def wait_until_well(lab: Lab) -> float:
    """Waits until no host names anything. Returns the seconds. Raises MachineError."""
    left: list[str] = []

    def is_well() -> bool:
        try:
            left[:] = wrong((), diagnoses(lab, HOSTS)) or [
                f"{h}: EVs are not GOOD" for h in HOSTS if not _is_good(lab, h)
            ]
        except MrcdError:  # a daemon that starts
            left[:] = ["a daemon does not answer"]
        return not left

    try:
        return wait_for("no host names anything", is_well, _WELL_S, POLL_S)
    except MachineError as e:
        raise MachineError(f"{e.args[0]}: {', '.join(left[:3])}") from None


def _is_good(lab: Lab, host: str) -> bool:
    evs = observe.client(lab, host).get("/v1/status")["evs"]
    return not any(n for state, n in evs.items() if state not in ("GOOD", "SKIP"))


def parameters(metafunc: pytest.Metafunc, quick: Sequence[str], cases: Sequence[Case]) -> None:
    """Parametrizes `case` by the quick cases, or with `--all-faults` by all of `cases`."""
    if "case" in metafunc.fixturenames:
        chosen = [c for c in cases if c.name in quick or metafunc.config.getoption("--all-faults")]
        metafunc.parametrize("case", chosen, ids=lambda c: c.name)
