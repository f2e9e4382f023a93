# SPDX-License-Identifier: BSD-2-Clause
"""Watches a lab as operators watch a cluster, with a real Prometheus and Alertmanager.

prometheus     the server that scrapes the lab's hosts
alertmanager   the server that gets its alerts, and notifies a web server of this process
watched_lab    all of them over one lab, with mrcd's rules in shorter durations
"""
