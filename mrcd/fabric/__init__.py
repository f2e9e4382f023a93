"""The fabric in numbers: hosts, switches, uSIDs, EVs, packets. Pure."""
