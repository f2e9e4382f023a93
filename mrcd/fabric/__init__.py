# SPDX-License-Identifier: BSD-2-Clause
"""Computes the uSIDs, EVs and addresses of the fabric, and describes mrcd's packets. Pure."""
