"""Kafka: a source, a sink, and how messages are made of rows."""
