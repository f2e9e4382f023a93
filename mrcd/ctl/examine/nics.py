# SPDX-License-Identifier: BSD-2-Clause
"""Checks the plane NICs: link, MTU, driver features, offloads, queues, first hops, attached programs."""

from mrcd.config.devices import peer_of, timer_of
from mrcd.ctl.examine.result import Context, Outcome, Site, check, fail, passed, skip, some, warn
from mrcd.errors import MachineError
from mrcd.net import drivers
from mrcd.net.drivers import trusts_outer_checksum
from mrcd.net.hooks import Port, choose, ports
from mrcd.net.messages import Link

XDP_BASIC, XDP_RX_SG = 0x1, 0x20  # NETDEV_XDP_ACT_*
_XDP_PAGE_MTU = 3498  # a page less headroom and skb_shared_info; longer packets need fragments
_MERGING_OFFLOADS = ("rx-udp-gro-forwarding", "rx-gro-list")
_SKEW = 2.0  # packets of the busiest queue, relative to the mean
_SKEW_PACKETS = 10_000  # fewer packets may be uneven by chance


def _site(c: Context) -> Site:
    assert c.site is not None  # needs_site
    return c.site


def _ports(c: Context) -> list[Port]:
    return list(ports(_site(c).interfaces, c.machine.links(), c.machine.device).values())


def nics(c: Context) -> list[Link]:
    """Return the plane NICs that exist."""
    links = c.machine.links()
    return [links[n] for n in _site(c).interfaces if n in links]


@check("nic.present", site=True)
def present(c: Context) -> Outcome:
    """Checks that the NIC of each plane exists."""
    links = c.machine.links()
    missing = [n for n in _site(c).interfaces if n not in links]
    if missing:
        return fail(
            f"there is no interface {some(missing)}; this machine has {some(sorted(links), 8)}",
            "set [interfaces] names, or the host's interfaces, to existing NICs",
        )
    return passed(f"{len(_site(c).interfaces)} plane NICs: {some(_site(c).interfaces, 8)}")


@check("nic.link", site=True)
def link(c: Context) -> Outcome:
    """Checks the carrier of each NIC."""
    down = [n.name for n in nics(c) if not n.up]
    if down:
        return fail(f"no carrier: {some(down)}", f"ip link set dev {down[0]} up; else check cable and switch port")
    return passed(f"carrier on {len(nics(c))} NICs")


@check("nic.mtu", site=True)
def mtu(c: Context) -> Outcome:
    """Checks that the NICs' MTU is at least that of the cluster file."""
    wanted = _site(c).mtu
    short = [n for n in nics(c) if n.mtu < wanted]
    if short:
        return fail(
            f"the planes' MTU is {wanted}, but the MTU of {some([f'{n.name} is {n.mtu}' for n in short])}",
            f"ip link set dev {short[0].name} mtu {wanted}",
        )
    return passed(f"at least {wanted} bytes on {len(nics(c))} NICs")


@check("nic.xdp", site=True)
def xdp(c: Context) -> Outcome:
    """Checks where mrcd pops packets, and whether the driver's XDP supports the MTU."""
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
            return skip("the kernel does not show drivers' XDP features (netdev family, Linux 6.3)")
        if not features & XDP_BASIC:
            without.append(n.name)
        elif _site(c).mtu > _XDP_PAGE_MTU and not features & XDP_RX_SG:
            short.append(n.name)
    if short:
        return warn(
            f"{some(short)}: the driver's XDP has no fragments, which MTU {_site(c).mtu} needs; tc pops the packets",
            f"set the MTU to at most {_XDP_PAGE_MTU}, use another driver, or keep tc",
        )
    if without:
        return warn(
            f"the driver of {some(without)} has no native XDP; tc pops the packets", "use another NIC, or keep tc"
        )
    hooks = [f"native XDP on {some([n.name for n in dict.fromkeys(native)])}"] if native else []
    hooks += [f"tc on {some(list(by_tc))}"] if by_tc else []
    return passed("; ".join(hooks) or "XDP as configured")


@check("nic.checksum", "doctor", site=True)
def checksum(c: Context) -> Outcome:
    """Checks rx-checksum behind XDP: the kernel would apply the NIC's verdict on the outer packet to the inner one."""
    if c.status is None:
        return skip("mrcd does not answer")
    points = {p["interface"]: str(p["hook"]).partition(" + ")[0] for p in c.status["planes"] if p["hook"]}
    unsafe = [
        port.physical.name
        for port in _ports(c)
        if (point := points.get(port.nic.name, "")).startswith("xdp")
        and trusts_outer_checksum(port.physical, port.device, point)
    ]
    if unsafe:
        return fail(
            f"{some(unsafe)}: rx-checksum is on behind XDP, so damaged packets may be delivered",
            f'ethtool -K {unsafe[0]} rx off; or hook = "tc" for this host',
        )
    return passed("rx-checksum does not affect packets that XDP pops")


@check("nic.hook", "doctor", site=True)
def hook(c: Context) -> Outcome:
    """Checks where mrc_pop is attached, and why there."""
    if c.status is None:
        return skip("mrcd does not answer")
    planes = c.status["planes"]
    found = sorted({f"{p['hook']} ({p['hook_reason']})" for p in planes if p["hook"]})
    refused = [p["interface"] for p in planes if "refused" in (p["hook_reason"] or "")]
    if refused:
        return warn(f"native XDP was refused on {some(refused)}: {some(found)}", "see nic.xdp and `dmesg`")
    missing = [p["interface"] for p in planes if not p["hook"]]
    if missing and c.status["attached"]:
        return fail(f"mrc_pop is not attached to {some(missing)}", "mrcctl attach; if that fails, see mrcd's log")
    return passed(some(found) or "detached")


