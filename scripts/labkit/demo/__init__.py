# SPDX-License-Identifier: BSD-2-Clause
"""The demo: a TCP flow over every path of a fabric in which things break and heal.

scenario    the faults and their times, as data
record      runs the flow and the faults, and records what the daemons report
screen      the live view
live        what the live views of both demos share
training/   the demo of a training job
report      pure: Recording → the document that --json prints
text        pure: that document → tables
picture     pure: that document → chart.Picture
cli         the command line
"""
