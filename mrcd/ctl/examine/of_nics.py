# SPDX-License-Identifier: BSD-2-Clause
"""Checks the NICs of the planes, and the programs attached to them."""

from mrcd.config.devices import peer_of, timer_of
from mrcd.ctl.examine.checks import Context, Outcome, check, fail, passed, skip, warn
from mrcd.ctl.phrases import some
from mrcd.errors import MachineError
from mrcd.net import drivers
from mrcd.net.hooks import choose

XDP_BASIC, XDP_RX_SG = 0x1, 0x20  # NETDEV_XDP_ACT_*
_XDP_PAGE_MTU = 3498  # a page less headroom and skb_shared_info; longer packets need fragments
_MERGING_OFFLOADS = ("rx-udp-gro-forwarding", "rx-gro-list")
_SKEW = 2.0  # packets of the busiest queue, relative to the mean
_SKEW_PACKETS = 10_000  # fewer packets may be uneven by chance


@check("nic.present")
def _present(c: Context) -> Outcome:
    links = c.machine.links()
    missing = [n for n in c.wanted.interfaces if n not in links]
    if missing:
        return fail(
            f"there is no interface {some(missing)}; this machine has {some(sorted(links), 8)}",
            "set [interfaces] names, or the host's interfaces, to existing NICs",
        )
    return passed(f"{len(c.wanted.interfaces)} plane NICs: {some(c.wanted.interfaces, 8)}")


@check("nic.link")
def _link(c: Context) -> Outcome:
    down = [n.name for n in c.nics if not n.up]
    if down:
        return fail(f"no carrier: {some(down)}", f"ip link set dev {down[0]} up; else check cable and switch port")
    return passed(f"carrier on {len(c.nics)} NICs")


@check("nic.mtu")
def _mtu(c: Context) -> Outcome:
    wanted = c.mtu
    short = [n for n in c.nics if n.mtu < wanted]
    if short:
        return fail(
            f"the planes' MTU is {wanted}, but the MTU of {some([f'{n.name} is {n.mtu}' for n in short])}",
            f"ip link set dev {short[0].name} mtu {wanted}",
        )
    return passed(f"at least {wanted} bytes on {len(c.nics)} NICs")


@check("nic.xdp")
def _xdp(c: Context) -> Outcome:
    """Checks where mrcd pops packets, and whether the driver's XDP supports the MTU."""
    native, by_tc = [], dict[str, None]()
    for port in c.ports:
        try:
            points, reason = choose(c.wanted.config.hook(c.wanted.host), port.physical, port.device)
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
        elif c.mtu > _XDP_PAGE_MTU and not features & XDP_RX_SG:
            short.append(n.name)
    if short:
        return warn(
            f"{some(short)}: the driver's XDP has no fragments, which MTU {c.mtu} needs; tc pops the packets",
            f"set the MTU to at most {_XDP_PAGE_MTU}, use another driver, or keep tc",
        )
    if without:
        return warn(
            f"the driver of {some(without)} has no native XDP; tc pops the packets", "use another NIC, or keep tc"
        )
    hooks = [f"native XDP on {some([n.name for n in dict.fromkeys(native)])}"] if native else []
    hooks += [f"tc on {some(list(by_tc))}"] if by_tc else []
    return passed("; ".join(hooks) or "XDP as configured")


@check("nic.checksum", "doctor")
def _checksum(c: Context) -> Outcome:
    """Checks rx-checksum behind XDP: the kernel would apply the NIC's verdict on the outer packet to the inner one."""
    if c.status is None:
        return skip("mrcd does not answer")
    points = {p["interface"]: str(p["hook"]).partition(" + ")[0] for p in c.status["planes"] if p["hook"]}
    unsafe = [
        port.physical.name
        for port in c.ports
        if (point := points.get(port.nic.name, "")).startswith("xdp")
        and drivers.trusts_outer_checksum(port.physical, port.device, point)
    ]
    if unsafe:
        return fail(
            f"{some(unsafe)}: rx-checksum is on behind XDP, so damaged packets may be delivered",
            f'ethtool -K {unsafe[0]} rx off; or hook = "tc" for this host',
        )
    return passed("rx-checksum does not affect packets that XDP pops")


