"""Configures this host's interfaces, addresses, routes, sysctls and tc/XDP hooks."""
