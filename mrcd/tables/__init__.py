"""Maps the tables that the eBPF programs and Python share, and defines their layout (abi)."""
