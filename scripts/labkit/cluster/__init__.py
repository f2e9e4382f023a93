"""A cluster on one machine: namespaces, links, switches, processes."""
