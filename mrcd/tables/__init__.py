# SPDX-License-Identifier: BSD-2-Clause
"""Maps the tables that the eBPF programs and Python share, and defines their layout (abi)."""
