# SPDX-License-Identifier: BSD-2-Clause
"""Tests that Debian's kernels can be fetched. It runs beside other tests, because it takes half a minute."""

import pytest

from labkit.kernels import packages
from labkit.kernels.packages import Kernel


@pytest.mark.parametrize("series", packages.SERIES)
def test_the_newest_kernel_of_a_series_is_complete(kernels: dict[str, Kernel], series: str) -> None:
    kernel = kernels[series]
    assert kernel.release.startswith(f"{series}.")
    assert kernel.image.is_file()
    assert (kernel.root / "lib/modules" / kernel.release / "modules.dep").is_file()
