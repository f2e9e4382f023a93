# SPDX-License-Identifier: BSD-2-Clause
"""Checks the machine: its kernel, its clock and its software."""

import re

from mrcd.ctl.examine.checks import Context, Function, Outcome, check, fail, passed, skip, warn

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
    return passed("bcc is not installed: libbpf.so.1 loads the programs")
