# SPDX-License-Identifier: BSD-2-Clause
"""Returns how qemu emulates an arm64 machine. Its whole system is in the initial RAM disk.

The RAM disk has Debian's packages and compiled Python packages (build/roots/arm64, see Makefile), the kernel's modules,
and the first process. The repository and the directory of the results are mounted where they are here.
"""

from pathlib import Path

from labkit.kernels import packages
from labkit.kernels.packages import Kernel
from labkit.places import REPOSITORY
from mrcd.errors import MachineError

DISK = "initrd"  # in the results, some 400 MB
_ROOT = REPOSITORY / "build/roots/arm64"
_QEMU = "qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on -nographic -no-reboot"
_INIT = """\
#!/bin/sh
export HOME=/root LANG=C.UTF-8 PATH={venv}/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PYTHONPATH=/usr/lib/python3/dist-packages # before the virtual environment's, some of which are compiled
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
ip link set lo up
modprobe -a virtio_pci 9p 9pnet_virtio
mkdir -p {repository} {results}
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro repository {repository}
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288 results {results}
sh {results}/boot
echo o >/proc/sysrq-trigger
sleep 60
"""


def qemu(kernel: Kernel, results: Path) -> list[str]:
    """Makes the RAM disk, and returns qemu's command line. The machine runs `results`/boot. Raises MachineError."""
    if not _ROOT.exists():
        raise MachineError(f"there is no {_ROOT}", hint="make test-arm64")
    init = results / "init"
    init.write_text(_INIT.format(venv=REPOSITORY / ".venv", repository=REPOSITORY, results=results), encoding="utf-8")
    init.chmod(0o755)
    disk = results / DISK
    for root, names in ((_ROOT, "."), (kernel.root, f"lib/modules/{kernel.release}"), (results, init.name)):
        done = packages.completed(["sh", "-c", f"find {names} | cpio --quiet -o -H newc >>{disk}"], root)
        if done.returncode:
            raise MachineError(f"cpio failed: {done.stderr.strip()}", hint="scripts/set-up --arm64")
    argv = [*_QEMU.split(), "-kernel", str(kernel.image), "-initrd", str(disk)]
    argv += ["-append", "console=ttyAMA0 rdinit=/init quiet panic=-1"]
    for tag, path, more in (("repository", REPOSITORY, ",readonly=on"), ("results", results, "")):
        argv += ["-virtfs", f"local,path={path},mount_tag={tag},security_model=none{more}"]
    return argv
