"""Reads and validates the cluster file, and prints it with its defaults."""
