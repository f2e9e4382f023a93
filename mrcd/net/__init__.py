"""Interfaces, addresses, routes, hooks and sysctls of this host."""
