# SPDX-License-Identifier: BSD-2-Clause
"""Boots a kernel in qemu, by virtme-ng, and runs one command in it as root.

The machine's root file system is the guest's too, read-only, by 9p. What Python reads comes from a squashfs image
beside it, because 9p alone triples the time of an import. An arm64 kernel has a root file system of its own (arm64.py).
"""

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Event

from labkit.cluster.bringup import VENV
from labkit.kernels import arm64
from labkit.kernels.packages import CACHE, Kernel
from labkit.places import REPOSITORY
from mrcd.errors import MachineError

MEMORY = "3G"
CPUS = 2
# One thread for all CPUs of the guest: with a thread each, qemu's emulation may run the breakpoint that a kernel sets
# while it patches its own code, and the kernel panics.
EMULATED = "-accel tcg,thread=single,tb-size=1024"
_IMAGE = CACHE / "files.squashfs"
_TREES = (
    VENV,
    *(REPOSITORY / name for name in ("mrcd", "scripts", "bpf", "tests")),
    *Path("/usr/lib").glob("python3*"),
)
_LIBRARIES = ("libbcc.so.*", "libLLVM*.so.*", "libclang*.so.*")  # 200 MB that each daemon maps
_TRIAL_S = 20.0
SLOWNESS = 10  # factor of deadlines for an emulated CPU
_children: set[subprocess.Popen[bytes]] = set()  # running machines
_ended = Event()  # set: no machine may be started any more
# vng and qemu are in a PID namespace that ends with its first process, so the machine ends however this process does.
ENDED_WITH_US = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child"]
_BOOT = """\
modprobe -a veth virtio_blk squashfs sch_tbf sch_ingress cls_bpf act_bpf vxlan geneve ipip ip_gre ipvlan vrf 2>/dev/null
mkdir /run/files && mount --all --fstab {results}/fstab || exit 70
export PYTHONDONTWRITEBYTECODE=1 LAB_RESULTS={results} LAB_PATIENCE={patience}
export PYTHONPATH=${{PYTHONPATH:+$PYTHONPATH:}}{repository}/scripts:{repository}
cd {repository}
{command} >{results}/output 2>&1
echo $? >{results}/status
"""


def prepare() -> None:
    """Makes the image of what Python reads, as it is now. Running machines keep theirs."""
    CACHE.mkdir(parents=True, exist_ok=True)
    options = ["-noappend", "-quiet", "-no-progress", "-comp", "lz4"]
    new = _IMAGE.with_suffix(f".{os.getpid()}")
    done = subprocess.run(["mksquashfs", *_paths(), str(new), *options], capture_output=True, text=True, check=False)
    if done.returncode:
        new.unlink(missing_ok=True)
        raise MachineError(f"mksquashfs failed: {done.stderr.strip()}", hint="make set-up")
    new.replace(_IMAGE)


def _paths() -> list[str]:
    """Returns the paths in the image, each stored under its last component."""
    libraries = (p for pattern in _LIBRARIES for p in Path("/usr/lib").glob(f"*-linux-gnu/{pattern}"))
    return [str(p) for p in (*_TREES, *(p for p in libraries if not p.is_symlink()))]


@cache
def accelerated(kernel: Kernel) -> bool:
    """Returns whether this machine's KVM boots a kernel. Nested KVM often does not."""
    if kernel.is_arm64 or not Path("/dev/kvm").exists():
        return False
    with tempfile.TemporaryDirectory(prefix="mrcd-kernel-") as results:
        try:
            return _boot(kernel, ["true"], Path(results), _TRIAL_S, "", kvm=True) == 0
        except subprocess.TimeoutExpired:
            return False


def run(kernel: Kernel, argv: Sequence[str], results: Path, timeout_s: float, more: str = "") -> int:
    """Boots a kernel, runs a command there and returns its exit status.

    Its output is in `results`/output, the console in `results`/console. `more`: options for qemu.
    Raises MachineError if the machine did not finish.
    """
    kvm = accelerated(kernel)
    try:
        status = _boot(kernel, argv, results, timeout_s, more, kvm=kvm)
    except subprocess.TimeoutExpired:
        raise MachineError(f"{kernel.release}: not finished after {timeout_s:.0f} s", hint=f"see {results}") from None
    if status is None:
        raise MachineError(f"{kernel.release} did not boot, or stopped:\n{tail(results / 'console')}")
    return status


def _boot(kernel: Kernel, argv: Sequence[str], results: Path, timeout_s: float, more: str, *, kvm: bool) -> int | None:
    with started(kernel, argv, results, more, kvm=kvm) as child:
        child.wait(timeout_s)
    try:
        return int((results / "status").read_text())
    except (OSError, ValueError):
        return None


@contextmanager
def started(
    kernel: Kernel, command: Sequence[str], results: Path, more: str = "", *, kvm: bool, name: str = "guest"
) -> Iterator[subprocess.Popen[bytes]]:
    """A block with a booting machine of the host name `name`, which ends with the block.

    qemu exits after the command, whose exit status is then in `results`/status.
    """
    script = results / "boot"
    script.write_text(
        _BOOT.format(
            results=results,
            patience=1 if kvm else SLOWNESS,
            repository=REPOSITORY,
            command=shlex.join(command),
        ),
        encoding="utf-8",
    )
    # One process mounts all: an emulated CPU takes half a second to start one.
    trees = [p for p in _paths() if not kernel.is_arm64 or REPOSITORY in Path(p).parents]
    mounts = ["/dev/vda /run/files squashfs ro", *(f"/run/files/{Path(p).name} {p} none bind" for p in trees)]
    (results / "fstab").write_text("\n".join(mounts) + "\n", encoding="utf-8")
    options = f"-drive file={_IMAGE},format=raw,if=virtio,readonly=on {'' if kvm else EMULATED} {more}"
    if kernel.is_arm64:
        argv = [*arm64.qemu(kernel, results), "-smp", str(CPUS), "-m", MEMORY, *options.split()]
    else:
        argv = [str(VENV / "bin/vng"), "--run", str(kernel.image), "--force-9p", "--user", "root", "--name", name]
        argv += ["--cpus", str(CPUS), "--memory", MEMORY, "--verbose", "--rwdir", str(results)]
        argv += ["--disable-kvm"] if not kvm else []
        argv += [f"--qemu-opts={options}", "--", f"sh {script}"]
    with (
        (results / "console").open("wb") as console,
        subprocess.Popen(
            [*ENDED_WITH_US, *argv],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            env={"PATH": f"{VENV / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"},
            start_new_session=True,
        ) as child,
    ):
        _children.add(child)
        try:
            if _ended.is_set():
                raise MachineError("interrupted")
            yield child
        finally:
            _children.discard(child)
            _end(child)
            (results / arm64.DISK).unlink(missing_ok=True)


def end_all() -> None:
    """Ends all machines, of every thread, and prevents new ones."""
    _ended.set()
    for child in list(_children):
        _end(child)


def _end(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)  # the group includes qemu


def tail(path: Path) -> str:
    """Returns the last lines of a file."""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
