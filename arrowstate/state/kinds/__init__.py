"""The kinds of keyed state."""
