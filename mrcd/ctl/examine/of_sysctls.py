# SPDX-License-Identifier: BSD-2-Clause
"""Checks the sysctls that SRv6 and TCP over many paths need."""

from mrcd.ctl.examine.checks import Context, Outcome, check, fail, passed, skip, warn
from mrcd.ctl.phrases import some

_NET = "/proc/sys/net"
_ROUND_TRIP_S = 200e-6  # round-trip time of a busy fabric
_UDP_BUFFER = 1 << 20  # bytes: some hundred packets on each plane


def _number(c: Context, path: str) -> int | None:
    text = c.machine.text(f"{_NET}/{path}")
    return int(text.split()[-1]) if text and text.split()[-1].lstrip("-").isdigit() else None


@check("sysctl.seg6_enabled")
def _seg6_enabled(c: Context) -> Outcome:
    """Checks that the kernel decapsulates no SRH at the plane addresses: mrcd needs its SIDs only."""
    if _number(c, "ipv6/conf/all/seg6_enabled") != 1:
        return passed("seg6_enabled is off on all: the kernel decapsulates at its SIDs only")
    on = [n.name for n in c.nics if _number(c, f"ipv6/conf/{n.name}/seg6_enabled") == 1]
    if not on:
        return passed("seg6_enabled is off on the plane NICs: the kernel decapsulates at its SIDs only")
    return warn(
        f"seg6_enabled is on at {some(on)}: whoever reaches a plane address can have the kernel deliver inner packets "
        "behind an SRH, past mrcd's checks",
        "; ".join(f"sysctl -w net.ipv6.conf.{n}.seg6_enabled=0" for n in on),
    )


@check("sysctl.rp_filter")
def _rp_filter(c: Context) -> Outcome:
    """Checks for strict reverse path filters: they drop packets that arrive on mrc0 or a NIC that has no route back."""
    everywhere = _number(c, "ipv4/conf/all/rp_filter") or 0
    names = [*(n.name for n in c.nics), *([c.wanted.config.overlay.interface] if c.installed else [])]
    strict = [n for n in names if max(everywhere, _number(c, f"ipv4/conf/{n}/rp_filter") or 0) == 1]
    if not strict:
        return passed("no strict reverse path filter on " + ("mrc0 and " if c.installed else "") + "the plane NICs")
    if not c.installed:
        return passed(f"rp_filter is strict on {some(strict)}: mrcd sets it to loose")
    return fail(
        f"rp_filter is strict on {some(strict)}: sprayed IPv4 packets are dropped there",
        f"sysctl -w net.ipv4.conf.{strict[0]}.rp_filter=2",
    )


@check("sysctl.forwarding")
def _forwarding(c: Context) -> Outcome:
    networks = [str(p) for p in c.wanted.host.prefixes if p.prefixlen < p.max_prefixlen]
    off = [
        key
        for key, colon in (("net.ipv4.ip_forward", False), ("net.ipv6.conf.all.forwarding", True))
        if any((":" in n) == colon for n in networks) and _number(c, key.removeprefix("net.").replace(".", "/")) == 0
    ]
    if off:
        return warn(
            f"{some(off)} {'are' if len(off) > 1 else 'is'} 0, but {some(networks)} lie behind this host",
            "; ".join(f"sysctl -w {key}=1" for key in off),
        )
    return passed("this host forwards" if networks else "no networks lie behind this host")


@check("tcp.sack")
def _sack(c: Context) -> Outcome:
    """Checks for TCP SACK: without it TCP takes reordering for loss."""
    value = _number(c, "ipv4/tcp_sack")
    if value is None:
        return skip("the kernel has no tcp_sack")
    if value == 0:
        return fail("tcp_sack is 0: sprayed flows will collapse", "sysctl -w net.ipv4.tcp_sack=1")
    return passed("tcp_sack is on")


@check("tcp.recovery")
def _recovery(c: Context) -> Outcome:
    """Checks for RACK (RFC 8985) with an adaptive reordering window."""
    value = _number(c, "ipv4/tcp_recovery")
    if value is None:
        return skip("the kernel has no tcp_recovery")
    if not value & 1 or value & 2:
        problem = "RACK is off" if not value & 1 else "RACK's reordering window does not adapt"
        return warn(
            f"tcp_recovery is {value}: {problem}, so reordering costs retransmissions",
            "sysctl -w net.ipv4.tcp_recovery=1",
        )
    return passed(f"RACK is on (tcp_recovery = {value})")


@check("tcp.reordering")
def _reordering(c: Context) -> Outcome:
    most, wanted = _number(c, "ipv4/tcp_max_reordering"), c.plan.config.overlay.reordering if c.plan else 300
    if most is None:
        return skip("the kernel has no tcp_max_reordering")
    if most < wanted:
        return warn(
            f"tcp_max_reordering is {most}, less than the routes' reordering metric {wanted}",
            f"sysctl -w net.ipv4.tcp_max_reordering={wanted}",
        )
    return passed(f"tcp_max_reordering is {most}")


@check("tcp.buffers")
def _buffers(c: Context) -> Outcome:
    """Checks that TCP buffers hold twice the bandwidth-delay product of all planes."""
    speeds = [s for s in (c.machine.speed_mbit(n.name) for n in c.nics) if s]
    if not speeds:
        return skip("the NICs do not report their speed")
    need = int(sum(speeds) * 1e6 / 8 * _ROUND_TRIP_S * 2)
    small = {
        key: value
        for key in ("tcp_rmem", "tcp_wmem")
        if (value := _number(c, f"ipv4/{key}")) is not None and value < need
    }
    if small:
        key, value = next(iter(small.items()))
        low = (c.machine.text(f"{_NET}/ipv4/{key}") or "4096 131072").split()[:2]
        return warn(
            f"the maximum of {key} is {value} bytes; {sum(speeds) / 1000:g} Gbit/s with 200 µs round trips need {need}",
            f'sysctl -w net.ipv4.{key}="{" ".join(low)} {need}"',
        )
    return passed(f"tcp_rmem and tcp_wmem are large enough for {sum(speeds) / 1000:g} Gbit/s")


@check("udp.buffers")
def _udp_buffers(c: Context) -> Outcome:
    values = {k: _number(c, f"core/{k}") for k in ("rmem_max", "wmem_max")}
    if None in values.values():
        return skip("only the initial network namespace shows rmem_max")
    small = [k for k, v in values.items() if v is not None and v < _UDP_BUFFER]
    if small:
        return warn(
            f"{some([f'net.core.{k} is {values[k]}' for k in small])} bytes: UDP bursts from all planes may not fit",
            "; ".join(f"sysctl -w net.core.{k}={4 * _UDP_BUFFER}" for k in small),
        )
    return passed(f"net.core.rmem_max is {values['rmem_max']} bytes")
