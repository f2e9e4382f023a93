# SPDX-License-Identifier: BSD-2-Clause
"""Lists the ways from h0 to h2 (h1 with two hosts) that are compared. Each has addresses of its own, which select it.

mrcd         the overlay addresses: sprayed over all EVs
kernel       the kernel's own seg6 encap.red over one path: a route like mrcd's fallback, with one next hop, to SIDs of
             its own, because mrc_pop drops what peers send to mrcd's while both ends are attached
kernel-ecmp  the same with all next hops of the fallback route: each flow stays on the one of its hash. The hosts hash
             by ports from then on, as in clusters: else all flows between two hosts take one path
plain        the hosts' addresses on plane 0: no encapsulation
mptcp        Multipath TCP (RFC 8684) between these, with a subflow on each plane
All candidates of one IP version have the same inner MTU, and the same receive settings: RPS over all CPUs and GRO, on
the interfaces by which a host's stack receives a candidate's packets: mrc0 for mrcd, the planes' NICs for the others.
GRO merges single packets; a veth passes a GSO burst whole, whatever its setting.
"""

import contextlib
import ipaddress
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.cluster import netns
from labkit.cluster.api import Lab
from labkit.cluster.observe import Document
from labkit.traffic.flow import Ends, Flow, Protocol
from mrcd.errors import MachineError
from mrcd.fabric import srv6, topology
from mrcd.net import rps
from mrcd.net.netlink import set_offload

SOURCE, TARGET = "h0", "h2"  # under different T0s
MRCD, KERNEL, KERNEL_ECMP, PLAIN, MPTCP = "mrcd", "kernel", "kernel-ecmp", "plain", "mptcp"
_MPTCP_ENABLED = Path("/proc/sys/net/mptcp/enabled")
# MPTCP leaves a subflow after one of its timeouts without data, instead of four.
_MPTCP_SYSCTLS = [("mptcp/stale_loss_cnt", "1")]
_ECMP_SYSCTLS = [(f"ipv{v}/fib_multipath_hash_policy", "1") for v in (4, 6)]
_PROTOCOL = "static"
_ROUTES_WITHIN_S = 5.0
# More addresses of a host, beside the one that mrcd serves, in another network.
_OWN_FUNCTIONS = {f"{of:x}": f"{of + 0x10:x}" for of in (srv6.UDT4, srv6.UDT6)}  # in place of mrcd's
_NETWORKS = {KERNEL: ("10.98.0.0", "fd00:98::"), KERNEL_ECMP: ("10.97.0.0", "fd00:97::")}


@dataclass(frozen=True)
class Candidate:
    """One way."""

    name: str
    words: str
    ends: Ends
    sprayed: bool | None = False  # evenly over all planes; False: a flow stays on one NIC; None: not checked
    protocol: Protocol = "tcp"


def installed(lab: Lab, names: Sequence[str], version: int) -> list[Candidate]:
    """Returns these candidates, their addresses and routes in place. MPTCP is missing if the kernel has none."""
    return [c for c in (_install(lab, name, version) for name in names) if c]


def _install(lab: Lab, name: str, version: int) -> Candidate | None:
    inner = overlay(lab, version)
    if name == MRCD:
        return Candidate(name, "mrc0: sprayed over all EVs", inner, sprayed=True)
    if name == MPTCP:
        words = "MPTCP, one subflow per plane, plain addresses"
        return None if mptcp_missing() else Candidate(name, words, install_mptcp(lab), None, "mptcp")
    if name == PLAIN:
        words, ends, setup = "plane 0's own addresses, no encapsulation", plane_ends(lab, 0), plane_routes(lab, 0)
    elif name == KERNEL:
        words, (ends, setup) = "seg6 encap.red, one path", _kernel(lab, name, version, inner, 1)
    else:
        words = "seg6 encap.red, the fallback's multipath route"
        ends, setup = _kernel(lab, name, version, inner, None)
    for host, lines in setup.items():
        with lab.inside(host):
            netns.batch(("ip",), lines)
            if name == KERNEL_ECMP:
                netns.write_sysctls(_ECMP_SYSCTLS)
    return Candidate(name, words, ends)


