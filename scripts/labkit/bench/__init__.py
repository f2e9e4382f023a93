"""The benchmarks: one module per part, each measuring against a stated requirement.

part          what a part is
candidates    ways from h0 to h2: mrcd's, and the kernel's own beside it
cpu           how much of the machine was busy
cells         what throughput measures, and what is required of it
receive       RPS and GRO: the same for all candidates, or their own
run           one candidate under one load, measured
throughput    part: mrcd beside what hosts have without it, by turns
bare          a host's data plane without a daemon, with tables of any size
blast         many packets by few system calls
calls         helper calls per packet, counted by the programs
cost          part: what a packet costs in each program
spread        part: how evenly one flow fills the EVs
planes        part: one flow over planes of limited rate
pictures      pure: the documents of these four → their pictures
control       probe requests and replies, counted beside the data
probing       the probes between two hosts, counted, off and on
pairs         do two ways that were measured in pairs differ?
overhead      part: what probes cost
job           part: a training job's steps, with mrcd attached and detached
load          CPUs too busy, or stalled
calm          part: no path is left without a reason
failover      part: how fast a broken path is left, and what it costs
alone         part: paths fail and heal with the daemons dead
paper         part: the MRC paper's failure experiments beside its points
scale         part: one host among up to 4,096 peers
whole         several parts: one document, one table of bounds
cli           the door
"""
