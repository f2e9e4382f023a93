# SPDX-License-Identifier: BSD-2-Clause
"""Prints text on terminals: number formats, tables, the full screen, and the end of a pipe."""
