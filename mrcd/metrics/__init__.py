"""Serves Prometheus metrics."""
