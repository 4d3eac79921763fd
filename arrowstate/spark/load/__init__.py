"""Bringing state in: from tables, and from the checkpoints of Spark's own queries."""
