"""Those who take checkpoints and commit them."""

from __future__ import annotations

from dataclasses import dataclass

from arrowstate_formats.errors import ArrowStateError


@dataclass(eq=False, repr=False)
class FencedError(ArrowStateError, RuntimeError):
    """Another writer took over the store; what this one wrote since its last commit is not part of it.

    Examples
    --------
    >>> print(FencedError(3, 4))
    this writer (epoch 3) was fenced by a newer one (epoch 4); stop it, only the newest writer of a store may commit
    """

    writer_epoch: int | None
    "The epoch of this writer, None where it was not let in at all."
    current_epoch: int | None
    "The epoch of the writer that may commit."
    _message = (
        "this writer (epoch {writer_epoch}) was fenced by a newer one (epoch {current_epoch}); stop it, only the "
        "newest writer of a store may commit"
    )


class QueryConflictError(FencedError):
    """A streaming query writes to an operator that does not expect its batch.

    Either another query owns the operator, or batches between the committed one and this one are
    missing. Both would count rows twice or lose them. `query_id` and its `batch_id` were refused.

    Examples
    --------
    >>> print(QueryConflictError("counter", "b2", 0, "a1", 6))
    operator 'counter' belongs to query a1; query b2 may not write to it: use another uid or store, or start with the \
checkpoint folder of query a1
    >>> print(QueryConflictError("counter", "a1", 9, "a1", 6))
    operator 'counter' has committed batch 6 and expects batch 7, got batch 9; batches between them are missing: \
restore the checkpoint folder of the query that belongs to this store
    """

    uid: str
    query_id: str
    batch_id: int
    committed_query_id: str
    committed_batch_id: int

    def __init__(
        self, uid: str, query_id: str, batch_id: int, committed_query_id: str, committed_batch_id: int
    ) -> None:
        super().__init__(None, None)
        self.args = uid, query_id, batch_id, committed_query_id, committed_batch_id
        self.uid, self.query_id, self.batch_id, self.committed_query_id, self.committed_batch_id = self.args

    def __str__(self) -> str:
        if self.query_id != self.committed_query_id:
            return (
                f"operator {self.uid!r} belongs to query {self.committed_query_id}; query {self.query_id} may not "
                "write to it: use another uid or store, or start with the checkpoint folder of query "
                f"{self.committed_query_id}"
            )
        return (
            f"operator {self.uid!r} has committed batch {self.committed_batch_id} and expects batch "
            f"{self.committed_batch_id + 1}, got batch {self.batch_id}; batches between them are missing: restore the "
            "checkpoint folder of the query that belongs to this store"
        )


@dataclass(eq=False, repr=False)
class EditConflictError(ArrowStateError, RuntimeError):
    """Somebody else committed to the store while a checkpoint was edited; nothing of the edit was committed.

    Examples
    --------
    >>> print(EditConflictError(41, 42))
    checkpoint 42 was committed while checkpoint 41 was edited; nothing of the edit was committed: stop who writes to \
the store, and edit checkpoint 42
    """

    edited: int
    "The checkpoint that was edited."
    newest: int
    "The newest one now."
    is_fenced: bool = False
    "Whether another writer opened the store and has committed nothing yet."
    not_again: str | None = None
    "Why the edit cannot be planned again, where it was to be."

    def __str__(self) -> str:
        # A compaction repeats a checkpoint under its id.
        became = "compacted" if self.newest == self.edited else "committed"
        what = "another writer opened the store" if self.is_fenced else f"checkpoint {self.newest} was {became}"
        again = "" if self.not_again is None else f"; it cannot be planned again, for {self.not_again}"
        return (
            f"{what} while checkpoint {self.edited} was edited; nothing of the edit was committed{again}: stop who "
            f"writes to the store, and edit checkpoint {self.newest}"
        )


@dataclass(eq=False, repr=False)
class CheckpointAbortedError(ArrowStateError, RuntimeError):
    """A checkpoint or savepoint ended without a commit; the store is as it was and the job may go on.

    Examples
    --------
    >>> print(CheckpointAbortedError(41, "expired", "not done after 600000 ms"))
    checkpoint 41 expired: not done after 600000 ms; nothing of it was kept, the next one takes its place
    """

    checkpoint_id: int
    status: str
    "How it ended: `declined`, `expired`, `subsumed`, `cancelled` or `failed`."
    reason: str
    _message = "checkpoint {checkpoint_id} {status}: {reason}; nothing of it was kept, the next one takes its place"


@dataclass(eq=False, repr=False)
class CheckpointCancelledError(ArrowStateError, RuntimeError):
    """A checkpoint was cancelled while its files were written; they are deleted, and nothing was committed.

    Examples
    --------
    >>> print(CheckpointCancelledError(42))
    checkpoint 42 was cancelled and its files are deleted; its changes are part of the next one
    >>> print(CheckpointCancelledError())
    the checkpoint was cancelled and its files are deleted; its changes are part of the next one
    """

    checkpoint_id: int | None = None
    "The checkpoint, None where it has no id yet."

    def __str__(self) -> str:
        which = "the checkpoint" if self.checkpoint_id is None else f"checkpoint {self.checkpoint_id}"
        return f"{which} was cancelled and its files are deleted; its changes are part of the next one"


@dataclass(eq=False, repr=False)
class CheckpointsStoppedError(ArrowStateError, RuntimeError):
    """A coordinator takes no more checkpoints, because too many have failed or it was closed.

    Examples
    --------
    >>> print(CheckpointsStoppedError("1 checkpoints in a row failed, the last one: no room"))
    no more checkpoints are taken: 1 checkpoints in a row failed, the last one: no room; mend that, then make a new \
coordinator
    """

    reason: str
    _message = "no more checkpoints are taken: {reason}; mend that, then make a new coordinator"


@dataclass(eq=False, repr=False)
class CommitUnknownError(ArrowStateError, OSError):
    """A commit was sent and its outcome cannot be told: it may or may not be in the store.

    Examples
    --------
    >>> print(CommitUnknownError("log/7.json", "9b2e", "connection lost"))
    cannot tell whether log/7.json was committed (commit id 9b2e): connection lost; open the store again and look
    """

    path: str
    "The file whose creation is the commit."
    commit_id: str
    "The id inside the file that tells whose commit it is."
    detail: str
    url: str = ""

    def __str__(self) -> str:
        where = f" in {self.url}" if self.url else ""
        return (
            f"cannot tell whether {self.path} was committed{where} (commit id {self.commit_id}): {self.detail}; "
            "open the store again and look"
        )


@dataclass(eq=False, repr=False)
class CompactionConflictError(ArrowStateError, RuntimeError):
    """A compaction of a store lost the race for the next log number each time it tried; the store is as it was.

    Examples
    --------
    >>> print(CompactionConflictError("/data/clicks", 5))
    the compaction of /data/clicks gave up: other commits took the next log number 5 times; nothing was changed; a job \
that runs compacts its own state with each checkpoint, so compact when it is done or commits less often
    """

    url: str
    attempts: int
    _message = (
        "the compaction of {url} gave up: other commits took the next log number {attempts} times; nothing was "
        "changed; a job that runs compacts its own state with each checkpoint, so compact when it is done or commits "
        "less often"
    )
