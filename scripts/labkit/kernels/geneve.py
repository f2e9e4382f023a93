# SPDX-License-Identifier: BSD-2-Clause
"""Compares Geneve with mrcd's encapsulation: packets of a TCP flow between two machines (virtio-net).

The kernel's tracepoints count packets (skbs) at two places of the sender and two of the receiver, per 100 segments that
TCP sends. Geneve uses the path of EV 0, and has the MRC header as an option (bpf/lab/geneve.bpf.c); mrcd uses all EVs.
"""

import functools
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from labkit.entry import progress
from labkit.kernels import pair
from labkit.kernels.labs import iperf3_result
from labkit.kernels.nics import SMALL, Checks
from labkit.kernels.packages import Kernel
from labkit.kernels.pair import ADDRESSES, NAMES, Pair
from labkit.places import lab_object
from mrcd.ctl.terminal.render import Column, table
from mrcd.errors import MachineError
from mrcd.fabric import topology

MEGABYTES = 4
ROUNDS = 3
BURST = 32  # packets; an emulated CPU is slow, and TCP would send bursts of two
PLACES = ("to the queue", "to the card", "after its GRO", "to TCP")
# Less an Ethernet header (the device counts one, though it has none), IPv6, UDP, Geneve and the option.
_MTU = SMALL - 14 - 40 - 8 - 8 - 36
_HOST = """\
ip address add {gateway_peer}/64 dev {nic} nodad; ip address add {own}/128 dev {nic} nodad
ip address add {arrives}/128 dev lo; ip route add {first} via {gateway} dev {nic}
ip link add geneve0 type geneve external innerprotoinherit
ip link set geneve0 mtu {mtu} up; ip address add {inner}/32 dev geneve0; ip route add {inner_peer} dev geneve0
tc qdisc add dev geneve0 clsact
tc filter add dev geneve0 egress pref 1 matchall action \
    tunnel_key set src_ip {own} dst_ip {carrier} id 7 ttl 64 nocsum continue"""
_OPTION = f"tc filter add dev geneve0 egress pref 2 bpf da object-file {lab_object('geneve')} section tc"
# Longer than 1000 bytes: nearly all probes are shorter.
_EVENTS = ("net_dev_queue", "net_dev_xmit", "netif_receive_skb")
_TRACE = f"""\
sysctl -q net.ipv4.tcp_min_tso_segs={BURST}
mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing
for e in {" ".join(_EVENTS)}; do echo 'hist:keys=name if len > 1000' >/sys/kernel/tracing/events/net/$e/trigger; done"""
_COUNTS = f"""\
cd /sys/kernel/tracing/events/net; for e in {" ".join(_EVENTS)}; do sed -n "s/^{{/$e {{/p" $e/hist; done
awk '/^Tcp: [0-9]/ {{ print "sent {{ name: tcp }} hitcount: " $12 }}' /proc/net/snmp"""
_COUNT = re.compile(r"(\w+) \{ name: (\S+) +\} hitcount: +(\d+)")


@dataclass(frozen=True)
class Case:
    """A way of encapsulating, and its packets per 100 segments of TCP, by PLACES."""

    name: str
    counts: tuple[float, ...]

    def document(self) -> dict[str, object]:
        """Returns it as --json prints it."""
        return {"case": self.name, "per_100_segments": dict(zip(PLACES, self.counts, strict=True))}


def run(kernel: Kernel, results: Path) -> list[Case]:
    """Returns the cases, each the median of ROUNDS flows. Raises MachineError."""
    shutil.rmtree(results, ignore_errors=True)
    cases = []
    for count in (_geneve, _mrcd):
        with pair.booted(kernel, "virtio-net-pci", results / count.__name__, "geneve") as it:
            it.each(f"{_TRACE}; for n in {' '.join(it.interfaces)}; do ip link set $n mtu {SMALL} up; done")
            it.hosts["h1"].start(["iperf3", "-s"], "iperf3")
            cases += count(it)
    return cases


def lines(cases: Iterable[Case]) -> list[str]:
    """Returns the table of cases. Pure."""
    columns = [Column("packets per 100 segments"), *(Column(place) for place in PLACES)]
    return table(columns, [[c.name, *(f"{n:.1f}" for n in c.counts)] for c in cases], colour=False)


def _geneve(it: Pair) -> list[Case]:
    for name, host in it.hosts.items():
        host.do(_HOST.format(**_place(it, name)))
    cases = [_case(it, "Geneve without an option", "geneve0")]
    it.each(_OPTION)
    cases.append(_case(it, "Geneve, option per burst", "geneve0"))
    it.each("ip link set geneve0 gso_max_segs 1")
    cases.append(_case(it, "Geneve, option per packet", "geneve0"))
    return cases


def _place(it: Pair, name: str) -> dict[str, object]:
    """Returns the addresses of a host on the path of EV 0."""
    plan = topology.plan(it.lab.fabric.config, name)
    path, port = plan.peers[0].evs[0], it.lab.fabric.nodes[name].ports[0]
    return {
        "nic": it.interfaces[0],
        "own": plan.addresses[0],
        "arrives": plan.sids[0],
        "carrier": path.segments[0],
        "first": port.routes[1],
        "gateway": port.gateway,
        "gateway_peer": port.address,
        "inner": ADDRESSES[4][name],
        "inner_peer": ADDRESSES[4][path.peer],
        "mtu": _MTU,
    }


def _mrcd(it: Pair) -> list[Case]:
    it.write_config(hook="tc")
    it.start_daemons()
    checks, cases = Checks("virtio", it), []
    for granularity in ("burst", "packet"):
        for hook, name in (("tc", "tcx"), ("auto", "xdp + tcx")):
            it.reload(hook=hook, granularity=granularity)  # the first time nothing changes
            checks.wait_until_good(hook=[name] * pair.PLANES)
            it.wait(functools.partial(_has_granularity, checks, granularity), f"{granularity} granularity")
            cases.append(_case(it, f"mrcd, {granularity}, {name}", "mrc0"))
    return cases


def _has_granularity(checks: Checks, granularity: str) -> bool:
    return all(checks.status(name).get("granularity") == granularity for name in NAMES)


def _case(it: Pair, name: str, device: str) -> Case:
    found = [_flow(it, device) for _ in range(ROUNDS)]
    case = Case(name, tuple(round(median(values), 1) for values in zip(*found, strict=True)))
    progress(f"geneve: {name}: {case.counts}")
    return case


def _flow(it: Pair, device: str) -> list[float]:
    """Sends MEGABYTES by TCP from h0 to h1. Returns packets per 100 segments of TCP, by PLACES."""
    before = {name: _read(it, name) for name in NAMES}
    done = it.hosts["h0"].run(["iperf3", "-J", "-n", f"{MEGABYTES}000000", "-c", ADDRESSES[4]["h1"]])
    goodput, words = iperf3_result(done)
    if not goodput:
        raise MachineError(f"iperf3 failed: {words}")
    sent, received = (_read(it, name) - before[name] for name in NAMES)
    at = [(sent, "net_dev_queue"), (sent, "net_dev_xmit"), (received, "netif_receive_skb")]
    cards = [sum(found[event, nic] for nic in it.interfaces) for found, event in at]
    segments = sent["sent", "tcp"]
    progress(f"geneve: {segments} segments, {words}")
    return [100 * n / segments for n in (*cards, received["netif_receive_skb", device])]


def _read(it: Pair, name: str) -> Counter[tuple[str, str]]:
    """Returns the packets of a host so far, by event and interface."""
    return Counter({(event, nic): int(n) for event, nic, n in _COUNT.findall(it.hosts[name].do(_COUNTS))})
