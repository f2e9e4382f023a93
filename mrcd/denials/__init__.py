# SPDX-License-Identifier: BSD-2-Clause
"""Denials: paths that an administrator has taken out of use. control.py describes the way of a denial."""
