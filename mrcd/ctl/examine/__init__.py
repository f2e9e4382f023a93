# SPDX-License-Identifier: BSD-2-Clause
"""The checks of `mrcctl preflight` and `mrcctl doctor`, which read the machine through machine.py.

It imports numpy and bcc, so the commands import it late.
"""
