"""The demonstration: a stateful Spark stream over the flights from New York in 2013."""
