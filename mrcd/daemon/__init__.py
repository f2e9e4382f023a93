# SPDX-License-Identifier: BSD-2-Clause
"""Reconciles the kernel's state with the cluster file: the daemon, its reloads, and attach and detach."""
