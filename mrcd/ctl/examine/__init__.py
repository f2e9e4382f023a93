# SPDX-License-Identifier: BSD-2-Clause
"""Checks the machine, for `mrcctl preflight` and `mrcctl doctor`; the checks read it through machine.py.

Each of the modules below puts its checks into the table of checks.py, in this order, which is that of the output.
They import numpy and bcc, so the commands import this room late.
"""

from mrcd.ctl.examine import of_machine, of_nics, of_running, of_sysctls

__all__ = ["of_machine", "of_nics", "of_running", "of_sysctls"]
