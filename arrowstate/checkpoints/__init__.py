"""The life of a checkpoint: fence, freeze, write, commit."""
