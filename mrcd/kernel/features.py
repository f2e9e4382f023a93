# SPDX-License-Identifier: BSD-2-Clause
"""Detects BPF features of the running kernel by names in its type information (BTF), and what its lockdown refuses."""

from pathlib import Path

from mrcd.kernel.enums import KernelHas

_BTF = Path("/sys/kernel/btf/vmlinux")
_NAMES = {
    KernelHas.KERN_CTX: b"bpf_cast_to_kern_ctx",
    KernelHas.DECAP_L3: b"BPF_F_ADJ_ROOM_DECAP_L3_IPV4",
}
_EFFECTS_OF_ABSENCE = {
    KernelHas.KERN_CTX: "bpf_cast_to_kern_ctx (6.2): tunnels' bursts are segmented at mrc0",
    KernelHas.DECAP_L3: "BPF_F_ADJ_ROOM_DECAP_L3 (6.3): tunnels' bursts are segmented at mrc0, UDP ones not forwarded",
}
_LOCKDOWN = Path("/sys/kernel/security/lockdown")
_READS_KERNEL = frozenset({"mrc_unsent"})  # programs that may be left out
_LOCKED = (
    "reading kernel memory (lockdown=confidentiality): packets dropped by this host's qdiscs count as path loss, and a "
    "firewall that drops what has arrived is not named"
)
_NO_RPS = "rps_default_mask (6.3): flows stay on the CPU that receives them (no RPS); rps_cpus has no effect"


def lacking(has: KernelHas, refused: frozenset[str], *, has_rps: bool) -> list[str]:
    """Returns the features that a kernel lacks, each with the Linux release that has it and the effect. Pure."""
    found = [text for feature, text in _EFFECTS_OF_ABSENCE.items() if not feature & has]
    return found + ([_LOCKED] if refused else []) + ([] if has_rps else [_NO_RPS])


def refused_programs(lockdown: Path = _LOCKDOWN) -> frozenset[str]:
    """Returns the programs that this kernel refuses, and that may be left out (kernel_lockdown(7))."""
    try:
        return _READS_KERNEL if "[confidentiality]" in lockdown.read_text() else frozenset()
    except OSError:  # a kernel without lockdown
        return frozenset()


def kernel_has(btf: Path = _BTF) -> KernelHas:
    """Returns the features that the programs may use: none without BTF. BTF has each name once, between zero bytes."""
    try:
        names = btf.read_bytes()
    except OSError:
        return KernelHas(0)
    found = KernelHas(0)
    for feature, name in _NAMES.items():
        if b"\0" + name + b"\0" in names:
            found |= feature
    return found
