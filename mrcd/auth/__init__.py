# SPDX-License-Identifier: BSD-2-Clause
"""Authenticates packets: the secrets of the cluster, and which key of a secret is used for which peer."""
