"""The paper's failure experiments, repeated with one TCP flow over planes of limited rate, beside the paper's points.

figures   pure: the paper's points, read, scaled, and laid beside a course of our own
plateaus  pure: levels between steps, holes after them; messages of a flow from its first byte on
course    one or several flows and what happens to them, in bins of 10 ms
planes    experiments 19b and 9b: planes leave and return
lossy     experiments 12/13 and 16: an EV, or every path, drops packets
text      pure: the document → lines
picture   pure: the document → panels.Picture
part      the PART
data/     the paper's points
"""
