# SPDX-License-Identifier: BSD-2-Clause
"""Builds a cluster on one machine: namespaces, links, switches, processes.

fabric           pure: parameters → namespaces, links, addresses, routes as data
render           pure: that data → lines for `ip -batch`, and sysctls
netns            enters network namespaces; batches, sysctls, mounts
processes        records processes, and ends exactly those
state            /run/mrcd-lab/NAME: lock, parameters, faults
bringup          up and down
api              class Lab, for tests, demo and bench
cli              `scripts/lab`
observe          reads the daemons' documents
patience         deadlines, longer on an emulated CPU
emulated_peers   one host whose thousands of peers are one program
simulated_fabric pure: counts of hosts in a large fabric with faults
"""
