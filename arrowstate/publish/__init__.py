"""Checkpoints as open tables, Apache Iceberg and Delta Lake, that every engine reads; derived from the log alone."""
