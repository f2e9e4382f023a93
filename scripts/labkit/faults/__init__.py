# SPDX-License-Identifier: BSD-2-Clause
"""Breaks links and switches, and heals them.

targets         pure: `t1:0:2` → the ports that a fault there touches
fault_program   attaches bpf/lab/fault.bpf.c, starts it at one instant, reads its counters
tc_hook         attaches the lab's programs at tc
delay           delays packets of a port by a relay
inject          makes and heals faults
"""
