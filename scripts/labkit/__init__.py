"""The lab: a cluster of hosts and SRv6 switches in network namespaces on one machine.

fabric      pure: parameters → namespaces, links, addresses, routes as data
render      pure: that data → lines for `ip -batch`, and the cluster file
targets     pure: `t1:0:2` → the ports that a fault there touches
netns       entering network namespaces, batches, sysctls, mounts
processes   pids on record, and ending exactly those
state       /run/mrcd-lab/NAME: lock, parameters, faults
tap         the fault program: load, attach, set, count
faults      break and heal
bringup     up and down
api, cli    the two doors: class Lab for tests, `scripts/lab` for people
"""
