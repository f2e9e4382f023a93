"""Loads, pins, attaches and replaces the eBPF programs."""
