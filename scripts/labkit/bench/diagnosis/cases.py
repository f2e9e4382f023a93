# SPDX-License-Identifier: BSD-2-Clause
"""Lists the faults of part `diagnosis`, one by one and two at once: how to make and mend each, what hosts must say.

The lab has six hosts, two under each of three T0s. Hosts under one T0 cannot tell a T1 from their T0's link to it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from labkit.bench.diagnosis.judge import Truth, truth
from labkit.cluster import processes
from labkit.cluster.api import Lab
from labkit.cluster.fabric import PortRef
from labkit.faults import cables
from mrcd.auth import secrets_file
from mrcd.errors import MachineError

LAB = {"hosts": 6, "hosts_per_t0": 2, "planes": 3, "t1": 3}
HOSTS = tuple(f"h{i}" for i in range(LAB["hosts"]))
QUICK_S, GREY_S = 5.0, 60.0

Change = Callable[[Lab], object]


@dataclass(frozen=True)
class Case:
    """A fault, or several at once."""

    name: str
    break_: Change
    mend: Change
    truths: tuple[Truth, ...]
    within_s: float = QUICK_S
    dead: tuple[str, ...] = ()  # hosts that nobody can ask


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
    lab.exec("h2", ["mrcctl", "reload", "--force"], check=True)


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


_T1 = Case("T1 dead", fail("t1:1:2"), heal, _same("t1", "t1:1:2"))
_LINK = Case("T0–T1 link dead", fail("link:1:1:2"), heal, _same("link", "link:1:1:2"))
_OWN_NIC = truth("own_nic peer_nic", "nic:h0:1", HOSTS)
_DIFFERS = (truth("config_differs", "host:h2", ["h2"]), truth("config_differs", "peer:h2", others("h2")))
_DETACHED = (truth("detached", "host:h2", ["h2"], 1), truth("peer_detached", "peer:h2", others("h2"), 1))

CASES = (
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
PAIRS = (
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
