"""How Flink wrote values: descriptions of its serializers, and their values as columns."""
