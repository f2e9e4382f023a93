"""The failover benchmark: how long a path that breaks is still used, and what that costs a flow.

kinds     pure: what breaks, which EVs it hits, what is required
stats     pure: percentiles of times of which some never came; requirements; words
tables    the hosts' pinned tables, mapped
events    breaks a path, watches it being left, heals it: again and again, under one flow
flapping  a T1 that comes and goes as the paper's worst link
loss      what a lossy path costs a flow of ten seconds
holes     the hole in a flow's goodput: mrcd, MPTCP, the kernel's seg6 multipath route
witness   when the machine itself stood still
mptcp     MPTCP with one subflow per plane
text      pure: the document → tables
picture   pure: the document → strips.Picture
part      the PART
"""
