"""What a simulated process has at hand, and which errors it may get."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import arrowstate
from arrowstate.log.entries import open_store_document
from arrowstate.storage.base import Storage
from arrowstate.upkeep.planned import Portions
from simulation.oracle import Oracle
from simulation.scheduler import Actor

__all__ = ["Process", "Script"]


@dataclass
class Process:
    """One process, for its script."""

    actor: Actor
    oracle: Oracle
    storage: Storage
    "The store, over a connection of its own."
    folder: Callable[[str], Storage]
    "Opens a folder of the store as a storage, for a savepoint."
    place: Callable[[str], Storage]
    "Opens the place to which a format of tables is published."
    made: list[str]
    "Every file that it created."
    now_ms: Callable[[], int]
    "The true time."
    grace_ms: int
    "How long files of an attempt wait for its commit."
    nominal_grace_ms: int | None
    "How long they should wait; None where clocks are wrong, and nothing is certain."
    portions: Portions | None = None
    "How much its collections delete at a time."
    tokens: int = 0
    _began: tuple[int, int, int] = field(default=(0, 0, 0))

    @property
    def name(self) -> str:
        """The name of its actor."""
        return self.actor.name

    def token(self) -> str:
        """Return a fresh name for a state."""
        self.tokens += 1
        return f"{self.name}/{self.tokens}"

    def open(self) -> arrowstate.StateStore:
        """Open the store as a new process does."""
        self._began = (self.oracle.deletions, self.oracle.statements, self.actor.faults)
        store_id = open_store_document(self.storage).store_id
        return arrowstate.StateStore(self.storage, store_id, clock_ms=self.actor.clock_ms, new_id=self.actor.new_id)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Check that an attempt in which nothing went wrong leaves nothing behind that is not committed."""
        faults, made = self.actor.faults, len(self.made)
        try:
            yield
        except arrowstate.CommitUnknownError:
            # It may be committed, so what it wrote must stay.
            raise
        except arrowstate.CollectedError:
            self.oracle.taken_back(self.made[made:], self.name)
            self._settled(faults, made)
            raise
        except BaseException:
            self._settled(faults, made)
            raise
        self._settled(faults, made)

    def _settled(self, faults: int, made: int) -> None:
        if self.actor.faults == faults and not self.actor.stopped:
            self.oracle.settled(self.made[made:], self.name)

    def explained(self, error: arrowstate.ArrowStateError) -> None:
        """Note an error as a violation, unless something that happened since `open` allows it."""
        oracle = self.oracle
        deletions, statements, faults = self._began
        collects = oracle.retained is not None
        went = oracle.deletions > deletions or oracle.statements > statements
        collected = collects and (went or oracle.doubtful())
        if isinstance(error, arrowstate.CollectedError | arrowstate.CommitUnknownError):
            # A commit that a collection met on its way; `_check_in_time` looks whether it may have.
            allowed = collects or self.actor.faults > faults
        elif isinstance(error, arrowstate.StorageError):
            allowed = self.actor.faults > faults
        else:
            # Whoever holds no lease may find that a collector was there before.
            allowed = collected and isinstance(error, arrowstate.CorruptDataError | arrowstate.CheckpointNotFoundError)
        if not allowed:
            oracle.violated(f"{self.name} got an error that nothing explains: {type(error).__name__}: {error}")


Script = Callable[[Process], None]
