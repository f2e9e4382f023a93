"""TCP, UDP and training traffic between hosts, and the programs at its ends."""
