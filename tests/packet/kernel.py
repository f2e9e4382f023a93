# SPDX-License-Identifier: BSD-2-Clause
"""Marks for tests of features that some kernels lack."""

from pathlib import Path

import pytest

_BTF = Path("/sys/kernel/btf/vmlinux")


def _names(name: bytes) -> bool:
    return _BTF.exists() and b"\0" + name + b"\0" in _BTF.read_bytes()


HAS_TCX = _names(b"BPF_TCX_INGRESS")
needs_tcx = pytest.mark.skipif(not HAS_TCX, reason="this kernel has no TCX (Linux 6.6)")
