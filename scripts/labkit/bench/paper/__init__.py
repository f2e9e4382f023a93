# SPDX-License-Identifier: BSD-2-Clause
"""The paper's failure experiments, repeated with one TCP flow over planes of limited rate, beside the paper's points.

figures   pure but for reading: the paper's points, scaled, and aligned with a course of our own
plateaus  pure: levels between steps, gaps after steps; messages of a flow from its first byte on
course    one or several flows and the faults under them, in bins of 10 ms
planes    experiments 19b and 9b: planes leave and return
lossy     experiments 12/13 and 16: an EV, or every path, drops packets
medians   pure: several runs → one document
report    pure: the document → lines, and a picture
part      the part `paper`
data/     the paper's points
"""
