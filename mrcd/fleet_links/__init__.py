# SPDX-License-Identifier: BSD-2-Clause
"""Finds the links, NICs and switches that lose packets, from what all hosts sent and lost: `mrcctl fleet links`.

counts      sums that hosts export, and elements that can lose packets     read      Prometheus' answers → counts
likelihood  one sum, what is expected of it, and the fit of an element     document  what `mrcctl fleet links` prints
model       where the losses of an element are counted                     search    the fewest elements for all losses
"""
