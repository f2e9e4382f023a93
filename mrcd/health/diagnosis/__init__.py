# SPDX-License-Identifier: BSD-2-Clause
"""Diagnoses: names the smallest causes that explain what is wrong on this host's paths.

read_facts.py reads the tables; rules.py and cover.py decide (pure); sentences.py says it; watch.py logs events.
"""
