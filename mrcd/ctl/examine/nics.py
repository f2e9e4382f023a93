"""Checks of the plane NICs: link, MTU, what the driver can, offloads, queues, first hops, who else is attached."""

from mrcd.config.devices import peer_of, timer_of
from mrcd.ctl.examine.result import Context, Outcome, Site, check, fail, passed, skip, some, warn
from mrcd.errors import MachineError
from mrcd.net.drivers import cut, trusts_the_outer
from mrcd.net.hooks import Port, choose, ports
from mrcd.net.messages import Link

XDP_BASIC, XDP_RX_SG = 0x1, 0x20  # NETDEV_XDP_ACT_*
_XDP_PAGE_MTU = 3498  # what one page holds, with headroom and the skb's own data: longer packets need fragments
_GLUE = ("rx-udp-gro-forwarding", "rx-gro-list")
_SKEW = 2.0  # the busiest queue, against the mean
_SKEW_PACKETS = 10_000  # below, chance


def _site(c: Context) -> Site:
    assert c.site is not None  # needs_site
    return c.site


def _ports(c: Context) -> list[Port]:
    return list(ports(_site(c).interfaces, c.machine.links(), c.machine.device).values())


def nics(c: Context) -> list[Link]:
    """The plane NICs that are there."""
    links = c.machine.links()
    return [links[n] for n in _site(c).interfaces if n in links]


@check("nic.present", site=True)
def present(c: Context) -> Outcome:
    """Every plane has its NIC."""
    links = c.machine.links()
    missing = [n for n in _site(c).interfaces if n not in links]
    if missing:
        return fail(
            f"there is no interface {some(missing)}; this machine has {some(sorted(links), 8)}",
            "name the NICs in [interfaces] names, or in the host's interfaces",
        )
    return passed(f"{len(_site(c).interfaces)} plane NICs: {some(_site(c).interfaces, 8)}")


@check("nic.link", site=True)
def link(c: Context) -> Outcome:
    """Carrier."""
    down = [n.name for n in nics(c) if not n.up]
    if down:
        return fail(f"no carrier: {some(down)}", f"ip link set dev {down[0]} up; else cable, transceiver, switch port")
    return passed(f"carrier on {len(nics(c))} NICs")


@check("nic.mtu", site=True)
def mtu(c: Context) -> Outcome:
    """The MTU that the cluster file promises to all."""
    wanted = _site(c).mtu
    short = [n for n in nics(c) if n.mtu < wanted]
    if short:
        return fail(
            f"the planes' MTU is {wanted}, but that of {some([f'{n.name} is {n.mtu}' for n in short])}",
            f"ip link set dev {short[0].name} mtu {wanted}",
        )
    return passed(f"at least {wanted} bytes on {len(nics(c))} NICs")


@check("nic.xdp", site=True)
def xdp(c: Context) -> Outcome:
    """Where mrcd will pop packets, and whether the driver can do it at this MTU."""
    native, by_tc = [], dict[str, None]()
    for port in _ports(c):
        try:
            points, reason = choose(_site(c).hook, port.physical, port.device)
        except MachineError as e:
            return fail(e.args[0], e.hint or "")
        if "xdp" in points:
            native.append(port.physical)
        elif not points:
            by_tc[f"{port.physical.name}: {reason}"] = None
    without, short = [], []
    for n in dict.fromkeys(native):
        features = c.machine.xdp_features(n.ifindex)
        if features is None:
            return skip("the kernel does not tell what drivers can (netdev family, kernel 6.3)")
        if not features & XDP_BASIC:
            without.append(n.name)
        elif _site(c).mtu > _XDP_PAGE_MTU and not features & XDP_RX_SG:
            short.append(n.name)
    if short:
        return warn(
            f"{some(short)}: the driver's XDP takes no fragments, so not MTU {_site(c).mtu}; tc does the work",
            f"an MTU of {_XDP_PAGE_MTU} at most, another driver, or leave it at tc",
        )
    if without:
        return warn(f"the driver of {some(without)} has no native XDP: tc does the work", "nothing, or another NIC")
    said = [f"native XDP on {some([n.name for n in dict.fromkeys(native)])}"] if native else []
    said += [f"tc on {some(list(by_tc))}"] if by_tc else []
    return passed("; ".join(said) or "XDP as configured")