def pair(lab: Lab) -> tuple[str, str]:
    """Returns source and target: under different T0s, if there are switches."""
    hosts = lab.fabric.hosts
    return SOURCE, TARGET if TARGET in hosts else hosts[-1]


def overlay(lab: Lab, version: int) -> Ends:
    """Returns the addresses that mrcd serves, of one IP version."""
    source, target = pair(lab)
    fabric = lab.fabric
    return Ends(source, fabric.address(source, version), target, fabric.address(target, version))


def _kernel(lab: Lab, name: str, version: int, inner: Ends, hops: int | None) -> tuple[Ends, dict[str, list[str]]]:
    """Returns routes both ways with the first `hops` next hops of mrcd's own fallback route."""
    ends = _ends(lab, name, version)
    mine, theirs = ends.source_address, ends.target_address
    setup = {}
    for host, own, far, far_inner in (
        (ends.source, mine, theirs, inner.target_address),
        (ends.target, theirs, mine, inner.source_address),
    ):
        route = _fallback(lab, host, far_inner)
        through = [_hop(h) for h in route["nexthops"][:hops]]
        nexthops = through[0] if hops == 1 else " ".join(f"nexthop {t}" for t in through)
        mtu = route["metrics"][0]["mtu"]  # includes the encapsulation, which the kernel subtracts
        length = 32 if version == 4 else 128
        setup[host] = [
            f"address replace {own}/{length} dev lo" + (" nodad" if version == 6 else ""),
            f"route replace {far}/{length} src {own} mtu {mtu} proto {_PROTOCOL} {nexthops}",
            *_sid_routes(lab, host),
        ]
    return ends, setup


def _sid_routes(lab: Lab, host: str) -> list[str]:
    """Returns routes like mrcd's for the kernel's SIDs of a host, and to those of a neighbour, with other functions."""
    done = lab.exec(host, ["ip", "-6", "-j", "route", "show", "proto", "77"], check=True)
    actions = {"End.DX4": "End.DX4 nh4 0.0.0.0", "End.DT6": "End.DT6 table local"}
    found = []
    for route in json.loads(done.stdout):
        if (sid := _own_sid(route["dst"])) != route["dst"]:
            local = route.get("encap") == "seg6local"
            way = f"encap seg6local action {actions[route['action']]}" if local else f"via {route['gateway']}"
            found.append(f"route replace {sid} {way} dev {route['dev']} proto {_PROTOCOL}")
    return found


def _own_sid(sid: str) -> str:
    """Returns a SID with the function of its own in place of mrcd's. Pure."""
    for function, own in _OWN_FUNCTIONS.items():
        sid = re.sub(rf":{function}\b", f":{own}", sid)
    return sid


def _ends(lab: Lab, name: str, version: int) -> Ends:
    """Returns the hosts' addresses of a candidate."""
    base = int(ipaddress.ip_address(_NETWORKS[name][version == 6]))
    source, target = pair(lab)
    kind = ipaddress.IPv4Address if version == 4 else ipaddress.IPv6Address
    mine, theirs = (str(kind(base + lab.fabric.config.host(h).id + 1)) for h in (source, target))
    return Ends(source, mine, target, theirs)


def _fallback(lab: Lab, host: str, address: str) -> Document:
    """Returns mrcd's seg6 route to a peer's address, from the kernel; it follows the paths' states a little later."""
    metric, planes = lab.fabric.config.overlay.fallback_metric, lab.fabric.parameters.planes
    family = "-6" if ":" in address else "-4"
    argv = ["ip", family, "-j", "route", "show", address, "proto", "77", "metric", str(metric)]
    until = time.monotonic() + _ROUTES_WITHIN_S
    while True:
        done = lab.exec(host, argv)
        routes: list[Document] = json.loads(done.stdout or "[]")
        if routes and len(routes[0].get("nexthops", ())) >= planes:
            return routes[0]
        if done.returncode or time.monotonic() > until:
            raise MachineError(
                f"{host} has no fallback route to {address} over all planes: {done.stderr.strip() or done.stdout!r}",
                hint="does its mrcd run? see scripts/lab status",
            )
        time.sleep(0.02)


def _hop(hop: Document) -> str:
    via = f" via {hop['gateway']}" if "gateway" in hop else ""
    return f"encap seg6 mode {hop['mode']} segs {','.join(map(_own_sid, hop['segs']))}{via} dev {hop['dev']}"


