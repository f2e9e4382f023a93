# SPDX-License-Identifier: BSD-2-Clause
"""Draws measurements as SVG. Pure."""
