# SPDX-License-Identifier: BSD-2-Clause
"""Works on many hosts at once."""
