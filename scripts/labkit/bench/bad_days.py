# SPDX-License-Identifier: BSD-2-Clause
"""Lists bad days of a host as data: what other programs, and people, do to a host on which mrcd runs."""

import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from labkit.cluster.api import Lab
from labkit.cluster.patience import wait_for
from labkit.traffic.candidates import SOURCE
from mrcd.kernel import libbpf

PEER4, PEER6, OWN4 = "10.99.0.3", "fd00:99::3", "10.99.0.1"
# Paths that fail on many days in a row return within the patience for each.
FABRIC = {"hosts": 4, "hosts_per_t0": 2, "planes": 4, "t1": 2, "health": {"hold_down_max_ms": 8000}}
Step = str | Callable[[Lab], object]


@dataclass(frozen=True)
class Day:
    """A disturbance of a host, with its end and the cause that status must name.

    Steps are shell commands in SOURCE, or functions. Without a `cause` status must name nothing, and mrcd repairs what
    was broken. `lasts_s`: seconds from the first step to the end.
    """

    name: str
    break_: tuple[Step, ...]
    mend: tuple[Step, ...] = ()
    cause: str = ""
    may_name: tuple[str, ...] = ()  # status may name these for a moment
    lasts_s: float = 2.5
    peer: str = PEER4  # that is pinged
    cuts_off: bool = False  # a peer cannot be reached as long as it lasts: that is another program's will


def _signal(number: signal.Signals) -> Callable[[Lab], None]:
    def send(lab: Lab) -> None:
        pid = lab.daemon_pid(SOURCE)
        assert pid is not None
        os.kill(pid, number)

    return send


def _start(lab: Lab) -> None:
    wait_for("mrcd has ended", lambda: lab.daemon_pid(SOURCE) is None, 10.0)
    Lab(lab.state.name, say=lambda _: None).up(**FABRIC)


def _remove_pins(lab: Lab) -> None:
    directory = lab.run_dir(SOURCE) / "bpf" / "mrcd"
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def _remove_socket(lab: Lab) -> None:
    (lab.run_dir(SOURCE) / "mrcd.sock").unlink()


_BEFORE = 1 << 3  # BPF_F_BEFORE: ahead of the programs that are attached
_SCHED_CLS = 3  # BPF_PROG_TYPE_SCHED_CLS
_SHOT = "b700000002000000 9500000000000000"  # r0 = TC_ACT_SHOT; exit
_links: list[int] = []


def _attach(interface: str, *, is_ingress: bool, is_filter: bool) -> Step:
    """Returns a step that attaches a program which drops all packets, ahead of mrcd's if it is no filter."""
    at = (libbpf.TC_INGRESS, libbpf.TCX_INGRESS) if is_ingress else (libbpf.TC_EGRESS, libbpf.TCX_EGRESS)

    def attach(lab: Lab) -> None:
        code = bytes.fromhex(_SHOT)
        program = libbpf.check("load", libbpf.lib().bpf_prog_load(_SCHED_CLS, b"swallow", b"GPL", code, 2, None))
        try:
            with lab.inside(SOURCE):
                ifindex = socket.if_nametoindex(interface)
                if is_filter:
                    libbpf.attach_clsact(program, ifindex, at[0], 77, 77)
                else:
                    _links.append(libbpf.create_link(program, ifindex, at[1], _BEFORE))
        finally:
            os.close(program)

    return attach


def _detach(_: Lab) -> None:
    while _links:
        os.close(_links.pop())


def _swallowed(what: str, point: str, interface: str, cause: str) -> Day:
    """Returns the day on which another program drops all packets at a tc hook of an interface."""
    is_filter = what == "tc filter"
    return Day(
        f"a {what} swallows all at {point} of {interface}",
        (_attach(interface, is_ingress=point == "ingress", is_filter=is_filter),),
        (f"tc qdisc del dev {interface} clsact" if is_filter else _detach,),
        cause,
        may_name=("peer_nic", "t0"),  # the EVs to busy peers fail first
        lasts_s=6.0,
        cuts_off=cause == "undelivered",
    )


