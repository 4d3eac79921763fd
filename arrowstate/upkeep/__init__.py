"""What is kept of a store besides its newest checkpoint, and what goes: retention, collection, compaction, recovery."""
