"""Detects what this kernel's BPF has, by the names in its type information (BTF), never by its version."""

from pathlib import Path

from mrcd.tables.abi import KernelHas

_BTF = Path("/sys/kernel/btf/vmlinux")
_NAMES = {
    KernelHas.KERN_CTX: b"bpf_cast_to_kern_ctx",
    KernelHas.DECAP_L3: b"BPF_F_ADJ_ROOM_DECAP_L3_IPV4",
}


_WITHOUT = {
    KernelHas.KERN_CTX: "bpf_cast_to_kern_ctx (6.2): bursts of tunnels are cut at mrc0",
    KernelHas.DECAP_L3: "BPF_F_ADJ_ROOM_DECAP_L3 (6.3): bursts of tunnels are cut at mrc0, those of UDP not forwarded",
}


_WITHOUT_RPS = "rps_default_mask (6.3): flows stay on the CPU that receives them (no RPS), whatever rps_cpus says"


def lacking(has: KernelHas, *, can_steer: bool) -> list[str]:
    """What a kernel has not, since which release others have it, and what becomes of it. Pure."""
    found = [words for feature, words in _WITHOUT.items() if not feature & has]
    return found if can_steer else [*found, _WITHOUT_RPS]


def kernel_has(btf: Path = _BTF) -> KernelHas:
    """What the programs may use of this kernel; without BTF nothing. BTF has each name once, between zero bytes."""
    try:
        names = btf.read_bytes()
    except OSError:
        return KernelHas(0)
    found = KernelHas(0)
    for feature, name in _NAMES.items():
        if b"\0" + name + b"\0" in names:
            found |= feature
    return found
