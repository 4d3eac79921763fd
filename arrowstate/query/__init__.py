"""Reading checkpoints as tables, without the job that wrote them."""

from arrowstate.query.reader import SnapshotReader

__all__ = ["SnapshotReader"]
