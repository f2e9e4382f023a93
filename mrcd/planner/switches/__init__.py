# SPDX-License-Identifier: BSD-2-Clause
"""Configures the switches of the fabric: what each needs (model.py), and that in the syntax of each system."""
