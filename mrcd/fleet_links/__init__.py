# SPDX-License-Identifier: BSD-2-Clause
"""Finds the links, NICs and switches that lose packets, from what all hosts sent and lost: `mrcctl fleet links`.

counts      the sums that hosts export          elements    what can lose packets
model       where its losses are counted        sender      the same for one host's NIC
grid        one sum, and what is expected       likelihood  fits the losses of an element
candidates  what to try                         search      the fewest elements that explain all
read        Prometheus' answers → counts        document    what `mrcctl fleet links` prints
"""
