# SPDX-License-Identifier: BSD-2-Clause
"""Reads and validates the cluster file, and prints it with its defaults."""
