"""Versions of what outlives one program or crosses its border. Here, so that mrcctl need not import numpy for them."""

ABI_VERSION = 9  # tables: MRC_ABI_VERSION in bpf/mrc_abi.h
WIRE_VERSION = 2  # packets: MRC_WIRE_VERSION in bpf/mrc_wire.h
SCHEMA_VERSION = 2  # JSON documents: schema_version
