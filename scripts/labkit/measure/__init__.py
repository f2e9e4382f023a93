# SPDX-License-Identifier: BSD-2-Clause
"""Measures goodput, packet order, spread over EVs, and the run time of programs."""
