"""Benchmarks: arrowstate and its peers on the same input, in turns, in one process."""
