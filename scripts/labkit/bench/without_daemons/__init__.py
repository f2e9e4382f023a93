# SPDX-License-Identifier: BSD-2-Clause
"""The benchmark without daemons: both ends of two flows lose their daemons for good, and then paths fail and heal.

plan      pure: the order and the places of the faults
faults    makes a fault, sees the paths leave and return, and measures their traffic then
judge     pure: summaries and requirements
text      pure: the document → tables
picture   pure: the document → panels.Picture
part      the part `alone`
"""
