# SPDX-License-Identifier: BSD-2-Clause
"""Defines the commands of mrcctl: arguments, options and help. Slow modules are imported when a command runs."""
