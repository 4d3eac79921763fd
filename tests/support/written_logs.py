"""A log that a test writes entry by entry."""

import random

from arrowstate.log.boundary import put_boundary
from arrowstate.log.commit import Commit
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import next_checkpoint, next_compaction, next_fence, path_of
from arrowstate.log.pins import put_tag
from arrowstate_formats.documents import BoundaryDocument

__all__ = ["Log", "say_collected"]


class Log:
    """A log that is written entry by entry, and which entry answers each id."""

    def __init__(self, storage):
        self.storage = storage
        self.log = CommitLog(storage)
        self.newest = None
        self.checkpoint = None
        self.found = {}

    def add(self, document):
        self.newest = Commit(self.storage).append(self.log, document)
        if document.kind != "fence":
            self.checkpoint = document
            self.found[document.checkpoint_id] = document.number
        return document.number

    def fence(self):
        return self.add(next_fence(self.newest, commit_id=f"f{random.random()}", now_ms=0, properties={}))

    def commit(self, skipped=0):
        newest_id = self.checkpoint.checkpoint_id if self.checkpoint else 0
        options = {"commit_id": f"c{random.random()}", "started_at_ms": 0, "now_ms": 0}
        given = newest_id + 1 + skipped if skipped else None
        return self.add(next_checkpoint(self.newest, [], watermark=None, properties={}, checkpoint_id=given, **options))

    def compact(self):
        options = {"commit_id": f"k{random.random()}", "started_at_ms": 0, "now_ms": 0}
        return self.add(next_compaction(self.newest, [], checkpoint=self.checkpoint, **options))

    def collect(self, boundary, keep=()):
        """Drop the entries below a number, except for tagged ones."""
        kept = {self.found[checkpoint_id]: checkpoint_id for checkpoint_id in keep}
        for number, checkpoint_id in kept.items():
            entry = self.log.read(number)
            name = f"t{checkpoint_id}"
            assert put_tag(self.storage, name, checkpoint_id, entry.as_parent, files=(), tag_id=name, now_ms=0)
        say_collected(self.storage, boundary)
        for number in self.log.numbers():
            if number < boundary and number not in kept:
                self.storage.delete(path_of(number))
        self.found = {id: number for id, number in self.found.items() if number >= boundary or number in kept}


def say_collected(storage, boundary):
    document = BoundaryDocument(
        boundary=boundary, swept=0, collection_id=f"c{boundary}", written_at_ms=0, condemned=[], waiting={}
    )
    put_boundary(storage, document)
