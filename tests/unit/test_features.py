# SPDX-License-Identifier: BSD-2-Clause
"""Tests the detection of kernel features by names in BTF."""

from pathlib import Path

from mrcd.kernel.enums import KernelHas
from mrcd.kernel.features import kernel_has, lacking


def test_features_match_whole_names(tmp_path: Path) -> None:
    btf = tmp_path / "vmlinux"
    btf.write_bytes(b"\0x_bpf_cast_to_kern_ctx\0bpf_cast_to_kern_ctx_y\0BPF_F_ADJ_ROOM_DECAP_L3_IPV4\0")
    assert kernel_has(btf) == KernelHas.DECAP_L3
    btf.write_bytes(b"\0bpf_cast_to_kern_ctx\0BPF_F_ADJ_ROOM_DECAP_L3_IPV4\0")
    assert kernel_has(btf) == KernelHas.DECAP_L3 | KernelHas.KERN_CTX


def test_without_btf_no_feature_is_found(tmp_path: Path) -> None:
    assert kernel_has(tmp_path / "vmlinux") == KernelHas(0)


def test_missing_features_are_named() -> None:
    everything = KernelHas.DECAP_L3 | KernelHas.KERN_CTX
    assert lacking(everything, has_rps=True) == []
    (words,) = lacking(everything, has_rps=False)
    assert "no RPS" in words
    assert len(lacking(KernelHas(0), has_rps=False)) == 3
