"""Checks of the kernel, its settings and the software beside it."""

import re

from mrcd.ctl.examine.result import Context, Outcome, check, fail, passed, skip, warn

LEAST = (6, 1)  # the oldest in the table of `make test-kernels`
CPUIDLE = "/sys/devices/system/cpu/cpuidle"
HALT_POLL = "/sys/module/haltpoll/parameters/guest_halt_poll_ns"  # 200,000 where nobody has changed it
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")


def version(release: str) -> tuple[int, int]:
    """ "6.18.44-fc" → (6, 18); (0, 0) if it cannot be read."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


@check("kernel.version")
def kernel_version(c: Context) -> Outcome:
    """The oldest kernel on which mrcd is tested."""
    release, _ = c.machine.uname()
    if version(release) < LEAST:
        oldest = f"{LEAST[0]}.{LEAST[1]}"
        words = f"kernel {release} is older than {oldest}, the oldest that is tested"
        return warn(words, "a newer kernel, unless kernel.programs and the others of this list pass")
    return passed(f"kernel {release}")


@check("kernel.preempt_rt")
def preempt_rt(c: Context) -> Outcome:
    """Never tested there, and timing is what the verdicts rest on."""
    _, build = c.machine.uname()
    if "PREEMPT_RT" in build:
        return fail(f"a PREEMPT_RT kernel ({build}) is not supported", "boot a kernel without PREEMPT_RT")
    return passed("no PREEMPT_RT kernel")


@check("kernel.btf")
def btf(c: Context) -> Outcome:
    """By it libbpf finds what the programs read of the kernel's own structures."""
    if c.machine.exists("/sys/kernel/btf/vmlinux"):
        return passed("/sys/kernel/btf/vmlinux is there")
    return fail("no /sys/kernel/btf/vmlinux", "a kernel with CONFIG_DEBUG_INFO_BTF=y")


_FEATURES = {
    "tcx": "BPF links at tc hooks (TCX)",
    "timer": "bpf_timer",
    "ringbuf": "BPF ring buffers",
    "mmapable": "BPF arrays that can be mapped into memory",
}


def _feature(c: Context, name: str) -> Outcome:
    there = c.machine.feature(name)
    if there is None:
        return skip(f"{_FEATURES[name]}: only root can ask the kernel")
    if there:
        return passed(f"the kernel has {_FEATURES[name]}")
    if name == "tcx":
        return warn("the kernel has no TCX: programs are attached by clsact", "a kernel of 6.6 or newer")
    return fail(f"the kernel has no {_FEATURES[name]}", "a kernel of 6.1 or newer with CONFIG_BPF_SYSCALL=y")


@check("kernel.tcx")
def tcx(c: Context) -> Outcome:
    """Links that replace a program without a gap."""
    return _feature(c, "tcx")


@check("kernel.bpf_timer")
def timer(c: Context) -> Outcome:
    """Alarms where a flow stops."""
    return _feature(c, "timer")


@check("kernel.ringbuf")
def ringbuf(c: Context) -> Outcome:
    """Events."""
    return _feature(c, "ringbuf")


@check("kernel.mmapable")
def mmapable(c: Context) -> Outcome:
    """Tables without a system call per entry."""
    return _feature(c, "mmapable")


@check("kernel.lacks")
def lacks(c: Context) -> Outcome:
    """What the programs do another way, or not at all, on an older kernel."""
    missing = c.machine.kernel_lacks()
    if missing:
        return warn(f"the kernel lacks {'; '.join(missing)}", "Linux 6.3 or newer, where that matters")
    return passed("the kernel has all that the programs use")


@check("kernel.programs", "preflight")
def programs(c: Context) -> Outcome:
    """The verifier's own word: the object is loaded, attached nowhere, and dropped."""
    accepted, words = c.machine.try_programs()
    if accepted is None:
        return skip(words)
    if accepted:
        return passed(f"the kernel accepts the programs: {words}")
    return fail(f"the kernel refuses the programs: {words}", "see kernel.version and the lines above")


@check("kernel.seg6", "preflight")
def seg6(c: Context) -> Outcome:
    """Routes that encapsulate and that decapsulate: the fallback when the data plane is detached."""
    if c.site is not None and c.site.encapsulation == "ecmp":
        return passed("not needed with encapsulation ecmp")
    works, words = c.machine.try_seg6()
    if works is None:
        return skip(words)
    if works:
        return passed("the kernel takes seg6 and seg6local routes")
    return fail(
        f"the kernel refuses SRv6 routes: {words}",
        'a kernel with CONFIG_IPV6_SEG6_LWTUNNEL=y; or encapsulation = "ecmp", which has no fallback routes',
    )