def plane_ends(lab: Lab, plane: int) -> Ends:
    """Returns the hosts' own addresses on a plane."""
    config, hosts = lab.fabric.config, pair(lab)
    own, far = (str(topology.plane_address(config.cluster.underlay, plane, config.host(h))) for h in hosts)
    return Ends(hosts[0], own, hosts[1], far)


def inner_mtu(lab: Lab) -> int:
    """Returns the inner MTU of all candidates."""
    return topology.plan(lab.fabric.config, SOURCE).inner_mtu


def plane_routes(lab: Lab, plane: int) -> dict[str, list[str]]:
    """Returns lines for `ip -batch` by host: routes to each other's address on a plane."""
    config, ends = lab.fabric.config, plane_ends(lab, plane)
    source, target, mtu = ends.source, ends.target, inner_mtu(lab)
    nics = {h: config.interface_names(config.host(h))[plane] for h in (source, target)}
    through = {h: f"via {config.interfaces.gateway} dev {nics[h]} mtu {mtu} proto {_PROTOCOL}" for h in nics}
    own, far = ends.source_address, ends.target_address
    return {
        source: [f"route replace {far}/128 src {own} {through[source]}"],
        target: [f"route replace {own}/128 src {far} {through[target]}"],
    }


def mptcp_missing() -> str | None:
    """Returns why MPTCP was not measured; None if the kernel has it."""
    return None if _MPTCP_ENABLED.exists() else "This kernel has no MPTCP (CONFIG_MPTCP), so it was not measured."


def install_mptcp(lab: Lab) -> Ends:
    """Sets routes, limits, sysctls, and the addresses that the target announces. Returns the first subflow's ends."""
    planes = lab.fabric.parameters.planes
    ends = [plane_ends(lab, p) for p in range(planes)]
    source, target = ends[0].source, ends[0].target
    for plane in range(planes):
        for host, lines in plane_routes(lab, plane).items():
            netns.batch_in(lab.ns(host), ("ip",), lines)
    for host in (source, target):
        with lab.inside(host):
            netns.write_sysctls(_MPTCP_SYSCTLS)
    limits = f"mptcp limits set subflows {planes} add_addr_accepted {planes}"
    announced = [f"mptcp endpoint add {e.target_address} id {p} signal" for p, e in enumerate(ends) if p > 0]
    netns.batch_in(lab.ns(source), ("ip",), ["mptcp endpoint flush", limits])
    netns.batch_in(lab.ns(target), ("ip",), ["mptcp endpoint flush", limits, *announced])
    return ends[0]


def check_mptcp(lab: Lab, flow: Flow) -> None:
    """Raises MachineError unless the MPTCP flow has a subflow on each plane."""
    planes = lab.fabric.parameters.planes
    if flow.subflows != planes:
        raise MachineError(
            f"the MPTCP flow has {flow.subflows} subflows instead of {planes}",
            hint="are the planes' addresses reachable? see ip mptcp endpoint, nstat -az 'MPTcpExt*'",
        )


@contextlib.contextmanager
def receiving(lab: Lab, candidate: str, hosts: Sequence[str] = ()) -> Iterator[None]:
    """A block in which hosts, by default the two of `pair`, receive with RPS over all CPUs and GRO.

    Raises MachineError.
    """
    with contextlib.ExitStack() as undo:
        for host in hosts or pair(lab):
            undo.enter_context(_receiving(lab, host, candidate))
        yield


@contextlib.contextmanager
def _receiving(lab: Lab, host: str, candidate: str) -> Iterator[None]:
    config = lab.fabric.config
    nics = config.interface_names(config.host(host))
    names = [config.overlay.interface] if candidate == MRCD else nics
    merging = [] if candidate == MRCD else nics  # mrcd has switched it on for packet granularity, and would restore it
    with lab.inside(host):
        before = netns.swap_rps(dict.fromkeys(names, rps.format_mask(rps.online_cpus())))
    try:
        with lab.inside(host):
            for name in merging:
                set_offload(name, {"rx-gro": True})
        yield
    finally:
        with lab.inside(host):
            for name in merging:
                set_offload(name, {"rx-gro": False})
            netns.swap_rps(before)
