# SPDX-License-Identifier: BSD-2-Clause
"""Takes the cluster file and fleet-wide denials from etcd, and reports to it. member.py describes the walk."""
