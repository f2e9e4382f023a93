# SPDX-License-Identifier: BSD-2-Clause
"""Collects the files of `mrcctl bugreport` and removes secrets from them."""
