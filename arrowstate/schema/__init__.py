"""Descriptors, keys, and the Arrow layout of a state's rows."""
