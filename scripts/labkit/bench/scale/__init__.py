"""`scripts/bench scale`: what a table of many peers costs in memory and time.

part.py    sizes, requirements, the table
probe.py   one measurement: of the kernel's tables, the daemon's memory and CPU, its own metrics, how fast it answers
"""