_SWALLOWED = (
    ("ingress", "p1", "own_cable"),
    ("egress", "p1", "own_cable"),
    ("egress", "mrc0", "undelivered"),
    ("ingress", "mrc0", "undelivered"),
    ("ingress", "tmrc0", ""),  # the daemon runs the tick
)
# A filter comes after mrcd's programs, which leave it the packets of others: neighbours, and nothing at mrc0.
_SWALLOWED_BY_FILTERS = (
    ("ingress", "p1", ""),
    ("egress", "p1", "own_cable"),
    ("egress", "mrc0", ""),
    ("ingress", "mrc0", "undelivered"),
)
_ROUTES = (f"ip route replace {PEER4} dev p0 metric 100", f"ip route del {PEER4} metric 100", "ip route flush proto 77")
_MANY = "for i in $(seq 600); do ip link add v$i type veth peer name w$i; ip link del v$i; done"

DAYS = (
    # ---- routes and rules ----
    Day("its IPv4 routes are flushed", ("ip route flush proto 77",)),
    Day("its IPv6 routes are flushed", ("ip -6 route flush proto 77",), peer=PEER6),
    Day("all routes of the main table are flushed", ("ip route flush table main", "ip -6 route flush table main")),
    Day("its route to a peer is replaced", (f"ip route replace {PEER4} dev p0 metric 100",)),
    Day("its IPv6 route to a peer is replaced", (f"ip -6 route replace {PEER6} dev p0 metric 100",), peer=PEER6),
    Day("its route to a peer is deleted", (f"ip route del {PEER4} metric 100",)),
    Day("its fallback route to a peer is deleted", (f"ip route del {PEER4} metric 4000",)),
    Day("its routes are replaced, deleted and flushed 30 times", _ROUTES * 10, may_name=("other_route",)),
    Day(
        "another program's route to a peer has a better metric",
        (f"ip route add {PEER4} dev p0 metric 1",),
        (f"ip route del {PEER4} metric 1",),
        "other_route",
        cuts_off=True,
    ),
    Day(
        "another program's wider route has a better metric",
        ("ip route add 10.99.0.0/16 dev p0 metric 1",),
        ("ip route del 10.99.0.0/16 metric 1",),
    ),
    Day(
        "another program's blackhole comes first",
        (f"ip route add blackhole {PEER4} metric 1",),
        (f"ip route del blackhole {PEER4} metric 1",),
        "other_route",
        cuts_off=True,
    ),
    Day(
        "a rule by destination leads to another table",
        ("ip route add 10.99.0.0/16 dev p0 table 99", "ip rule add pref 100 to 10.99.0.0/16 lookup 99"),
        ("ip rule del pref 100", "ip route flush table 99"),
        "other_route",
        cuts_off=True,
    ),
    Day(
        "a rule by source leads to another table",
        ("ip route add 10.99.0.0/16 dev p0 table 99", f"ip rule add pref 100 from {OWN4} lookup 99"),
        ("ip rule del pref 100", "ip route flush table 99"),
        "other_route",
        cuts_off=True,
    ),
    Day(
        "a rule refuses packets to a peer",
        (f"ip rule add pref 100 to {PEER4} prohibit",),
        ("ip rule del pref 100",),
        "other_route",
        cuts_off=True,
    ),
    Day(
        "an IPv6 rule leads to another table",
        ("ip -6 route add fd00::/16 dev p0 table 99", "ip -6 rule add pref 100 to fd00:99::/32 lookup 99"),
        ("ip -6 rule del pref 100", "ip -6 route flush table 99"),
        "other_route",
        peer=PEER6,
        cuts_off=True,
    ),
    Day(
        "an empty table has a rule",
        ("ip rule add pref 100 to 10.99.0.0/16 lookup 98",),
        ("ip rule del pref 100",),
    ),
    Day(
        "this host gets a peer's address",
        (f"ip addr add {PEER4}/32 dev lo",),
        (f"ip addr del {PEER4}/32 dev lo",),
        "other_route",
        cuts_off=True,
    ),
    # ---- addresses and interfaces ----
    Day("its own address is deleted from mrc0", (f"ip addr del {OWN4}/32 dev mrc0",)),
    Day("all addresses of mrc0 are flushed", ("ip addr flush dev mrc0",)),
    Day("mrc0 is switched off", ("ip link set mrc0 down",)),
    Day("mrc0 is deleted", ("ip link del mrc0",)),
    Day("the other end of mrc0 is switched off", ("ip link set pmrc0 down",)),
    Day("the timer packet's interface is deleted", ("ip link del tmrc0",)),
    Day("mrc0 gets another MTU", ("ip link set mrc0 mtu 1500",)),
    Day("the addresses of a NIC are flushed", ("ip -6 addr flush dev p2",)),
    Day("the neighbours of a NIC are flushed", ("ip -6 neigh flush dev p2",)),
    Day("a NIC is switched off", ("ip link set p1 down",), ("ip link set p1 up",), "own_nic"),
    Day(
        "a NIC is renamed",
        ("ip link set p1 down", "ip link set p1 name x1", "ip link set x1 up"),
        ("ip link set x1 down", "ip link set x1 name p1", "ip link set p1 up"),
        "own_nic",
    ),
    Day(
        "a firewall drops what a peer sends",
        (
            "nft add table inet f",
            "nft 'add chain inet f i { type filter hook input priority 0; }'",
            f"nft add rule inet f i iif mrc0 ip saddr {PEER4} drop",
        ),
        ("nft delete table inet f",),
        "undelivered",
        cuts_off=True,
    ),
    Day("a NIC's MTU is 1400", ("ip link set p1 mtu 1400",), ("ip link set p1 mtu 9100",), "own_nic"),
    Day(
        "a NIC has no IPv6",
        ("sysctl -qw net.ipv6.conf.p1.disable_ipv6=1",),
        ("sysctl -qw net.ipv6.conf.p1.disable_ipv6=0",),
        "own_nic",
    ),
    Day(
        "the T0's port is off",
        (lambda lab: lab.fail(f"nic:{SOURCE}:1", down=True),),
        (Lab.heal,),  # with the routes that a port loses
        "own_cable",
        may_name=("peer_nic",),
    ),
    Day(
        "a NIC is shaped to 100 Mbit/s",
        ("tc qdisc add dev p1 root tbf rate 100mbit burst 100k latency 50ms",),
        ("tc qdisc del dev p1 root",),
    ),
    Day("600 links come and go", (_MANY,), lasts_s=5.0),
    # ---- sysctls, offloads, hooks ----
    Day("IPv6 forwarding is switched on", ("sysctl -qw net.ipv6.conf.all.forwarding=1",)),
    Day("strict reverse-path filters", ("sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.mrc0.rp_filter=1",)),
    Day("seg6 is switched off on a NIC", ("sysctl -qw net.ipv6.conf.p0.seg6_enabled=0",)),
    Day("a NIC's clsact is deleted", ("tc qdisc add dev p0 clsact; tc qdisc del dev p0 clsact",)),
    Day("BIG TCP on mrc0", ("ip link set mrc0 gso_max_size 200000 gro_max_size 200000",)),
    Day("GRO is switched off on a NIC", ("ethtool -K p0 gro off",), ("ethtool -K p0 gro on",)),
    # ---- programs that swallow packets ----
    *(_swallowed("TCX program", point, interface, cause) for point, interface, cause in _SWALLOWED),
    *(_swallowed("tc filter", point, interface, cause) for point, interface, cause in _SWALLOWED_BY_FILTERS),
    # ---- the daemon ----
    Day("mrcd is killed, and started again", (_signal(signal.SIGKILL), _start), lasts_s=4.0),
    Day("mrcd stands still for 2 s", (_signal(signal.SIGSTOP), "sleep 2", _signal(signal.SIGCONT))),
    Day("its pins are removed", (_remove_pins,)),
    Day("its control socket is removed", (_remove_socket,)),
)
