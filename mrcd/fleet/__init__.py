# SPDX-License-Identifier: BSD-2-Clause
"""Takes the cluster file and denials of all hosts from etcd, and reports what this host makes of them."""
