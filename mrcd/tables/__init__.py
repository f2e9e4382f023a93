"""The maps that programs and Python share: their layout (abi) and the pinned maps as numpy arrays."""
