# SPDX-License-Identifier: BSD-2-Clause
"""Sends TCP, UDP and training traffic between hosts of the lab.

flow, stream              a TCP flow, UDP at full speed; numbered UDP at a fixed rate, one or many
candidates                the compared ways from h0 to h2: mrcd's, and the kernel's own
packet_sender, attacks    many packets by few system calls; those of attackers
job                       a training job: a gloo rank per host
wire                      the headers of packets, as scapy layers
mesh                      datagrams between all pairs of hosts
relay                     forwards by a third host
child                     runs a program inside a host, and reads what it prints
…end                      programs that run inside the hosts, at the ends of the traffic
pause_watcher             a program per CPU that reports when it could not run
"""
