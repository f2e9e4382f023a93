# SPDX-License-Identifier: BSD-2-Clause
"""Works on all hosts: takes the cluster file and denials from etcd (member.py), and finds bad links (localise/)."""
