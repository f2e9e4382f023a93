# SPDX-License-Identifier: BSD-2-Clause
"""Finds faults that are drawn at random in fabrics of many sizes, from counts that are drawn, too.

traffic   pure: jobs, who sends to whom, and how much
simulate  pure: faults, lost packets per path, and the sums that hosts export
voting    pure: 007's idea on the same losses, with a count per path
part      the part `localise`
"""
