# SPDX-License-Identifier: BSD-2-Clause
"""The lab: a cluster of hosts and SRv6 switches in network namespaces on one machine, and what runs in it.

cluster     builds the fabric, starts the daemons, and offers class Lab (api) and `scripts/lab` (cli)
faults      breaks links and switches, and heals them
traffic     TCP, UDP and training traffic between hosts
measure     goodput, packet order, run time of programs
monitoring  a real Prometheus and Alertmanager over the lab
screenshots the web page in a browser
tables      prints measurements; plot: draws them as SVG
bench       `scripts/bench`: the benchmarks
demo        `scripts/demo`: a flow, two faults, a picture; `scripts/demo-training`: a training job
kernels     `scripts/kernels`: the checks on other kernels and network cards, in virtual machines
entry       errors, interrupts and files of the command lines
places      where the lab's files are
"""
