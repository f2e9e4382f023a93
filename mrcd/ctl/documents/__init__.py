# SPDX-License-Identifier: BSD-2-Clause
"""Renders the API's documents as text: one module per document. Pure: nothing here prints or reads a clock."""
