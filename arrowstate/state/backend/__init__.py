"""Keyed and operator state of one subtask: its states, freezing and restoring."""
