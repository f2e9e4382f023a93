"""Draws measurements as SVG. Pure."""
