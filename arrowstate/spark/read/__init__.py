"""Reading stores with Spark: states, their changes, outputs and the history, in batch and as streams."""
