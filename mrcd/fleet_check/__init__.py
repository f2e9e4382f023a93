# SPDX-License-Identifier: BSD-2-Clause
"""Decides whether a job's hosts are ready: `mrcctl fleet check`, which needs no mrcd.

findings      what hosts last told Prometheus, and what is wrong, and how much      read     asks Prometheus
named_faults  what their diagnoses name together; hosts, what single hosts say      verdict  all of these → the verdict
"""
