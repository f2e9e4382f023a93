# SPDX-License-Identifier: BSD-2-Clause
"""Lists the faults as data, and their times."""

from dataclasses import dataclass

from labkit.cluster.patience import patience
from labkit.demo.training.kernel_path import KernelPath

# gloo's ring sends from each rank to the one before. These two are under different T0s.
SENDER, RECEIVER = "h2", "h1"


@dataclass(frozen=True)
class Times:
    """Seconds: without a fault at the beginning, before each fault, with it, and after healing."""

    lead_s: float = patience(10.0)
    before_s: float = patience(3.0)
    fault_s: float = patience(5.0)
    after_s: float = patience(8.0)


@dataclass(frozen=True)
class Fault:
    """Something that breaks and heals. `drop` is a share of the packets; `down`: the link loses its carrier."""

    target: str  # the TARGET of `scripts/lab fail`
    words: str
    drop: float | None = None
    down: bool = False


def faults(path: KernelPath) -> tuple[Fault, ...]:
    """Returns the faults, all on one path: a fault elsewhere would not touch a flow of the kernel, which uses one."""
    link = f"link:{path.plane}:{path.t0}:{path.t1}"
    return (
        Fault(f"t1:{path.plane}:{path.t1}", "a T1 dies"),
        Fault(f"nic:{path.sender}:{path.plane}", "a NIC is down", down=True),
        Fault(f"t0:{path.plane}:{path.t0}", "a T0 is gone"),
        Fault(link, "20 % loss", drop=0.2),
        Fault(link, "1 % loss", drop=0.01),
    )
