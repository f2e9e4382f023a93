"""Prometheus metrics and their endpoint."""
