"""mrcd: the path behaviour of MRC (Multipath Reliable Connection) for every flow of a host."""

__version__ = "0.1.0"
