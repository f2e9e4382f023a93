# SPDX-License-Identifier: BSD-2-Clause
"""The documents that users see, made from the tables."""
