"""Placeholder until the reader is in place."""
class SnapshotReader:
    def __init__(self, storage, store_id, entry):
        self.storage, self.store_id, self.entry = storage, store_id, entry
