"""What mrcd needs of libbpf and of bpf(2): objects, BTF, pins, ring buffers, what the kernel says of programs and maps."""
