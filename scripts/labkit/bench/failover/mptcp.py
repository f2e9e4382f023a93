"""MPTCP between h0 and h2: one subflow per plane, between the hosts' own addresses there (RFC 8684)."""

from pathlib import Path

from labkit import netns
from labkit.api import Lab
from labkit.bench import candidates
from labkit.flow import Ends

_ENABLED = Path("/proc/sys/net/mptcp/enabled")


def missing() -> str | None:
    """Why there is none, in a sentence; None if the kernel has it."""
    return None if _ENABLED.exists() else "This kernel has no MPTCP (CONFIG_MPTCP), so it was not measured."


def install(lab: Lab) -> Ends:
    """Routes, limits, and the target's addresses, which it announces. Returns the ends of the first subflow."""
    planes = lab.fabric.parameters.planes
    ends = [candidates.plane_ends(lab, p) for p in range(planes)]
    source, target = ends[0].source, ends[0].target
    for plane in range(planes):
        for host, lines in candidates.plane_routes(lab, plane).items():
            netns.batch_in(lab.ns(host), ("ip",), lines)
    limits = f"mptcp limits set subflows {planes} add_addr_accepted {planes}"
    announced = [f"mptcp endpoint add {e.target_address} id {p} signal" for p, e in enumerate(ends) if p > 0]
    netns.batch_in(lab.ns(source), ("ip",), ["mptcp endpoint flush", limits])
    netns.batch_in(lab.ns(target), ("ip",), ["mptcp endpoint flush", limits, *announced])
    return ends[0]
