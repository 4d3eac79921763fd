"""Nexmark: events of an auction site, stateful queries on Spark and on the runtime, and their results by DuckDB."""
