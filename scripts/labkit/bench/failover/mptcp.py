# SPDX-License-Identifier: BSD-2-Clause
"""Sets up MPTCP between h0 and h2: one subflow per plane, between the hosts' own addresses there (RFC 8684)."""

from pathlib import Path

from labkit.bench import candidates
from labkit.cluster import netns
from labkit.cluster.api import Lab
from labkit.traffic.flow import Ends, Flow
from mrcd.errors import MachineError

_ENABLED = Path("/proc/sys/net/mptcp/enabled")
# MPTCP leaves a subflow after one of its timeouts without data, instead of four.
_SYSCTLS = [("mptcp/stale_loss_cnt", "1")]


def missing() -> str | None:
    """Returns why MPTCP was not measured; None if the kernel has it."""
    return None if _ENABLED.exists() else "This kernel has no MPTCP (CONFIG_MPTCP), so it was not measured."


def install(lab: Lab) -> Ends:
    """Sets routes, limits, sysctls, and the addresses that the target announces. Returns the first subflow's ends."""
    planes = lab.fabric.parameters.planes
    ends = [candidates.plane_ends(lab, p) for p in range(planes)]
    source, target = ends[0].source, ends[0].target
    for plane in range(planes):
        for host, lines in candidates.plane_routes(lab, plane).items():
            netns.batch_in(lab.ns(host), ("ip",), lines)
    for host in (source, target):
        with lab.inside(host):
            netns.write_sysctls(_SYSCTLS)
    limits = f"mptcp limits set subflows {planes} add_addr_accepted {planes}"
    announced = [f"mptcp endpoint add {e.target_address} id {p} signal" for p, e in enumerate(ends) if p > 0]
    netns.batch_in(lab.ns(source), ("ip",), ["mptcp endpoint flush", limits])
    netns.batch_in(lab.ns(target), ("ip",), ["mptcp endpoint flush", limits, *announced])
    return ends[0]


def check(lab: Lab, flow: Flow) -> None:
    """Raises MachineError unless the flow has a subflow on each plane."""
    planes = lab.fabric.parameters.planes
    if flow.subflows != planes:
        raise MachineError(
            f"the MPTCP flow has {flow.subflows} subflows instead of {planes}",
            hint="are the planes' addresses reachable? see ip mptcp endpoint, nstat -az 'MPTcpExt*'",
        )
