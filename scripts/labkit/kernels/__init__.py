# SPDX-License-Identifier: BSD-2-Clause
"""Checks the programs, the packet tests and a small lab on other kernels and network cards, in virtual machines.

matrix         a row per kernel, a column per check
guest          runs the checks on the kernel
programs       the checks of the programs
labs           the checks in small labs
stacked        the checks of a pod's device over mrc0, and of a NIC in a VRF
shaped         the checks of hosts that pace, shape or queue their traffic
machine        boots a kernel for one command
arm64          what qemu emulates an arm64 machine with
host, pair     one machine, or two, that stay up, with network cards
nics           the checks of a network card
geneve         Geneve beside mrcd's encapsulation: packets per 100 segments
paced          a TCP flow of a fixed rate
fresh_debian   a new Debian on which `make demo` runs
packages       fetches kernels
cli            `scripts/kernels`
"""
