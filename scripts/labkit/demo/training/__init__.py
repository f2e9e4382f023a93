# SPDX-License-Identifier: BSD-2-Clause
"""The demo of a training job: its steps through five faults, over the kernel's own SRv6 and with mrcd.

scenario     the faults and their times, as data
kernel_path  finds the path that the kernel's routes take, where the faults are made
record       runs the job and the faults
screen       the live view
report       pure: both runs → the document that --json prints
text         pure: that document → tables
picture      pure: that document → panels.Picture
cli          the command line
"""
