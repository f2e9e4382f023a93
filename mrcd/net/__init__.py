# SPDX-License-Identifier: BSD-2-Clause
"""Configures this host's interfaces, addresses, routes, sysctls and tc/XDP hooks."""
