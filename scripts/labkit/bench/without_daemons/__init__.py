# SPDX-License-Identifier: BSD-2-Clause
"""The benchmark without daemons: both ends of two flows lose their daemons for good, and then paths fail and heal.

faults    makes a fault, sees the paths leave and return, and measures their traffic then
judge     pure: the order and the places of the faults, summaries, requirements
report    pure: the document → tables, and a picture
part      the part `alone`
"""
