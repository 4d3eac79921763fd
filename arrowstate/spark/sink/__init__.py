"""The keyed sink: rows of a stream folded into states."""
