# SPDX-License-Identifier: BSD-2-Clause
"""Marks for tests of features that some kernels lack, and maps of no object."""

import ctypes
from pathlib import Path

import pytest

from mrcd.kernel import libbpf

_BTF = Path("/sys/kernel/btf/vmlinux")


def _names(name: bytes) -> bool:
    return _BTF.exists() and b"\0" + name + b"\0" in _BTF.read_bytes()


HAS_TCX = _names(b"BPF_TCX_INGRESS")
needs_tcx = pytest.mark.skipif(not HAS_TCX, reason="this kernel has no TCX (Linux 6.6)")


def create_array(value_size: int, entries: int) -> int:
    """Returns the descriptor of a new array map of no known layout."""
    sizes = (ctypes.c_uint32(n) for n in (4, value_size, entries))
    return libbpf.check("create", libbpf.lib().bpf_map_create(2, b"some", *sizes, None))
