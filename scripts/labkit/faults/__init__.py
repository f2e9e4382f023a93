"""Breaks links and switches, and heals them."""
