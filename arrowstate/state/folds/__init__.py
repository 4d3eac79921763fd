"""Folding the values of a batch into those of their keys."""
