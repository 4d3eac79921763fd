"""The runtime without input and output: messages go in, messages come out."""
