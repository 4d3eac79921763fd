"""Windows: which a row belongs to, when they fire, and the function that keeps them."""
