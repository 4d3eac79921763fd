"""Runs of rows in memory: sorted, probed, merged, spilled."""
