# SPDX-License-Identifier: BSD-2-Clause
"""Serves Prometheus metrics."""
