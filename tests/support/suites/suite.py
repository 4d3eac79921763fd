"""What all suites share: a job of the deployment under test, with plain keys and with keys that collide; its time."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from arrowstate.schema.descriptors import StateDescriptor, TimeToLive
from suites.deployments import COLLIDING_KEYS, PLAIN_KEYS, Deployment, Job, Keys

__all__ = ["TTL", "KeyedStateSuite", "Time", "TimedSuite"]

TTL = TimeToLive(100)
_START = 1_000_000


class KeyedStateSuite:
    """Base of the suites: gives each test a `job`."""

    @pytest.fixture(params=[PLAIN_KEYS, COLLIDING_KEYS], ids=str)
    def values(self, request: pytest.FixtureRequest) -> Keys:
        """The keys, user keys and namespaces of a test."""
        keys: Keys = request.param
        return keys

    @pytest.fixture
    def job(self, deployment: Deployment, values: Keys) -> Iterator[Job]:
        """A new job."""
        job = deployment.start(values)
        yield job
        job.close()

    @staticmethod
    def refused(
        error: type[Exception], verb: Callable[..., Any], *arguments: Any, match: str | None = None, **named: Any
    ) -> None:
        """Check that a call raises an error of a kind, with a message that names what it should."""
        with pytest.raises(error, match=match):
            verb(*arguments, **named)

    @staticmethod
    def rows(job: Job, descriptor: StateDescriptor) -> list[dict[str, Any]]:
        """Return the rows of a checkpoint, as the tables that other tools see."""
        rows: list[dict[str, Any]] = job.checkpoint().to_arrow(f"op.{descriptor.name}").to_pylist()
        return sorted(rows, key=str)

    @staticmethod
    def sliced(array: pa.Array) -> pa.Array:
        """Return an equal array with an offset."""
        return pa.concat_arrays([array[:1], array])[1:] if len(array) else array

    @staticmethod
    def chunked(array: pa.Array) -> pa.ChunkedArray:
        """Return an equal array in pieces."""
        return pa.chunked_array([array[:1], array[1:1], array[1:]], array.type)


class Time:
    """Moves processing time and the watermark of a job alike."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.set(0)

    def set(self, milliseconds: int) -> None:
        """Set the time; the watermark does not go back."""
        self.job.clock.now_ms = _START + milliseconds
        self.job.backend.current_timestamp = _START + milliseconds
        self.job.backend.advance_watermark(_START + milliseconds)


class TimedSuite(KeyedStateSuite):
    """Base of the suites of times to live: each test runs by both clocks."""

    @pytest.fixture(params=["processing_time", "event_time"])
    def clock(self, request: pytest.FixtureRequest) -> str:
        """What a time to live is measured by."""
        name: str = request.param
        return name

    @pytest.fixture
    def time(self, job: Job) -> Time:
        """Both clocks of the job, at 0."""
        return Time(job)

    def on(self, clock: str, ttl: TimeToLive = TTL) -> TimeToLive:
        """Return a time to live by another clock."""
        return replace(ttl, clock=clock)  # type: ignore[arg-type]
