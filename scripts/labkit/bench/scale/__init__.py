"""`scripts/bench scale`: what a table of many peers costs in memory and time.

bounds.py  what is allowed
picture.py the picture
part.py    sizes, requirements, the table
probe.py   one measurement: of the kernel's tables, the daemon's memory and CPU, its own metrics, how fast it answers
"""
