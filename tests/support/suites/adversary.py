"""An adversary: it counts the points at which a step can fail, and makes one of them fail.

A point is an allocation of rows, in memory or in a spilled file, where the disk is then full; or a place that user code
names, which then raises. Whatever fails, the step has done nothing, and done again it gives what it gives without the
failure: in the live state, in the next checkpoint, and in what the job does afterwards.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from arrowstate.errors import InvalidInputError, StorageFullError
from arrowstate.state import pending
from arrowstate.table import spill
from arrowstate.table.merging import MemorySink
from arrowstate.table.run import Run
from arrowstate.table.spill import SpillSink
from suites.deployments import Deployment, Job, Keys

__all__ = ["LONG", "Act", "Adversary", "Scene", "Trouble", "live", "stored", "survives"]

LONG = os.environ.get("ARROWSTATE_LONG_TESTS", "0") not in ("", "0")
"""Whether every point of every scene is tried, not only some."""


class Trouble(RuntimeError):
    """What user code raises where the adversary wants it."""


class Adversary:
    """Makes the n-th point fail that is passed while it watches."""

    def __init__(self) -> None:
        self.passed = 0
        "How many points there were so far."
        self.raised: Exception | None = None
        self._watches = False
        self._at: int | None = None

    def point(self) -> None:
        """Name a place in user code that may raise."""
        self._pass(Trouble("at a point of the user's code"))

    @contextmanager
    def watching(self, at: int | None = None) -> Iterator[None]:
        """Count the points of the block from 1, and let one of them fail."""
        self.passed, self.raised, self._at, self._watches = 0, None, at, True
        make, start, append, finish = Run.of, SpillSink.__init__, SpillSink.append, SpillSink.finish
        try:
            with ExitStack() as patches:
                patches.enter_context(patch.object(Run, "of", staticmethod(self._full(make))))
                for name, verb in (("__init__", start), ("append", append), ("finish", finish)):
                    patches.enter_context(patch.object(SpillSink, name, self._full(verb)))
                patches.enter_context(patch.object(spill, "SpillSink", SpillSink))
                yield
        finally:
            self._watches = False

    def _full(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def full(*arguments: Any, **named: Any) -> Any:
            self._pass(StorageFullError("the adversary's disk", "No space left on device"))
            return verb(*arguments, **named)

        return full

    def _pass(self, error: Exception) -> None:
        if self._watches:
            self.passed += 1
            if self.passed == self._at:
                self.raised = error
                raise error


@dataclass(frozen=True, slots=True)
class Act:
    """What a scene has made ready."""

    step: Callable[[], Any]
    "What may fail; it returns what the caller gets."
    after: Callable[[], Any] = lambda: None
    "What the job does later, such as to fire what is due."
    whole: bool = True
    "Whether a step that fails has done nothing; else what it had done before stays, and it goes on from there."
    runs: bool = False
    "Whether it sets the current key, timestamp and namespaces back too."


Scene = Callable[[Job, Adversary], Act]
"""Makes ready what a step works on; called anew, with a new job, for each point."""


def live(job: Job) -> dict[str, Any]:
    """Return all that a backend holds: each row with its hidden columns, and the time."""
    backend = job.backend
    rows = {
        name: sorted((row for batch in state.live_batches() for row in batch.to_pylist()), key=str)
        for name, state in backend.states.items()
    }
    # Rows that have expired count until they are removed, which depends on when what scalar verbs wrote is flushed.
    counts = {name: len(state) for name, state in backend.states.items() if state.descriptor.ttl is None}
    return {"rows": rows, "counts": counts, "watermark": backend.watermark}


def stored(job: Job) -> dict[str, Any]:
    """Return what the next checkpoint has."""
    snapshot = job.checkpoint()
    # Rows that have expired may be in a checkpoint or not.
    names = [name for name, state in job.backend.states.items() if state.descriptor.ttl is None]
    rows = {name: snapshot.to_arrow(f"op.{name}").to_pylist() for name in names}
    return {"rows": {name: sorted(each, key=str) for name, each in rows.items()}, "watermark": snapshot.watermark}


def _places(job: Job) -> dict[str, Any]:
    """Return what scalar verbs work on."""
    backend = job.backend
    places: dict[str, Any] = {"timestamp": backend.current_timestamp}
    with suppress(InvalidInputError):
        places["key"] = backend.current_key
    for name, state in backend.states.items():
        with suppress(InvalidInputError):
            places[name] = state.current_namespace
    return places


def survives(deployment: Deployment, keys: Keys, scene: Scene, *, most: int) -> int:
    """Let a step fail at each of its points, or at `most` of them spread evenly; return how many there are."""
    with ExitStack() as patches:
        # What scalar verbs write is moved into the table after two of them, so that this can fail too.
        patches.enter_context(patch.object(pending, "_MANY_ROWS", 2))
        patches.enter_context(patch.object(spill, "SpillSink", lambda *_: _NoFile()))
        untouched = _Trial(deployment, keys, scene)
        places, before = untouched.places(), untouched.live()
        untouched.close()
        clean = _Trial(deployment, keys, scene)
        points = clean.run(None)
        expected = clean.outcome(checkpoint=True)
        assert points, "a scene without a point shows nothing"
        for at in _chosen(points, most):
            trial = _Trial(deployment, keys, scene)
            trial.run(at)
            assert not trial.act.runs or trial.places() == places, f"after the failure at point {at} of {points}"
            # To look flushes what scalar verbs wrote, so only every other trial does, that of the last point too; the
            # others make a checkpoint.
            looks = at % 2 == points % 2
            if trial.act.whole and looks:
                assert trial.live() == before, f"after the failure at point {at} of {points}"
            trial.result = trial.act.step()
            outcome = trial.outcome(checkpoint=LONG or not looks or at == 1)
            assert outcome == {name: expected[name] for name in outcome}, f"again after point {at} of {points} failed"
    return points


def _chosen(points: int, most: int) -> list[int]:
    if LONG or points <= most:
        return list(range(1, points + 1))
    return sorted({1 + number * (points - 1) // (most - 1) for number in range(most)})


class _NoFile(MemorySink):
    """A file of spilled rows that is none: what is no part of the step need not wait for a disk."""

    def finish(self) -> Run:
        return Run.of(self._batches, mapped=True)


class _Trial:
    """A job of its own, and a step of it."""

    def __init__(self, deployment: Deployment, keys: Keys, scene: Scene) -> None:
        self._job = deployment.start(keys)
        self._adversary = Adversary()
        self.act = scene(self._job, self._adversary)
        self.result: Any = None

    def run(self, at: int | None) -> int:
        """Take the step with a failure at one point; return how many points were passed."""
        try:
            with self._adversary.watching(at):
                self.result = self.act.step()
        except Exception as error:  # noqa: BLE001 (whatever it is, the adversary must be the cause)
            assert _is_caused_by(error, self._adversary.raised), error
        assert at is None or self._adversary.raised is not None, f"point {at} was not passed"
        return self._adversary.passed

    def live(self) -> dict[str, Any]:
        return live(self._job)

    def places(self) -> dict[str, Any]:
        return _places(self._job)

    def close(self) -> None:
        self._job.close()

    def outcome(self, *, checkpoint: bool) -> dict[str, Any]:
        """Return what the step gave, what is there, what a checkpoint has, and what comes later."""
        outcome = {"result": self.result, "now": live(self._job)}
        if checkpoint:
            outcome["stored"] = stored(self._job)
        outcome |= {"later": self.act.after(), "then": live(self._job)}
        self.close()
        return outcome


def _is_caused_by(error: BaseException | None, cause: Exception | None) -> bool:
    while error is not None and error is not cause:
        error = error.__cause__ or error.__context__
    return error is not None
