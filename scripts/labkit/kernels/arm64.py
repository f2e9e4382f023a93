# SPDX-License-Identifier: BSD-2-Clause
"""Has Debian's arm64 kernel verify the programs: qemu emulates the machine, whose only process is verify.c.

The object is the same on all little-endian machines; what differs are the kernel, its BTF, its pages and its JIT.
"""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from labkit.entry import progress
from labkit.kernels import packages, programs
from mrcd.errors import MachineError
from mrcd.kernel.enums import KernelHas
from mrcd.kernel.object_file import object_path

_HERE = Path(__file__).parent
_LINE = re.compile(r"program (\d) (\w+) (-?\d+) ?(.*)")
_LIMIT_S = 900.0
_HAS = {"6.1": 0, "6.12": KernelHas.KERN_CTX | KernelHas.DECAP_L3}
FLAVOURS = {"6.1": ["arm64"], "6.12": ["arm64", "arm64-16k"]}  # 16k: pages of 16 KiB


def run(series: str, flavour: str, results: Path) -> list[tuple[str, str, int, str]]:
    """Returns rows: settings, program, instructions verified, or a negative error with libbpf's word for it.

    Raises MachineError if the machine cannot be made, or does not come to its end.
    """
    results.mkdir(parents=True, exist_ok=True)
    image = packages.arm64_image(series, flavour)
    variants = programs.variants(kernel_has=_HAS[series])
    _fill(results, variants)
    argv = ["qemu-system-aarch64", "-M", "virt", "-cpu", "max,pauth-impdef=on", "-m", "2G", "-nographic", "-no-reboot"]
    argv += ["-kernel", str(image), "-initrd", str(results / "initrd"), "-append", "console=ttyAMA0 quiet panic=-1"]
    progress(f"arm64: {image.name} verifies the programs, emulated")
    try:
        said = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_LIMIT_S, errors="replace"
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as e:
        raise MachineError(f"qemu-system-aarch64: {e}", hint="scripts/set-up --arm64") from None
    (results / "console").write_text(said, encoding="utf-8")
    names = list(variants)
    rows = [(names[int(n)], name, int(found), error.strip()) for n, name, found, error in _LINE.findall(said)]
    if "\nend" not in said or not rows:
        raise MachineError("the machine did not come to its end", hint=f"see {results / 'console'}")
    progress(re.search(r"kernel .*", said)[0].strip())  # type: ignore[index]  # it is printed first
    return rows


def _fill(results: Path, variants: Mapping[str, bytes]) -> None:
    """Makes the machine's file system: the process, the object, and the settings."""
    root = results / "root"
    root.mkdir(exist_ok=True)
    libraries = ["-lbpf", "-lelf", "-lz"]
    _run(["aarch64-linux-gnu-gcc", "-O1", "-static", "-o", str(root / "init"), str(_HERE / "verify.c"), *libraries])
    (root / "mrc.bpf.o").write_bytes(object_path().read_bytes())
    for n, settings in enumerate(variants.values()):
        (root / f"settings.{n}").write_bytes(settings)
    _run(["sh", "-c", "find . | cpio --quiet -o -H newc >../initrd"], root)


def _run(argv: list[str], cwd: Path | None = None) -> None:
    done = packages.completed(argv, cwd)
    if done.returncode:
        raise MachineError(f"{argv[0]} failed: {done.stderr.strip()}", hint="scripts/set-up --arm64")
