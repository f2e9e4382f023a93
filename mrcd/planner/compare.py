# SPDX-License-Identifier: BSD-2-Clause
"""Compares the SIDs and routes that a switch runs with the plan, and says what each difference affects. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv6Network

from mrcd.config.cluster_file import Config
from mrcd.planner.switches.model import Switch
from mrcd.planner.switches.reading import Reading
from mrcd.planner.switches.running import Report

_MOST_HOSTS = 4  # named in one line
_ENDS_HERE = "unreachable"


@dataclass(frozen=True)
class Finding:
    """A difference of a switch from the plan. `planned` and `runs` are text; None if there is no SID or route."""

    switch: str
    fault: str
    prefix: str | None
    planned: str | None
    runs: str | None
    affects: str | None
    """The traffic that takes this SID or route."""
    cause: str | None


class Comparison:
    """Compares switches with a cluster file."""

    def __init__(self, config: Config) -> None:
        c = config.cluster
        self._networks = [c.block, c.underlay]
        self._packets = "all packets" if c.encapsulation == "ecmp" else "ICMPv6 errors"
        self._below: dict[int, list[str]] = {}
        for host in config.hosts:
            self._below.setdefault(host.t0, []).append(host.name)

    def findings(self, switch: Switch, planned: Reading, report: Report) -> Iterator[Finding]:
        """Yields the differences of a switch: missing, different, and then unexpected SIDs and routes.

        Routes outside of the fabric's networks, as of management, are not compared.
        """
        runs = report.reading
        affected = dict(self._affected(switch))
        for prefix in (*planned.sids, *planned.routes):
            kind = "SID" if prefix in planned.sids else "route"
            wanted, found = _words(planned, prefix), _words(runs, prefix)
            if wanted != found:
                fault = f"{kind} missing" if found is None else f"{kind} differs"
                cause = report.notes.get(prefix) or (_lost_sid(report) if fault == "SID missing" else None)
                yield Finding(switch.name, fault, prefix, wanted, found, affected.get(prefix), cause)
        for prefix in (*runs.sids, *runs.routes):
            if prefix in planned.sids or prefix in planned.routes or prefix in [f"{own}/128" for own in switch.own]:
                continue
            if self._is_of_fabric(prefix):
                kind = "SID" if prefix in runs.sids else "route"
                affects = f"packets to {prefix}"
                yield Finding(switch.name, f"{kind} unexpected", prefix, None, _words(runs, prefix), affects, None)

    def completed(self, planned: Reading, report: Report) -> Reading:
        """Returns what a switch runs, without what is outside of the fabric's networks.

        Addresses, MTUs and filters are those of the plan where the report does not tell them.
        """
        runs = report.reading
        others = {"addresses", "mtus", "sources", "filtered"} - report.tells
        return replace(
            runs,
            sids={prefix: behaviour for prefix, behaviour in runs.sids.items() if self._is_of_fabric(prefix)},
            routes={prefix: paths for prefix, paths in runs.routes.items() if self._is_of_fabric(prefix)},
            **{name: getattr(planned, name) for name in others},
        )

    def _is_of_fabric(self, prefix: str) -> bool:
        return any(IPv6Network(prefix).subnet_of(ours) for ours in self._networks)

    def _affected(self, switch: Switch) -> Iterator[tuple[str, str]]:
        """Yields each planned prefix of a switch, and the traffic that takes it."""
        plane, me = switch.plane, switch.name
        is_t0 = switch.kind == "t0"
        below = self._hosts(switch.number) if is_t0 else ""
        of_plane = [f" in plane {p}" if len(switch.planes) > 1 else "" for p in switch.planes]
        for sid, where in zip(switch.sids, of_plane, strict=False):
            yield sid, f"all EVs from and to {below} in plane {plane}" if is_t0 else f"all EVs through {me}{where}"
        affected: tuple[str, ...]
        for port in switch.ports:
            if not is_t0:
                hosts = self._hosts(int(port.neighbour.rpartition("-")[2]))
                where = f" in plane {port.plane}" if len(switch.planes) > 1 else ""
                evs, own = f"EVs through {me} to {hosts}{where}", f"packets to addresses of {port.far_switch}"
                affected = (f"{self._packets} through {me} to {hosts}{where}", own, evs)
            elif port.is_uplink:
                affected = (f"packets to addresses of {port.far_switch}", f"EVs of {below} through {port.far_switch}")
            else:
                to = f"to {port.neighbour} in plane {plane}"
                affected = (f"{self._packets} {to}", f"all EVs {to}")
            yield from zip(port.networks, affected, strict=False)  # ecmp has no network of a uSID, the last one
        for network in switch.over_uplinks:
            yield network, f"{self._packets} from {me} to hosts under other T0s"
        for network in switch.unreachable:
            yield network, f"packets to hosts that do not exist, which circulate between {me} and T1s"

    def _hosts(self, t0: int) -> str:
        """Returns the names of the hosts under a T0."""
        names = self._below.get(t0, [])
        more = len(names) - _MOST_HOSTS
        return ", ".join(names[:_MOST_HOSTS]) + (f" and {more} more" if more > 0 else "") or "no host"


def no_report(switch: Switch) -> Finding:
    """Returns the finding for a switch without a report."""
    cause = f"there is no file {switch.name}.json; EVs are followed through the switch as planned"
    return Finding(switch.name, "no report", None, None, None, None, cause)


def _words(reading: Reading, prefix: str) -> str | None:
    """Returns what a reading has at a prefix, as text; None if nothing. The order of paths does not matter."""
    if prefix in reading.sids:
        return reading.sids[prefix]
    if prefix not in reading.routes:
        return None
    paths = sorted(reading.routes[prefix])
    return ", ".join(f"{hop} {interface}".strip() for hop, interface in paths) or _ENDS_HERE


def _lost_sid(report: Report) -> str | None:
    """Returns the usual reason for a SID that is configured, but not there."""
    return {
        "frr": "FRR leaves out a SID whose interface is absent: see that sr0 is up; if it is, restart FRR",
        "iproute2": "the kernel drops a SID when its interface goes down: see that it is up, then add the SID again",
    }.get(report.system)
