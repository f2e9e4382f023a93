# SPDX-License-Identifier: BSD-2-Clause
"""Decides whether a job's hosts are ready: `mrcctl fleet check`.

samples  what hosts last told Prometheus    read   asks Prometheus for it
findings what is wrong, and how much        hosts  what single hosts say, and where they differ
faults   what their diagnoses name together judge  all of these → the verdict
"""
