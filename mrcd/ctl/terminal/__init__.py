# SPDX-License-Identifier: BSD-2-Clause
"""Text for terminals: number formats, tables, the full screen, and the end of a pipe."""
