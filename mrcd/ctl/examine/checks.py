# SPDX-License-Identifier: BSD-2-Clause
"""The checks of `mrcctl preflight` and `mrcctl doctor`: a function each, which reads a Context and makes an Outcome."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from mrcd.config.devices import peer_of, timer_of
from mrcd.ctl.commands.status import named
from mrcd.ctl.packets.exchange import Tally
from mrcd.ctl.phrases import some
from mrcd.errors import MachineError, MrcdError
from mrcd.fabric.topology import Plan
from mrcd.net import drivers
from mrcd.net.hooks import Port, choose, ports
from mrcd.net.messages import Link

if TYPE_CHECKING:
    from mrcd.ctl.examine.machine import Machine

Status = Literal["PASS", "WARN", "FAIL", "SKIP"]
When = Literal["both", "preflight", "doctor"]
Document = dict[str, Any]


class NoFile(Exception):
    """A check needs a cluster file, and none was given."""


@dataclass(frozen=True)
class Outcome:
    """The result of a check. `evidence` says what was found; `fix` is a command or an action, if something is wrong."""

    status: Status
    evidence: str
    fix: str = ""


def passed(evidence: str) -> Outcome:
    """Return a PASS."""
    return Outcome("PASS", evidence)


def warn(evidence: str, fix: str) -> Outcome:
    """Return a WARN: mrcd works, but worse than it could."""
    return Outcome("WARN", evidence, fix)


def fail(evidence: str, fix: str) -> Outcome:
    """Return a FAIL: mrcd does not work, or loses packets."""
    return Outcome("FAIL", evidence, fix)


def skip(reason: str) -> Outcome:
    """Return a SKIP: the check cannot run, for this reason."""
    return Outcome("SKIP", reason)


@dataclass(frozen=True)
class Answers:
    """The probes sent and answered on one EV: small ones, ones of the planes' MTU, ones a byte longer."""

    peer: str
    ev: int
    plane: int
    state: str
    small: Tally
    full: Tally
    over: Tally


@dataclass(frozen=True)
class Context:
    """The input of checks. `installed`: mrcd runs here (doctor); else the later fields are empty."""

    machine: "Machine"
    plan: Plan | None = None  # of the cluster file, as this host sees it
    installed: bool = False
    pins: str | None = None  # directory of the pinned tables
    status: Mapping[str, Any] | None = None
    peers: Sequence[Mapping[str, Any]] = ()
    answers: Sequence[Answers] = ()
    overlay: Mapping[str, str] = field(default_factory=dict)  # peer → the problem with full packets into mrc0
    down: str | None = None  # why mrcd does not answer
    is_alive: bool = False  # it runs all the same

    @property
    def wanted(self) -> Plan:
        """The plan. Raises NoFile without one, by which a check that needs it is skipped."""
        if self.plan is None:
            raise NoFile
        return self.plan

    @property
    def mtu(self) -> int:
        """The planes' MTU."""
        return self.wanted.config.cluster.mtu

    @property
    def nics(self) -> list[Link]:
        """The plane NICs that exist."""
        links = self.machine.links()
        return [links[n] for n in self.wanted.interfaces if n in links]

    @property
    def ports(self) -> list[Port]:
        """The plane NICs that exist, each with the NIC below its VLAN."""
        return list(ports(self.wanted.interfaces, self.machine.links(), self.machine.device).values())


Function = Callable[[Context], Outcome]
CHECKS: dict[str, tuple[When, Function]] = {}
"""Every check by its id, in the order of the output."""


def check(id: str, when: When = "both") -> Callable[[Function], Function]:
    """Register a check. One that asks for the plan is skipped without a cluster file."""

    def add(function: Function) -> Function:
        CHECKS[id] = when, function
        return function

    return add


def examine(context: Context) -> list[Document]:
    """Run the checks that apply. A check that cannot read its data is skipped; the others still run."""
    now = "doctor" if context.installed else "preflight"
    found = [(id, run(id, context)) for id, (when, _) in CHECKS.items() if when in ("both", now)]
    return [{"id": id, "status": o.status, "evidence": o.evidence, "fix": o.fix or None} for id, o in found]


