# SPDX-License-Identifier: BSD-2-Clause
"""Measures goodput, packet order, the run time of programs, hosts' tables, and the machine's load."""
