# SPDX-License-Identifier: BSD-2-Clause
"""The demos: a TCP flow over every path of a fabric, and a training job, while things break and heal.

cli               `scripts/demo`
record, report    its flow, faults and live view; pure: what happened → the document of --json, tables, a picture
training          `scripts/demo-training`: its command, faults and live view
training_report   pure: its steps → document, tables, picture
live              the live view of both
"""
