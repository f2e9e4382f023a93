# SPDX-License-Identifier: BSD-2-Clause
"""The commands of mrcctl: arguments, options and help. Each module imports its slow parts when a command runs."""
