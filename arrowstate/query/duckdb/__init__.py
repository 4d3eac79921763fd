"""DuckDB over checkpoints: connections, what they read, and what a filter rules out."""