def run(id: str, context: Context) -> Outcome:
    """Run one check."""
    try:
        return CHECKS[id][1](context)
    except NoFile:
        return skip("needs a cluster file: name it with --config FILE")
    except MrcdError as e:
        return skip(f"not known: {e.args[0]}")
    except OSError as e:
        return skip(f"not known: {e.filename or ''}: {e.strerror or e}")


# ---- kernel, clock, software ----

LEAST = (6, 1)  # the oldest kernel of `make test-kernels`
CPUIDLE = "/sys/devices/system/cpu/cpuidle"
HALT_POLL = "/sys/module/haltpoll/parameters/guest_halt_poll_ns"  # default 200,000
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")


def version(release: str) -> tuple[int, int]:
    """Return (6, 18) for "6.18.44-fc"; (0, 0) if the release has another form."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


@check("kernel.version")
def _kernel_version(c: Context) -> Outcome:
    release, _ = c.machine.uname()
    if version(release) < LEAST:
        oldest = f"{LEAST[0]}.{LEAST[1]}"
        words = f"kernel {release} is older than {oldest}, the oldest that is tested"
        return warn(words, "use a newer kernel, unless kernel.programs and the other checks pass")
    return passed(f"kernel {release}")


@check("kernel.preempt_rt")
def _preempt_rt(c: Context) -> Outcome:
    """Checks for PREEMPT_RT, which is not tested and changes the timing that path states depend on."""
    _, build = c.machine.uname()
    if "PREEMPT_RT" in build:
        return fail(f"a PREEMPT_RT kernel ({build}) is not supported", "boot a kernel without PREEMPT_RT")
    return passed("no PREEMPT_RT kernel")


@check("kernel.btf")
def _btf(c: Context) -> Outcome:
    """Checks for BTF, by which libbpf finds the kernel structures that the programs read."""
    if c.machine.exists("/sys/kernel/btf/vmlinux"):
        return passed("/sys/kernel/btf/vmlinux exists")
    return fail("no /sys/kernel/btf/vmlinux", "use a kernel with CONFIG_DEBUG_INFO_BTF=y")


def _feature(name: str, what: str) -> Function:
    def has_feature(c: Context) -> Outcome:
        there = c.machine.feature(name)
        if there is None:
            return skip(f"{what}: only root can query the kernel")
        if there:
            return passed(f"the kernel has {what}")
        if name == "tcx":
            return warn("the kernel has no TCX: programs are attached by clsact", "use Linux 6.6 or newer")
        return fail(f"the kernel has no {what}", "use Linux 6.1 or newer with CONFIG_BPF_SYSCALL=y")

    return has_feature


for _id, _name, _what in (
    ("tcx", "tcx", "BPF links at tc hooks (TCX)"),  # they replace a program without a gap
    ("bpf_timer", "timer", "bpf_timer"),  # drives the idle timeout of flows
    ("ringbuf", "ringbuf", "BPF ring buffers"),  # carry events
    ("mmapable", "mmapable", "BPF arrays that can be mapped into memory"),  # read without a system call per entry
):
    check(f"kernel.{_id}")(_feature(_name, _what))


@check("kernel.lacks")
def _lacks(c: Context) -> Outcome:
    """Lists missing kernel features that the programs replace or do without."""
    missing = c.machine.kernel_lacks()
    if missing:
        return warn(f"the kernel lacks {'; '.join(missing)}", "use Linux 6.3 or newer, if that matters")
    return passed("the kernel has all that the programs use")


@check("kernel.programs", "preflight")
def _programs(c: Context) -> Outcome:
    accepted, words = c.machine.try_programs()
    if accepted is None:
        return skip(words)
    if accepted:
        return passed(f"the kernel accepts the programs: {words}")
    return fail(f"the kernel refuses the programs: {words}", "see kernel.version and the other kernel checks")


@check("kernel.seg6", "preflight")
def _seg6(c: Context) -> Outcome:
    if c.plan is not None and c.plan.config.cluster.encapsulation == "ecmp":
        return passed("not needed with encapsulation ecmp")
    works, words = c.machine.try_seg6()
    if works is None:
        return skip(words)
    if works:
        return passed("the kernel accepts seg6 and seg6local routes")
    return fail(
        f"the kernel refuses SRv6 routes: {words}",
        'use a kernel with CONFIG_IPV6_SEG6_LWTUNNEL=y; or encapsulation = "ecmp", which has no fallback routes',
    )


@check("kernel.jit")
def _jit(c: Context) -> Outcome:
    """Checks for the BPF JIT: interpreted programs take several times as long."""
    value = c.machine.text("/proc/sys/net/core/bpf_jit_enable")
    if value is None:
        return skip("only the initial network namespace shows bpf_jit_enable")
    if value == "0":
        return warn("BPF programs are interpreted", "sysctl -w net.core.bpf_jit_enable=1")
    return passed(f"the BPF JIT is on (bpf_jit_enable = {value})")


@check("kernel.idle")
def _idle(c: Context) -> Outcome:
    """Checks that idle virtual CPUs poll before they halt: waking a halted CPU takes an interrupt."""
    driver, governor = (c.machine.text(f"{CPUIDLE}/current_{of}") for of in ("driver", "governor"))
    polls_ns = c.machine.text(HALT_POLL)
    if not driver or driver == "none":
        return skip("the kernel has no cpuidle driver")
    if driver != "haltpoll" or governor != "haltpoll" or polls_ns is None:
        return passed(f"idle CPUs use the cpuidle driver {driver}")
    if int(polls_ns):
        return passed(f"idle CPUs poll for up to {int(polls_ns) / 1000:g} us before they halt")
    return warn(
        "idle CPUs halt at once, and waking one takes an interrupt through the hypervisor",
        f"echo 200000 > {HALT_POLL}, and haltpoll.guest_halt_poll_ns=200000 on the kernel's command line",
    )


@check("bpffs.mounted")
def _bpffs(c: Context) -> Outcome:
    """Checks that the tables and links are pinned in a BPF file system."""
    mounts = [line.split() for line in (c.machine.text("/proc/mounts") or "").splitlines()]
    points = [m[1] for m in mounts if len(m) > 2 and m[2] == "bpf"]
    pins = c.pins
    if pins:
        under = [p for p in points if f"{pins}/".startswith(f"{p}/")]
        if under and c.machine.exists(pins):
            return passed(f"the tables are pinned in {pins}")
        if c.status is None:
            return fail(f"nothing is pinned in {pins}, so nothing is sprayed", "systemctl restart mrcd")
        return fail(
            f"nothing is pinned in {pins}: forwarding ends when mrcd ends",
            "mrcctl detach; systemctl restart mrcd (meanwhile traffic takes the kernel's routes)",
        )
    if "/sys/fs/bpf" in points:
        return passed("a BPF file system is mounted at /sys/fs/bpf")
    return passed("no BPF file system at /sys/fs/bpf yet: mrcd mounts it")


@check("clock.source")
def _clock_source(c: Context) -> Outcome:
    """Checks for a fast clock source: the programs read the clock for each packet."""
    name = c.machine.text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if name is None:
        return skip("the kernel does not show its clock source")
    if name in _SLOW_CLOCKS:
        return warn(
            f"reading clock source {name} takes over a microsecond", "boot with clocksource=tsc, if the TSC is stable"
        )
    return passed(f"clock source {name}")


@check("clock.synchronised")
def _clock_synchronised(c: Context) -> Outcome:
    """Checks clock synchronisation, needed only to compare the events of two hosts."""
    synchronised = c.machine.clock_synchronised()
    if synchronised is None:
        return skip("the kernel does not show it")
    if synchronised:
        return passed("the clock is synchronised")
    return warn(
        "the clock is not synchronised: the order of events on different hosts is unknown",
        "systemctl enable --now chrony",
    )


@check("software.libbpf")
def _libbpf(c: Context) -> Outcome:
    why = c.machine.library("libbpf.so.1")
    return fail(f"libbpf cannot be loaded: {why}", "apt install libbpf1") if why else passed("libbpf.so.1 is installed")


@check("software.bcc")
def _bcc(c: Context) -> Outcome:
    if c.machine.module("bcc"):
        return passed("bcc's Python binding is installed")
    return fail(
        "bcc's Python binding is missing",
        "apt install python3-bpfcc, and a virtual environment made with --system-site-packages",
    )


# ---- plane NICs ----

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
    if c.wanted.config.cluster.granularity != "burst":
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
    """Checks that receive queues are used evenly. RSS must hash the UDP source port, which differs per EV."""
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
    ]
    if c.wanted.config.cluster.granularity == "burst":
        own.append((overlay, "egress", "mrc_push"))
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


# ---- a running mrcd ----

_IN_USE = ("GOOD", "SKIP")
_MISMATCHES = {
    "wrong_source": "the hosts' cluster files differ",
    "unknown_sender": "the hosts' cluster files differ",
    "wrong_receiver": "cables are swapped, or the hosts' cluster files differ",
    "wrong_plane": "cables are swapped",
    "bad_version": "the hosts run different versions of mrcd",
    "bad_ev": "evs_per_peer differs between the hosts",
    "untagged": "[auth] mode differs between the hosts, or packets are forged: docs/security.md",
    "unknown_key": "the hosts have no secret in common: `mrcctl keys status` on both",
    "bad_tag": "the hosts have different secrets under one id, or packets are forged: docs/security.md",
    "merged": "a NIC merges packets: see nic.merging",
    "wrong_inner_source": "the hosts' prefixes differ, or a peer routes for others ([overlay] source_check)",
    "wrong_inner_destination": "the hosts' prefixes differ, or a peer routes for others ([overlay] source_check)",
}


@check("daemon.running", "doctor")
def _running(c: Context) -> Outcome:
    if c.status is None:
        restart = "journalctl -u mrcd; systemctl restart mrcd"
        return fail(c.down or "mrcd does not answer", restart if c.is_alive else "systemctl start mrcd")
    daemon = c.status["daemon"]
    if not daemon["running"]:
        return fail(
            "mrcd is not running: changes of links, routes and configuration are not followed",
            "systemctl start mrcd; journalctl -u mrcd",
        )
    if daemon["uptime_s"] is None:
        return fail(
            f"mrcd (pid {daemon['pid'] or 'unknown'}) runs, but does not answer on its socket",
            "journalctl -u mrcd; systemctl restart mrcd",
        )
    return passed(f"mrcd {daemon['version']}, pid {daemon['pid']}")


@check("daemon.attached", "doctor")
def _attached(c: Context) -> Outcome:
    if c.status is None:
        return skip("mrcd does not answer")
    if not c.status["attached"]:
        return warn("the data plane is detached: traffic takes the kernel's own routes", "mrcctl attach")
    return passed(f"{c.status['encapsulation']}, {c.status['granularity']} granularity")


@check("paths.diagnosis", "doctor")
def _diagnosis(c: Context) -> Outcome:
    found = (c.status or {}).get("diagnosis")
    if found is None:
        return skip("mrcd does not answer, or is of an older version")
    faults = [f for f in found if f["severity"] != "ok"]
    if not faults:
        return passed("no fault is known" + (f"; denied: {some([f['target'] for f in found])}" if found else ""))
    evidence = some([f"{named(f)} ({f['sentence']})" for f in faults])
    make = fail if any(f["severity"] == "critical" for f in faults) else warn
    return make(evidence, str(faults[0]["do"]))


@check("peers.reachable", "doctor")
def _reachable(c: Context) -> Outcome:
    if not c.peers:
        return skip("no peers are known")
    lost = [str(p["peer"]) for p in c.peers if not p["reachable"]]
    if len(lost) == len(c.peers):
        return fail(f"none of {len(c.peers)} peers is heard", "check mrcd on the peers; `mrcctl trace PEER --ev 0`")
    if lost:
        return warn(f"not heard: {some(lost)}", f"check mrcd there; `mrcctl trace {lost[0]} --ev 0`")
    return passed(f"{len(c.peers)} peers are heard")


@check("drops.mismatch", "doctor")
def _mismatches(c: Context) -> Outcome:
    """Checks for drops caused by hosts that disagree, counted since the tables were created."""
    if c.status is None:
        return skip("mrcd does not answer")
    found = {k: v for k, v in c.status["drops"].items() if k in _MISMATCHES}
    if found:
        worst = max(found, key=lambda k: found[k])
        return warn(some([f"{v} packets {k}" for k, v in found.items()]), f"{_MISMATCHES[worst]}; see `mrcctl status`")
    return passed("no drops caused by hosts that disagree")


def _ev(a: Answers) -> str:
    return f"{a.peer} EV {a.ev}"


def _to(c: Context) -> str:
    """Return " to 3 of 5 peers", or nothing if all peers were probed."""
    probed = {a.peer for a in c.answers}
    return "" if len(probed) == len(c.peers) else f" to {len(probed)} of {len(c.peers)} peers"


def _causes_of(c: Context, peer: str) -> list[Document]:
    """Returns the causes of the diagnosis by which no EV to a peer answers: of the peer as a whole, or of this host."""
    status = c.status or {}
    targets = (f"peer:{peer}", f"host:{status.get('host')}")
    return [f for f in status.get("diagnosis") or () if f["severity"] != "ok" and f["target"] in targets]


@check("paths.answer", "doctor")
def _answer(c: Context) -> Outcome:
    """Checks that each EV answers a probe. Silence is only a warning if the EV is out of use, or a cause is known."""
    if not c.answers:
        return skip("no probes were sent")
    silent = [a for a in c.answers if not a.small.rtts]
    failed = [a for a in silent if a.state in _IN_USE]
    unexplained = [a for a in failed if not _causes_of(c, a.peer)]
    if unexplained:
        a = unexplained[0]
        error = f": {a.small.send_error}" if a.small.send_error else ""
        return fail(
            f"no answer on EVs in use: {some([_ev(x) for x in unexplained])}{error}",
            f"mrcctl trace {a.peer} --ev {a.ev}",
        )
    if failed:
        causes = {f"{f['cause']} {f['target']}": str(f["do"]) for a in failed for f in _causes_of(c, a.peer)}
        return warn(
            f"no answer on {len(failed)} EVs in use, because of {some(list(causes))}", next(iter(causes.values()))
        )
    if silent:
        states = ", ".join(f"{n} {s}" for s, n in Counter(a.state for a in silent).items())
        a = silent[0]
        return warn(
            f"no answer on {len(silent)} of {len(c.answers)} EVs{_to(c)}, which are out of use ({states})",
            f"mrcctl trace {a.peer} --ev {a.ev}",
        )
    return passed(f"all {len(c.answers)} EVs{_to(c)} answer")


@check("paths.mtu", "doctor")
def _path_mtu(c: Context) -> Outcome:
    """Checks that each answering EV carries packets of the planes' MTU, and whether a byte more passes."""
    able = [a for a in c.answers if a.small.rtts and a.state in _IN_USE]
    if not able:
        return skip("no EV in use answers")
    short = [a for a in able if not a.full.rtts]
    if short:
        a = short[0]
        if a.full.send_error:
            return fail(
                f"{some([_ev(x) for x in short])}: packets of {c.mtu} bytes are {a.full.send_error}", "see nic.mtu"
            )
        return fail(
            f"packets of {c.mtu} bytes are lost where short ones are not: {some([_ev(x) for x in short])}",
            f"mrcctl trace {a.peer} --ev {a.ev} names the switches; set their MTU to at least {c.mtu}",
        )
    over, sent = [a for a in able if a.over.rtts], [a for a in able if a.over.sent]
    beyond = "the NIC refuses a byte more" if not sent else f"a byte more passes on {len(over)}"
    return passed(f"{c.mtu} bytes pass on {len(able)} EVs; {beyond}")


@check("overlay.mtu", "doctor")
def _overlay_mtu(c: Context) -> Outcome:
    """Checks that mrc0 takes packets of the inner MTU, and that the kernel refuses longer ones with an error."""
    if not c.overlay:
        return skip("this host sprays to no peer")
    wrong = {peer: why for peer, why in c.overlay.items() if why}
    if wrong:
        peer, why = next(iter(wrong.items()))
        return fail(f"to {peer}: {why}", "ip route show proto 77; ip link show mrc0; systemctl restart mrcd")
    return passed(f"{c.wanted.inner_mtu} bytes are accepted for {len(c.overlay)} peers, a byte more is refused")


# ---- sysctls ----

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
