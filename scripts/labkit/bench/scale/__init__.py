# SPDX-License-Identifier: BSD-2-Clause
"""`scripts/bench scale`: memory and time of a table of many peers.

part        the part: sizes, and what is measured of each
report      pure: the bounds, what is required, tables, the picture
probe       one measurement: kernel tables, the daemon's memory and CPU, its metrics, its answer times
control     packets, bytes and CPU of probes with many busy peers
t1_failure  how long a dead T1 stays in use
"""