@check("nic.merging", site=True)
def merging(c: Context) -> Outcome:
    """Checks for offloads that merge packets of the fabric: mrc_pop cannot count merged packets."""
    bad = []
    for n in nics(c):
        features = c.machine.offloads(n.name)
        bad += [(n.name, f) for f in _MERGING_OFFLOADS if features.get(f)]
    if bad:
        return fail(
            f"{some([f'{f} is on at {n}' for n, f in bad])}: merged packets are dropped (drop reason `merged`)",
            f"ethtool -K {bad[0][0]} rx-udp-gro-forwarding off rx-gro-list off",
        )
    return passed("no offload merges UDP packets")


@check("nic.segmentation", site=True)
def segmentation(c: Context) -> Outcome:
    """Checks whether the NIC or the CPU segments bursts."""
    if _site(c).granularity != "burst":
        return passed("not needed in packet granularity")
    site = _site(c)
    by_cpu: dict[tuple[str, str], list[str]] = {}
    unknown: dict[str, list[str]] = {}
    for port in _ports(c):
        found = drivers.segmentation(port.physical, port.device, srh=site.srh, udp_port=site.udp_port)
        if found.where == "cpu":
            by_cpu.setdefault((found.reason, found.remedy), []).append(port.nic.name)
        elif found.where == "unknown":
            unknown.setdefault(found.reason, []).append(port.nic.name)
    if by_cpu:
        words = "; ".join(f"{some(names)}: {reason}" for (reason, _), names in by_cpu.items())
        remedies = [remedy for _, remedy in by_cpu if remedy]
        return warn(f"the CPU segments bursts: {words}", "; ".join(remedies) or "see docs/hardware.md")
    if unknown:
        return skip("; ".join(f"{some(names)}: {reason}" for reason, names in unknown.items()))
    return passed("the NIC segments encapsulated bursts, or a virtual link passes them whole")


@check("nic.queues", site=True)
def queues(c: Context) -> Outcome:
    """Checks that receive queues are used evenly. RSS must hash the UDP source port, which differs per EV."""
    skewed, counted = [], 0
    for n in nics(c):
        counts = c.machine.receive_queues(n.name)
        total = sum(counts.values())
        if len(counts) < 2:
            continue
        counted += 1
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
    if not counted:
        return passed("the NICs have one receive queue each, or no counters per queue")
    return passed(f"receive queues are used evenly on {counted} NICs")


@check("nic.first_hop", "doctor", site=True)
def first_hop(c: Context) -> Outcome:
    """Checks that the T0 answers neighbour discovery."""
    known = c.machine.neighbours(_site(c).gateway)
    silent = [n.name for n in nics(c) if n.up and n.ifindex not in known]
    if silent:
        return fail(
            f"the first hop {_site(c).gateway} has not been resolved on {some(silent)}",
            f"ip neigh show dev {silent[0]}; check that the T0 has that address, or set [interfaces] gateway",
        )
    return passed(f"{_site(c).gateway} is resolved on {len([n for n in nics(c) if n.up])} NICs")


# ---- programs ---------------------------------------------------------------------------------

MRC_PROGRAMS = ("mrc_push", "mrc_probe", "mrc_timer", "mrc_pop", "mrc_pop_xdp")


def _points(c: Context) -> list[tuple[str, int, str, str]]:
    """Return (interface, ifindex, hook, program) for each place where mrcd attaches a program."""
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
def others(c: Context) -> Outcome:
    """Checks for other programs at mrcd's hooks. One that runs before mrcd's may keep packets from it."""
    ahead, beside, here = [], [], ""
    for name, ifindex, where, program in _points(c):
        programs = c.machine.programs(ifindex, where)
        at = next((i for i, p in enumerate(programs) if p == program), None)
        for i, p in enumerate(programs):
            if p in MRC_PROGRAMS:
                continue
            words = f"{p} at {where} of {name}"
            if where == "xdp" or (at is not None and i < at):
                ahead.append(words)
            else:
                beside.append(words)
            here = here or f"{name} {where}"
    fix = "find its owner with `bpftool net show`; if it has none: " + _removal(here)
    if ahead:
        return fail(f"before mrcd's program: {some(ahead)}" + (f"; after: {some(beside)}" if beside else ""), fix)
    if beside:
        return warn(f"other programs at mrcd's hooks: {some(beside)}", fix)
    return passed("no other programs at mrcd's hooks")


def _removal(where: str) -> str:
    name, _, hook = where.partition(" ")
    if hook == "xdp":
        return f"ip link set dev {name} xdp off"
    return f"tc filter del dev {name} {hook}, or bpftool net detach tcx_{hook} dev {name}"


@check("hooks.mrcd", "doctor", site=True)
def mrcd_programs(c: Context) -> Outcome:
    """Checks that the programs that mrcd attached are still attached."""
    if c.status is not None and not c.status["attached"]:
        return skip("the data plane is detached")
    missing = [
        f"{program} at {where} of {name}"
        for name, ifindex, where, program in _points(c)
        if where != "xdp" and program not in c.machine.programs(ifindex, where)
    ]
    if missing:
        return fail(f"no longer attached: {some(missing)}", "systemctl restart mrcd")
    return passed("mrc_push, mrc_probe, mrc_timer and mrc_pop are attached")