@check("kernel.jit")
def jit(c: Context) -> Outcome:
    """An interpreted program takes several times as long."""
    value = c.machine.text("/proc/sys/net/core/bpf_jit_enable")
    if value is None:
        return skip("bpf_jit_enable is seen in the machine's first network namespace only")
    if value == "0":
        return warn("BPF programs are interpreted", "sysctl -w net.core.bpf_jit_enable=1")
    return passed(f"the BPF compiler is on (bpf_jit_enable = {value})")


@check("kernel.idle")
def idle(c: Context) -> Outcome:
    """What comes for a program that sleeps wakes a CPU: where that polls before it halts, no interrupt is needed."""
    driver, governor = (c.machine.text(f"{CPUIDLE}/current_{of}") for of in ("driver", "governor"))
    polls_ns = c.machine.text(HALT_POLL)
    if not driver or driver == "none":
        return skip("the kernel leaves it to others how idle CPUs wait")
    if driver != "haltpoll" or governor != "haltpoll" or polls_ns is None:
        return passed(f"idle CPUs wait as {driver} has them")
    if int(polls_ns):
        return passed(f"idle CPUs poll for up to {int(polls_ns) / 1000:g} us before they halt")
    return warn(
        "idle CPUs halt at once, and to wake one takes an interrupt by way of the hypervisor",
        f"echo 200000 > {HALT_POLL}, and haltpoll.guest_halt_poll_ns=200000 on the kernel's command line",
    )


@check("bpffs.mounted")
def bpffs(c: Context) -> Outcome:
    """Where tables and links are pinned."""
    mounts = [line.split() for line in (c.machine.text("/proc/mounts") or "").splitlines()]
    points = [m[1] for m in mounts if len(m) > 2 and m[2] == "bpf"]
    pins = c.site.pins if c.site else None
    if pins:
        under = [p for p in points if f"{pins}/".startswith(f"{p}/")]
        if under and c.machine.exists(pins):
            return passed(f"the tables are pinned in {pins}")
        if c.status is None:
            return fail(f"nothing is pinned in {pins}: nothing is sprayed", "systemctl restart mrcd")
        return fail(
            f"nothing is pinned in {pins}: what forwards ends with the mrcd that runs",
            "mrcctl detach; systemctl restart mrcd (detached, traffic takes the kernel's routes meanwhile)",
        )
    if "/sys/fs/bpf" in points:
        return passed("a BPF file system is mounted at /sys/fs/bpf")
    return passed("no BPF file system at /sys/fs/bpf yet: mrcd mounts it")


@check("clock.source")
def clock_source(c: Context) -> Outcome:
    """The programs read the clock for each packet."""
    name = c.machine.text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if name is None:
        return skip("the kernel does not tell its clock source")
    if name in _SLOW_CLOCKS:
        return warn(
            f"clock source {name} takes a microsecond and more to read", "boot with clocksource=tsc, if it is fit"
        )
    return passed(f"clock source {name}")


@check("clock.synchronised")
def clock_synchronised(c: Context) -> Outcome:
    """Verdicts do not need it; comparing the events of two hosts does."""
    synchronised = c.machine.clock_synchronised()
    if synchronised is None:
        return skip("the kernel does not tell")
    if synchronised:
        return passed("the clock is synchronised")
    return warn(
        "the clock is not synchronised: events of different hosts cannot be put in order",
        "systemctl enable --now chrony",
    )


@check("software.libbpf")
def libbpf(c: Context) -> Outcome:
    """The library that loads and attaches."""
    why = c.machine.library("libbpf.so.1")
    return fail(f"libbpf cannot be loaded: {why}", "apt install libbpf1") if why else passed("libbpf.so.1 is there")


@check("software.bcc")
def bcc(c: Context) -> Outcome:
    """Its Python binding, by which the daemon reaches libbpf."""
    if c.machine.module("bcc"):
        return passed("bcc's Python binding is there")
    return fail(
        "bcc's Python binding is missing",
        "apt install python3-bpfcc, and a virtual environment made with --system-site-packages",
    )
