# SPDX-License-Identifier: BSD-2-Clause
"""Measures failover: how long a broken path is still used, and how much a flow loses by it.

kinds     pure: the faults, the EVs that they hit, the requirements
stats     pure: percentiles of times of which some never came; requirements; texts
tables    the hosts' pinned tables, mapped
events    breaks a path, waits until it is left, heals it; repeatedly, under one flow
flapping  a T1 that fails and returns at the rate of the paper's worst link
loss      loss of a flow of ten seconds over a lossy path
holes     the gap in a flow's goodput: mrcd, MPTCP, the kernel's seg6 multipath route
pauses    pauses of the machine's CPUs
mptcp     MPTCP with one subflow per plane
report    pure: the document → tables, and a picture
part      the part `failover`
"""
