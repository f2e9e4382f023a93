"""The demo: a TCP flow over every path of a fabric in which things break and heal.

scenario    what happens when, as data
record      does it: flow, faults, what the daemons say, into a Recording
screen      how it looks while it runs
report      pure: Recording → the document that --json prints
text        pure: that document → tables for people
picture     pure: that document → chart.Picture
cli         the door
"""
