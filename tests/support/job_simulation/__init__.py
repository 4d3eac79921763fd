"""Jobs of the runtime that a seed makes, run in one thread under every kind of bad luck, and what must be so."""