@check("nic.checksum", "doctor", site=True)
def checksum(c: Context) -> Outcome:
    """Behind XDP the kernel takes a NIC's verdict on the outer packet for one on the inner packet."""
    if c.status is None:
        return skip("mrcd does not answer")
    points = {p["interface"]: str(p["hook"]).partition(" + ")[0] for p in c.status["planes"] if p["hook"]}
    vouching = [
        port.physical.name
        for port in _ports(c)
        if (point := points.get(port.nic.name, "")).startswith("xdp")
        and trusts_the_outer(port.physical, port.device, point)
    ]
    if vouching:
        return fail(
            f"{some(vouching)}: rx-checksum is on behind XDP, so that damaged packets may be delivered",
            f'ethtool -K {vouching[0]} rx off; or hook = "tc" for this host',
        )
    return passed("no NIC vouches for the checksums of packets that XDP pops")


@check("nic.hook", "doctor", site=True)
def hook(c: Context) -> Outcome:
    """Where mrc_pop really is, and why."""
    if c.status is None:
        return skip("mrcd does not answer")
    planes = c.status["planes"]
    said = sorted({f"{p['hook']} ({p['hook_reason']})" for p in planes if p["hook"]})
    refused = [p["interface"] for p in planes if "refused" in (p["hook_reason"] or "")]
    if refused:
        return warn(f"native XDP was refused on {some(refused)}: {some(said)}", "see nic.xdp and `dmesg`")
    missing = [p["interface"] for p in planes if not p["hook"]]
    if missing and c.status["attached"]:
        return fail(f"mrc_pop is not attached to {some(missing)}", "mrcctl attach; else see mrcd's log")
    return passed(some(said) or "detached")


@check("nic.merging", site=True)
def merging(c: Context) -> Outcome:
    """Offloads that merge the fabric's packets: mrc_pop cannot count what was glued together."""
    bad = []
    for n in nics(c):
        features = c.machine.offloads(n.name)
        bad += [(n.name, f) for f in _GLUE if features.get(f)]
    if bad:
        return fail(
            f"{some([f'{f} is on at {n}' for n, f in bad])}: merged packets are dropped as `glued`",
            f"ethtool -K {bad[0][0]} rx-udp-gro-forwarding off rx-gro-list off",
        )
    return passed("no offload merges UDP packets")


@check("nic.segmentation", site=True)
def segmentation(c: Context) -> Outcome:
    """Bursts are cut by the NIC, or by the CPU."""
    if _site(c).granularity != "burst":
        return passed("not needed in packet granularity")
    site = _site(c)
    by_cpu: dict[tuple[str, str], list[str]] = {}
    unknown: dict[str, list[str]] = {}
    for port in _ports(c):
        found = cut(port.physical, port.device, srh=site.srh, udp_port=site.udp_port)
        if found.where == "cpu":
            by_cpu.setdefault((found.reason, found.remedy), []).append(port.nic.name)
        elif found.where == "unknown":
            unknown.setdefault(found.reason, []).append(port.nic.name)
    if by_cpu:
        words = "; ".join(f"{some(names)}: {reason}" for (reason, _), names in by_cpu.items())
        remedies = [remedy for _, remedy in by_cpu if remedy]
        return warn(f"the CPU cuts bursts: {words}", "; ".join(remedies) or "nothing; see docs/hardware.md")
    if unknown:
        return skip("; ".join(f"{some(names)}: {reason}" for reason, names in unknown.items()))
    return passed("encapsulated bursts are cut by the NIC, or pass a virtual link whole")


