"""Nexmark on Spark: events of an auction site, stateful queries over them, and their results checked by DuckDB."""
