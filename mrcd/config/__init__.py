"""The cluster file: reads and checks it, and writes it back with its defaults."""