@check("nic.queues", site=True)
def queues(c: Context) -> Outcome:
    """Receive-side scaling sees the EV in the source port, if it is told to look."""
    skewed, told = [], 0
    for n in nics(c):
        counts = c.machine.receive_queues(n.name)
        total = sum(counts.values())
        if len(counts) < 2:
            continue
        told += 1
        if total >= _SKEW_PACKETS and max(counts.values()) > _SKEW * total / len(counts):
            busiest = max(counts, key=lambda q: counts[q])
            skewed.append(
                (n.name, f"queue {busiest} of {n.name}'s {len(counts)} has {100 * counts[busiest] // total} %")
            )
    if skewed:
        return warn(
            f"receive queues are used unevenly: {some([words for _, words in skewed])}",
            f"ethtool -N {skewed[0][0]} rx-flow-hash udp6 sdfn",
        )
    if not told:
        return passed("the NICs have one receive queue each, or do not tell")
    return passed(f"receive queues are used evenly on {told} NICs")


@check("nic.first_hop", "doctor", site=True)
def first_hop(c: Context) -> Outcome:
    """The T0 answers neighbour discovery."""
    known = c.machine.neighbours(_site(c).gateway)
    silent = [n.name for n in nics(c) if n.up and n.ifindex not in known]
    if silent:
        return fail(
            f"the first hop {_site(c).gateway} has not been resolved on {some(silent)}",
            f"ip neigh show dev {silent[0]}; does the T0 have that address? else set [interfaces] gateway",
        )
    return passed(f"{_site(c).gateway} is resolved on {len([n for n in nics(c) if n.up])} NICs")


# ---- programs ---------------------------------------------------------------------------------

OURS = ("mrc_push", "mrc_probe", "mrc_timer", "mrc_pop", "mrc_pop_xdp")


def _points(c: Context) -> list[tuple[str, int, str, str]]:
    """Interface, its number, hook, and the program of ours that belongs there."""
    site, links = _site(c), c.machine.links()
    by_index = {x.ifindex: x for x in links.values()}
    points = []
    for n in nics(c):
        physical = by_index.get(n.lower, n) if n.vlan and n.lower is not None else n
        points += [
            (physical.name, physical.ifindex, "xdp", "mrc_pop_xdp"),
            (physical.name, physical.ifindex, "ingress", "mrc_pop"),
        ]
    own = [
        (peer_of(site.overlay), "ingress", "mrc_push"),
        (peer_of(site.overlay), "egress", "mrc_probe"),
        (timer_of(site.overlay), "ingress", "mrc_timer"),
    ]
    if site.granularity == "burst":
        own.append((site.overlay, "egress", "mrc_push"))
    for name, where, program in own:
        if name in links:
            points.append((name, links[name].ifindex, where, program))
    return list(dict.fromkeys(points))


@check("hooks.other_programs", site=True)
def foreign(c: Context) -> Outcome:
    """Programs of others at our hooks: those in front of ours may keep packets from it."""
    ahead, beside, here = [], [], ""
    for name, ifindex, where, ours in _points(c):
        programs = c.machine.programs(ifindex, where)
        at = next((i for i, p in enumerate(programs) if p == ours), None)
        for i, p in enumerate(programs):
            if p in OURS:
                continue
            words = f"{p} at {where} of {name}"
            if where == "xdp" or (at is not None and i < at):
                ahead.append(words)
            else:
                beside.append(words)
            here = here or f"{name} {where}"
    fix = "bpftool net show; whose is it? if nobody's: " + _removal(here)
    if ahead:
        return fail(f"in front of ours: {some(ahead)}" + (f"; behind: {some(beside)}" if beside else ""), fix)
    if beside:
        return warn(f"other programs at our hooks: {some(beside)}", fix)
    return passed("no other programs at our hooks")


def _removal(where: str) -> str:
    name, _, hook = where.partition(" ")
    if hook == "xdp":
        return f"ip link set dev {name} xdp off"
    return f"tc filter del dev {name} {hook}, or bpftool net detach tcx_{hook} dev {name}"


@check("hooks.ours", "doctor", site=True)
def ours(c: Context) -> Outcome:
    """What mrcd has attached is still there."""
    if c.status is not None and not c.status["attached"]:
        return skip("the data plane is detached")
    missing = [
        f"{program} at {where} of {name}"
        for name, ifindex, where, program in _points(c)
        if where != "xdp" and program not in c.machine.programs(ifindex, where)
    ]
    if missing:
        return fail(f"gone: {some(missing)}", "systemctl restart mrcd")
    return passed("mrc_push, mrc_probe, mrc_timer and mrc_pop are where they belong")
