# SPDX-License-Identifier: BSD-2-Clause
"""The benches: a module each says what it sets up, what it measures, and its bounds. frame.py has what they share.

`scripts/bench` (cli.py) runs them: one document, one format of tables, one table of bounds, a picture each.
"""
