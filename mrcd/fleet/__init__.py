# SPDX-License-Identifier: BSD-2-Clause
"""Works on all hosts.

member.py takes the cluster file and denials from etcd; prometheus.py asks Prometheus; localise/ finds bad links.
"""
