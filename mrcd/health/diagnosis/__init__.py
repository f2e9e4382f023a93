# SPDX-License-Identifier: BSD-2-Clause
"""Diagnoses: names the smallest causes that explain what is wrong on this host's paths.

facts.py reads the tables, and sizes.py probes EVs; rules.py and cover.py decide; sentences.py says it; watch.py logs
events.
"""
