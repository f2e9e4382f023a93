# SPDX-License-Identifier: BSD-2-Clause
"""Boots a new Debian in a virtual machine and follows the README there: clone, `make demo`.

debootstrap installs the system in a directory, with a kernel of Debian's packages; mke2fs makes a disk of it, which
qemu boots with a network. apt and pip get this machine's configuration and, read-only, the directories in it.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from labkit.entry import progress
from labkit.kernels import machine
from labkit.kernels.packages import CACHE, Kernel
from labkit.places import REPOSITORY
from mrcd.errors import MachineError

TIMEOUT_S = 3600.0
_ROOT = CACHE / "newcomer"
_CLONE = "srv/mrcd.git"
_MEMORY = "6G"
# Debian's smallest system, what it needs to boot, and what the README expects: git, make and Python.
_PACKAGES = "systemd-sysv,udev,kmod,initramfs-tools,iproute2,ca-certificates,git,make,python3"
_PIP = (Path("/etc/pip.conf"), Path("/root/.config/pip/pip.conf"))
_NETWORK = "[Match]\nDriver=virtio_net\n[Network]\nDHCP=yes\n"
_UNIT = """\
[Unit]
After=network-online.target
Wants=network-online.target
[Service]
Type=oneshot
ExecStart=/root/follow
[Install]
WantedBy=multi-user.target
"""
_FOLLOW = f"""\
#!/bin/sh
exec >/dev/ttyS1 2>&1 </dev/null
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
{{environment}}
modprobe 9pnet_virtio
{{mounts}}
cd /root
set -x
uname -r
df -h /
{{{{ git clone -q /{_CLONE} mrcd && cd mrcd && make demo; echo "exit status $?"; }}}} 2>&1 | cat
df -h /
sync
poweroff -f
"""
_STATUS = re.compile(r"^exit status (\d+)", re.MULTILINE)


def run(kernel: Kernel, results: Path, timeout_s: float = TIMEOUT_S) -> int:
    """Returns the exit status of `make demo` there. Its output is in `results`/output. Raises MachineError."""
    shared = directories(os.environ, [p.read_text(encoding="utf-8") for p in _PIP if p.exists()])
    kvm = machine.accelerated(kernel)
    _install(kernel)
    _prepare(shared, patience=1 if kvm else machine.SLOWNESS)
    disk = results / "disk"
    _run(["mke2fs", "-q", "-t", "ext4", "-d", str(_ROOT), str(disk), "24G"])
    progress(f"kernels: a new Debian with {kernel.release} boots")
    try:
        with (results / "qemu").open("wb") as out:
            argv = [*_qemu(kernel, disk, results, kvm=kvm), *_shares(shared)]
            subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise MachineError(f"not finished after {timeout_s:.0f} s", hint=f"see {results}") from None
    finally:
        disk.unlink()
    found = _STATUS.search((results / "output").read_text(encoding="utf-8", errors="replace"))
    if not found:
        raise MachineError(f"the machine stopped:\n{machine.tail(results / 'console')}", hint=f"see {results}")
    return int(found[1])


def directories(environment: Mapping[str, str], texts: Sequence[str]) -> list[str]:
    """Returns the top-level directories outside of the system's own that pip's configuration names. Pure."""
    words = " ".join([*texts, *(v for k, v in environment.items() if k.startswith("PIP_"))])
    found = re.findall(r"(?:^|[\s=]|file://)(/(?:opt|srv|mnt|media)(?:/[^/\s]+)+)", words)
    return sorted({"/" + path.split("/")[1] for path in found})


def _install(kernel: Kernel) -> None:
    """Installs the system once; the file `complete` marks a whole installation."""
    complete = CACHE / f"newcomer-{kernel.release}"
    if complete.exists():
        return
    if not shutil.which("debootstrap"):
        raise MachineError("there is no debootstrap here", hint="make set-up")
    shutil.rmtree(_ROOT, ignore_errors=True)
    site, suite = _source()
    progress(f"kernels: debootstrap {suite}")
    _run(["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", suite, str(_ROOT), site])
    (_ROOT / "etc/apt/sources.list").unlink(
        missing_ok=True
    )  # debootstrap's file repeats sources of this machine's files
    for path in ("etc/apt", "usr/local/share/ca-certificates"):
        shutil.copytree(f"/{path}", _ROOT / path, dirs_exist_ok=True)
    shutil.copy("/etc/resolv.conf", _ROOT / "etc")
    within = ["chroot", str(_ROOT), "env", "DEBIAN_FRONTEND=noninteractive"]
    _run([*within, "update-ca-certificates"])
    _run([*within, "apt-get", "-q", "update"])
    _run([*within, "apt-get", "-q", "-y", "install", "--no-install-recommends", f"linux-image-{kernel.release}"])
    # The kernel stays as installed: its initramfs would take an emulated CPU a quarter of an hour.
    (_ROOT / "etc/initramfs-tools/update-initramfs.conf").write_text("update_initramfs=no\n", encoding="utf-8")
    complete.touch()


def _source() -> tuple[str, str]:
    """Returns the source of apt's base system, and its suite."""
    argv = ["apt-get", "indextargets", "--format", "$(SITE) $(CODENAME)", "Created-By: Packages"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        site, suite = line.split()
        if "-" not in suite:  # skips updates and security
            return site, suite
    raise MachineError("apt names no Debian to install", hint="see /etc/apt/sources.list*")


def _prepare(shared: Sequence[str], patience: int) -> None:
    """Writes what differs from run to run: the committed repository, pip's configuration, and the boot script."""
    shutil.rmtree(_ROOT / _CLONE, ignore_errors=True)
    _run(["git", "clone", "-q", "--bare", "--no-local", str(REPOSITORY), str(_ROOT / _CLONE)])
    for path in _PIP:
        if path.exists():
            copy = _ROOT / path.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    environment = [f"export {k}={v!r}" for k, v in os.environ.items() if k.startswith("PIP_")]
    environment += [f"export LAB_PATIENCE={patience}"] if patience > 1 else []
    mounts = [f"mount -t 9p -o trans=virtio,version=9p2000.L,ro share{n} {path}" for n, path in enumerate(shared)]
    (_ROOT / "root/follow").write_text(_FOLLOW.format(environment="\n".join(environment), mounts="\n".join(mounts)))
    (_ROOT / "root/follow").chmod(0o755)
    system = _ROOT / "etc/systemd"
    (system / "network/nic.network").write_text(_NETWORK)
    (system / "system/follow.service").write_text(_UNIT)
    (_ROOT / "etc/resolv.conf").write_text("nameserver 10.0.2.3\n")  # qemu's DNS server
    _run(["systemctl", f"--root={_ROOT}", "enable", "systemd-networkd", "follow"])
    for directory in shared:
        (_ROOT / directory.removeprefix("/")).mkdir(exist_ok=True)


def _qemu(kernel: Kernel, disk: Path, results: Path, *, kvm: bool) -> list[str]:
    boot = _ROOT / "boot"
    argv = [*machine.ENDED_WITH_US, "qemu-system-x86_64", "-machine", "q35"]
    argv += ["-smp", str(machine.CPUS), "-m", _MEMORY, "-no-reboot"]
    argv += ["-cpu", "host", "-enable-kvm"] if kvm else ["-cpu", "max", *machine.EMULATED.split()]
    argv += ["-kernel", str(boot / f"vmlinuz-{kernel.release}"), "-initrd", str(boot / f"initrd.img-{kernel.release}")]
    argv += ["-append", "root=/dev/vda rw console=ttyS0 panic=-1"]
    argv += ["-display", "none", "-serial", f"file:{results / 'console'}", "-serial", f"file:{results / 'output'}"]
    argv += ["-drive", f"file={disk},format=raw,if=virtio,cache=unsafe"]
    return [*argv, "-nic", "user,model=virtio-net-pci"]


def _shares(shared: Sequence[str]) -> list[str]:
    return [
        word
        for n, path in enumerate(shared)
        for word in ("-virtfs", f"local,path={path},mount_tag=share{n},security_model=none,readonly=on")
    ]


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip())[-1000:]
        raise MachineError(f"{' '.join(argv[:4])} failed: {words}")