@check("nic.hook", "doctor")
def _hook(c: Context) -> Outcome:
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


@check("nic.merging")
def _merging(c: Context) -> Outcome:
    """Checks for offloads that merge packets of the fabric: mrc_pop cannot count merged packets."""
    bad = []
    for n in c.nics:
        features = c.machine.offloads(n.name)
        bad += [(n.name, f) for f in _MERGING_OFFLOADS if features.get(f)]
    if bad:
        return fail(
            f"{some([f'{f} is on at {n}' for n, f in bad])}: merged packets are dropped (drop reason `merged`)",
            f"ethtool -K {bad[0][0]} rx-udp-gro-forwarding off rx-gro-list off",
        )
    return passed("no offload merges UDP packets")


@check("nic.segmentation")
def _segmentation(c: Context) -> Outcome:
    if c.wanted.config.cluster.granularity == "packet":
        return passed("not needed in packet granularity")
    by_cpu: dict[tuple[str, str], list[str]] = {}
    unknown: dict[str, list[str]] = {}
    for port in c.ports:
        found = drivers.segmentation(
            port.physical, port.device, srh=c.wanted.needs_srh, udp_port=c.wanted.config.cluster.udp_port
        )
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


@check("nic.queues")
def _queues(c: Context) -> Outcome:
    """Checks that RSS hashes the UDP source port, and where each EV has its own, that queues are used evenly."""
    several = (n.name for n in c.nics if len(c.machine.receive_queues(n.name)) != 1)
    told = {name: c.machine.hashes_ports(name) for name in several}
    if blind := [name for name, hashes in told.items() if hashes is False]:
        return warn(
            f"all packets of a host come by one queue: {some(blind)} do not hash UDP ports",
            f"ethtool -N {blind[0]} rx-flow-hash udp6 sdfn",
        )
    if c.wanted.config.source_port == "flow":
        if not any(told.values()):
            return skip("no driver tells whether it hashes UDP ports")
        return passed("NICs hash UDP ports, and keep each flow in one queue")
    skewed, counted = [], 0
    for n in c.nics:
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


@check("nic.first_hop", "doctor")
def _first_hop(c: Context) -> Outcome:
    known = c.machine.neighbours(str(c.wanted.config.interfaces.gateway))
    silent = [n.name for n in c.nics if n.up and n.ifindex not in known]
    if silent:
        return fail(
            f"the first hop {c.wanted.config.interfaces.gateway} has not been resolved on {some(silent)}",
            f"ip neigh show dev {silent[0]}; check that the T0 has that address, or set [interfaces] gateway",
        )
    return passed(f"{c.wanted.config.interfaces.gateway} is resolved on {len([n for n in c.nics if n.up])} NICs")


# ---- programs ---------------------------------------------------------------------------------

MRC_PROGRAMS = ("mrc_push", "mrc_probe", "mrc_timer", "mrc_pop", "mrc_pop_xdp")


def _points(c: Context) -> list[tuple[str, int, str, str]]:
    """Return (interface, ifindex, hook, program) for each place where mrcd attaches a program."""
    links, overlay = c.machine.links(), c.wanted.config.overlay.interface
    points = []
    for port in c.ports:
        nic = port.physical
        points += [(nic.name, nic.ifindex, "xdp", "mrc_pop_xdp"), (nic.name, nic.ifindex, "ingress", "mrc_pop")]
    own = [
        (peer_of(overlay), "ingress", "mrc_push"),
        (peer_of(overlay), "egress", "mrc_probe"),
        (timer_of(overlay), "ingress", "mrc_timer"),
        (overlay, "egress", "mrc_push"),
    ]
    for name, where, program in own:
        if name in links:
            points.append((name, links[name].ifindex, where, program))
    return list(dict.fromkeys(points))


@check("hooks.other_programs")
def _others(c: Context) -> Outcome:
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


@check("hooks.mrcd", "doctor")
def _mrcd_programs(c: Context) -> Outcome:
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
