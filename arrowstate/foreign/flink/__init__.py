"""Savepoints and checkpoints of Flink, read with Arrow alone: no JVM, no class of the job."""
