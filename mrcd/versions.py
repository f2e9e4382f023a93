# SPDX-License-Identifier: BSD-2-Clause
"""Defines the versions of the tables, the packets and the JSON documents.

They are separate from mrcd.kernel.abi so that mrcctl can read them without importing numpy.
"""

ABI_VERSION = 15  # tables: MRC_ABI_VERSION in bpf/mrc_abi.h
WIRE_VERSION = 3  # packets: MRC_WIRE_VERSION in bpf/mrc_wire.h
PROBE_VERSION = 2  # probes, the same in all wire versions: MRC_PROBE_VERSION
SCHEMA_VERSION = 2  # JSON documents: schema_version
