# SPDX-License-Identifier: BSD-2-Clause
"""Sets a candidate's receive settings: RPS over all CPUs and GRO for every candidate, or each one's own default.

They are set on the interfaces by which a host's stack receives a candidate's packets: mrc0 for mrcd, the planes' NICs
for the others. GRO merges single packets; a veth passes a GSO burst whole, whatever its setting.
"""

import contextlib
from collections.abc import Iterator, Sequence

from labkit.bench.candidates import OURS, pair
from labkit.cluster import netns
from labkit.cluster.api import Lab
from mrcd.net import rps
from mrcd.net.netlink import set_offload

EQUAL, DEFAULT = "equal", "default"
SETTINGS = (EQUAL, DEFAULT)
WORDS = {
    EQUAL: "RPS over all CPUs and GRO, on the interfaces by which each candidate receives; bounds are judged by these",
    DEFAULT: "each at its own default: mrcd with RPS over all CPUs on mrc0, the others without RPS and GRO (a veth's)",
}


@contextlib.contextmanager
def in_force(lab: Lab, candidate: str, settings: str, hosts: Sequence[str] = ()) -> Iterator[None]:
    """A block in which hosts, by default the two of `pair`, receive a candidate's packets with these settings.

    Raises MachineError.
    """
    with contextlib.ExitStack() as undo:
        if settings == EQUAL:
            for host in hosts or pair(lab):
                undo.enter_context(_equal(lab, host, candidate))
        yield


def interfaces(lab: Lab, host: str, candidate: str) -> list[str]:
    """Returns the interfaces by which a host's stack receives a candidate's packets."""
    config = lab.fabric.config
    return [config.overlay.interface] if candidate in OURS else config.interface_names(config.host(host))


@contextlib.contextmanager
def _equal(lab: Lab, host: str, candidate: str) -> Iterator[None]:
    names = interfaces(lab, host, candidate)
    with lab.inside(host):
        before = netns.swap_rps(dict.fromkeys(names, rps.format_mask(rps.online_cpus())))
    try:
        with lab.inside(host):
            _set_gro(candidate, names, True)
        yield
    finally:
        with lab.inside(host):
            _set_gro(candidate, names, False)
            netns.swap_rps(before)


def _set_gro(candidate: str, names: list[str], on: bool) -> None:
    if candidate in OURS:  # mrcd has switched it on for packet granularity, and would restore it
        return
    for name in names:
        set_offload(name, {"rx-gro": on})
