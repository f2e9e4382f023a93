# SPDX-License-Identifier: BSD-2-Clause
"""Serves Prometheus metrics, and the web page of this host (page/)."""
