"""Edits of a checkpoint: statements, what they would change, and their commit."""
