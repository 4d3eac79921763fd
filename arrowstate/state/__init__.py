"""State by batch or on a current key: what all kinds share, and what a transaction over them is."""
