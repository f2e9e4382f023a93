# SPDX-License-Identifier: BSD-2-Clause
"""The daemon: reconciles what the cluster file wants with what the kernel has."""
