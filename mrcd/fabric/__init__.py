"""Computes the uSIDs, EVs and addresses of the fabric, and describes mrcd's packets. Pure."""
