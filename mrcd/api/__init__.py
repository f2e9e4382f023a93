# SPDX-License-Identifier: BSD-2-Clause
"""Serves the control API: HTTP and JSON on a unix socket. `metrics` serves Prometheus and browsers."""
