# SPDX-License-Identifier: BSD-2-Clause
"""mrcd gives every TCP and UDP flow of a host the path behaviour of MRC (Multipath Reliable Connection)."""

__version__ = "0.1.0"
