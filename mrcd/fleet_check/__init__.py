# SPDX-License-Identifier: BSD-2-Clause
"""Decides whether a job's hosts are ready: `mrcctl fleet check`, which needs no mrcd.

samples       what hosts last told Prometheus    read     asks Prometheus for it
findings      what is wrong, and how much        hosts    what single hosts say, and where they differ
named_faults  what their diagnoses name together verdict  all of these → the verdict
"""
