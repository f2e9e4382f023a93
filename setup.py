# SPDX-License-Identifier: BSD-2-Clause
"""Compiles the eBPF object before `pip install .` collects the package, which setup.cfg describes.

Without this step a wheel from a fresh clone would carry no eBPF object, and only a running host would notice.
"""

import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithObject(build_py):
    """Compile mrcd/mrc.bpf.o, then collect the package as usual."""

    def run(self) -> None:
        """Compile unless the package stays in the checkout, where `make build` does."""
        if not getattr(self, "editable_mode", False):
            subprocess.run(["make", "--no-print-directory", "build"], cwd=Path(__file__).parent, check=True)
            # setuptools copies into this directory but never deletes: modules removed since would be shipped.
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": BuildWithObject})
