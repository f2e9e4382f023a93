"""Loads, pins, attaches and replaces the programs."""
