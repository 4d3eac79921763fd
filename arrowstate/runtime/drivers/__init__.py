"""What drives the core: one thread with a clock of its own, threads, or processes."""
