# SPDX-License-Identifier: BSD-2-Clause
"""The benchmarks: one module or package per part, each measuring against a stated requirement.

part              defines a part
suite             runs several parts: one document, one table of bounds
cli               `scripts/bench`

Parts:
throughput        goodput and CPU of mrcd beside what hosts have without it
cost              time per packet of each program
planes            one flow over planes of limited rate
paper             the MRC paper's failure experiments, beside the paper's points
job               steps of a training job, mrcd attached and detached
lifecycle         restarts, kills, upgrades and reloads under traffic
false_demotions   part `calm`: no EV may be ASSUMED_BAD without a fault
failover          how fast a broken path is left, and how much a flow loses
without_daemons   part `alone`: paths fail and heal while both daemons are dead
scale             one host among up to 4,096 peers

Modules that the parts use:
candidates        the compared ways from h0 to h2: mrcd's, and the kernel's own
cells             pure: the matrix of throughput, and its requirements
receive_settings  RPS and GRO of a candidate
run               measures one candidate under one load
pairs             pure: do two ways that were measured in pairs differ?
bare_host         a host's data plane without a daemon, with tables of any size
packet_sender     sends many packets by few system calls
helper_calls      helper calls per packet, counted by the programs
cache_misses      packets to more peers than a CPU's caches hold
control           counts probe requests and replies, beside the data
probing           counts the probes between two hosts; switches them off and on
cpu, cpu_load     measures how busy the machine is; makes its CPUs too busy
pictures          pure: documents of throughput, cost and planes → pictures
"""
