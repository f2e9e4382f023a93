"""libbpf and bpf(2): objects, BTF, pins, ring buffers, and what the kernel says of programs and maps."""
