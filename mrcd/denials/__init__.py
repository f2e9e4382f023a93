"""Paths that an administrator has taken out of use."""
