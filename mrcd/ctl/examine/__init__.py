# SPDX-License-Identifier: BSD-2-Clause
"""Checks the machine, for `mrcctl preflight` and `mrcctl doctor`; the checks read it through machine.py.

It imports numpy and bcc, so the commands import it late.
"""
