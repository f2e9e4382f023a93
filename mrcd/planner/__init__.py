# SPDX-License-Identifier: BSD-2-Clause
"""Plans fabrics, writes and checks the configuration of their switches: `mrcctl fabric`, which needs no mrcd."""
