"""The matrix: the programs, the packet tests and a small lab on each kernel that users have."""
