# SPDX-License-Identifier: BSD-2-Clause
"""Takes paths out of use for an administrator, by denials. control.py describes how a denial is processed."""
