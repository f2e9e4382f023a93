"""The daemon: reconciles what the cluster file wants with what the kernel has."""
