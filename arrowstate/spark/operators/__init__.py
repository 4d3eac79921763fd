"""Stateful operators: functions with keyed state over a stream, and what they emit."""
