"""A storage that fails as real ones do: by a plan, or by a seed.

`FaultyStorage` wraps any `Storage` and asks before each call what goes wrong with it. Everything it does is
something that the contract allows a storage to do, so a program that is right on every `Storage` stays right on
this one. Each wrapper stands for one process: after a crash all its calls fail, the ones that would clean up too,
while other wrappers of the same storage go on.
"""

from __future__ import annotations

import enum
import functools
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from arrowstate.errors import CommitUnknownError, InvalidInputError, StorageError
from arrowstate.storage.base import Outcome, Storage

VERBS = (
    "read",
    "open_buffer",
    "put_if_absent",
    "write_file",
    "put_hint",
    "list",
    "exists",
    "delete",
    "list_unfinished",
    "delete_unfinished",
)
"""The methods of a `Storage`, each of which is one call."""

_CHANGES = frozenset({"put_if_absent", "write_file", "put_hint", "delete", "delete_unfinished"})
_BODIES = frozenset({"write_file", "put_hint"})


class Fault(enum.Enum):
    """A fault of one call.

    Examples
    --------
    >>> Fault("fail after")
    <Fault.FAIL_AFTER: 'fail after'>
    """

    FAIL_BEFORE = "fail before"
    """Nothing is done, and `StorageError` is raised."""

    FAIL_AFTER = "fail after"
    """It is done, and the answer is lost: `CommitUnknownError` from `put_if_absent`, `StorageError` from the others."""

    TORN = "torn"
    """Half of the bytes arrive, then `StorageError`: of a file nothing is there, of a hint half its text."""

    SLOW = "slow"
    """`sleep` is called before it is done."""

    STALE = "stale"
    """A listing is the one that this wrapper returned for the prefix last time, if it did."""

    DUPLICATE = "duplicate"
    """It is done twice, as when a client repeats a request whose answer it missed; the second answer counts."""

    DELAYED_DUPLICATE = "delayed duplicate"
    """It is done, and once more when `deliver` is called: a copy of the request was still on its way."""

    DELAYED = "delayed"
    """The caller hears of a failure, as in `FAIL_AFTER`, and it is done when `deliver` is called, perhaps never."""

    CRASH_BEFORE = "crash before"
    """The process dies, and nothing is done."""

    CRASH_AFTER = "crash after"
    """It is done, and the process dies before it hears of it."""


class Crashed(BaseException):
    """The process died. It is not an `Exception`, so that no handler of the program catches it.

    Examples
    --------
    >>> issubclass(Crashed, Exception)
    False
    """


@functools.cache
def faults_of(verb: str) -> tuple[Fault, ...]:
    """Return the faults that a call of a method can have.

    Examples
    --------
    >>> [fault.value for fault in faults_of("list")]
    ['fail before', 'fail after', 'slow', 'stale', 'crash before', 'crash after']
    """
    return tuple(
        fault
        for fault in Fault
        if not (fault is Fault.TORN and verb not in _BODIES)
        and not (fault is Fault.STALE and verb != "list")
        and not (fault is Fault.DUPLICATE and (verb not in _CHANGES or verb == "write_file"))
        and not (fault in (Fault.DELAYED, Fault.DELAYED_DUPLICATE) and verb not in _CHANGES)
    )


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a storage, before it is done; whoever chooses faults is given it.

    Examples
    --------
    >>> def choose(call: Call) -> Fault | None:
    ...     return Fault.FAIL_BEFORE if call.verb == "put_if_absent" and call.path.startswith("log/") else None
    >>> choose(Call(7, "put_if_absent", "log/00000000000000000001.json"))
    <Fault.FAIL_BEFORE: 'fail before'>
    """

    number: int
    "Counts the calls of the wrapper from 1."
    verb: str
    "One of `VERBS`."
    path: str
    "The path, or the prefix of a listing."


@dataclass(frozen=True, slots=True)
class PlannedFaults:
    """Faults by the number of the call, counted from 1.

    Examples
    --------
    >>> plan = PlannedFaults({2: Fault.FAIL_BEFORE})
    >>> [plan(Call(number, "read", "_latest")) for number in (1, 2)]
    [None, <Fault.FAIL_BEFORE: 'fail before'>]
    """

    faults: Mapping[int, Fault]

    def __call__(self, call: Call, /) -> Fault | None:
        return self.faults.get(call.number)


class SeededFaults:
    """Faults at random: a seed and the same calls give the same faults.

    Parameters
    ----------
    seed
        Anything that `random.Random` takes.
    rates
        The probability of each fault, 0 to 1, together at most 1. A call is spared the faults that it cannot have.

    Raises
    ------
    InvalidInputError
        If a rate is below 0, or they are above 1 together.

    Examples
    --------
    >>> draw = SeededFaults(7, {Fault.FAIL_BEFORE: 0.5, Fault.STALE: 0.5})
    >>> [str(draw(Call(number, "read", "_latest"))) for number in range(3)]
    ['Fault.FAIL_BEFORE', 'Fault.FAIL_BEFORE', 'None']
    """

    def __init__(self, seed: int | str, rates: Mapping[Fault, float]) -> None:
        if any(rate < 0 for rate in rates.values()) or sum(rates.values()) > 1 + 1e-9:
            raise InvalidInputError(f"rates must be 0 or more, and together at most 1; got {dict(rates)}")
        self._random = random.Random(seed)  # noqa: S311 - a simulation is meant to be repeatable
        self._rates = dict(rates)

    def __call__(self, call: Call, /) -> Fault | None:
        drawn = self._random.random()
        possible = faults_of(call.verb)
        for fault, rate in self._rates.items():
            drawn -= rate
            if drawn < 0:
                return fault if fault in possible else None
        return None


class FaultyStorage:
    """A storage whose calls go wrong; see `Fault` and, for what each method promises, `Storage`.

    One wrapper is one process with its own connection: it remembers its listings, and it stays dead once it has
    crashed. Several wrappers may share a storage.

    Parameters
    ----------
    storage
        The storage to wrap.
    choose
        Called before each call; it returns the fault of the call, or None.
    sleep
        Called for a slow call; does nothing by default, so that no test waits.

    Examples
    --------
    >>> from arrowstate.storage import open_storage
    >>> store = open_storage("memory://faults-example", create=True)
    >>> faulty = FaultyStorage(store, PlannedFaults({1: Fault.FAIL_AFTER, 3: Fault.CRASH_BEFORE}))
    >>> faulty.put_if_absent("log/1.json", b"id 7", "7")
    Traceback (most recent call last):
      ...
    arrowstate.errors.CommitUnknownError: cannot tell whether log/1.json was committed (commit id 7): the answer was
    lost; open the store again and look
    >>> faulty.read("log/1.json")
    b'id 7'
    >>> faulty.delete("log/1.json")
    Traceback (most recent call last):
      ...
    arrowstate.testing.faults.Crashed: at call 3: delete log/1.json
    >>> store.list("")
    ['log/1.json']
    """

    def __init__(
        self,
        storage: Storage,
        choose: Callable[[Call], Fault | None],
        *,
        sleep: Callable[[], None] = lambda: None,
    ) -> None:
        self._storage = storage
        self._choose = choose
        self._sleep = sleep
        self._calls = 0
        self._death: Crashed | None = None
        self._listed: dict[str, list[str]] = {}
        self._undelivered: list[Callable[[], Any]] = []

    def __repr__(self) -> str:
        return f"FaultyStorage({self._storage!r})"

    @property
    def url(self) -> str:
        """The URL of the storage that is wrapped; opened again it has no faults."""
        return self._storage.url

    @property
    def calls(self) -> int:
        """How many calls were made, those of a dead process not counted."""
        return self._calls

    @property
    def crashed(self) -> bool:
        """Whether the process is dead."""
        return self._death is not None

    def deliver(self) -> bool:
        """Do what the oldest request asks for that is still on its way; false if there is none.

        A request outlives the process that sent it, so this works after a crash too. Its answer reaches nobody.
        """
        if not self._undelivered:
            return False
        # Refused if there is something under the name by now.
        with suppress(OSError):
            self._undelivered.pop(0)()
        return True

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """See `Storage.read`."""
        return self._call("read", path, lambda: self._storage.read(path, start, length))

    def open_buffer(self, path: str) -> pa.Buffer:
        """See `Storage.open_buffer`."""
        return self._call("open_buffer", path, lambda: self._storage.open_buffer(path))

    def put_if_absent(self, path: str, data: bytes, commit_id: str) -> Outcome:
        """See `Storage.put_if_absent`."""
        lost = CommitUnknownError(path, commit_id, "the answer was lost")
        return self._call("put_if_absent", path, lambda: self._storage.put_if_absent(path, data, commit_id), lost)

    @contextmanager
    def write_file(self, path: str) -> Iterator[BinaryIO]:
        """See `Storage.write_file`; the fault is chosen when the block is entered."""
        fault = self._before("write_file", path)
        parts: list[bytes] = []
        with self._storage.write_file(path) as file:
            yield _Watched(file, parts, tears=fault is Fault.TORN, path=path)  # type: ignore[misc]
            # A process that was killed meanwhile, in another thread, gets no further.
            self._check_alive()
            if fault in (Fault.DELAYED, Fault.DELAYED_DUPLICATE):
                self._undelivered.append(lambda: self._write(path, b"".join(parts)))
            if fault in (Fault.TORN, Fault.DELAYED):
                raise StorageError(path, "the connection was cut")
        self._after(fault, "write_file", path, StorageError(path, "the answer was lost"))

    def put_hint(self, path: str, data: bytes) -> None:
        """See `Storage.put_hint`."""
        self._call("put_hint", path, lambda: self._storage.put_hint(path, data), torn=data)

    def list_unfinished(self) -> list[str]:
        """See `Storage.list_unfinished`."""
        return self._call("list_unfinished", "", self._storage.list_unfinished)

    def delete_unfinished(self, name: str) -> None:
        """See `Storage.delete_unfinished`."""
        self._call("delete_unfinished", name, lambda: self._storage.delete_unfinished(name))

    def list(self, prefix: str) -> list[str]:
        """See `Storage.list`."""
        fault = self._before("list", prefix)
        if fault is not Fault.STALE or prefix not in self._listed:
            self._listed[prefix] = self._storage.list(prefix)
        self._after(fault, "list", prefix, StorageError(prefix, "the answer was lost"))
        return [*self._listed[prefix]]

    def exists(self, path: str) -> bool:
        """See `Storage.exists`."""
        return self._call("exists", path, lambda: self._storage.exists(path))

    def delete(self, path: str) -> None:
        """See `Storage.delete`."""
        self._call("delete", path, lambda: self._storage.delete(path))

    def _call(
        self,
        verb: str,
        path: str,
        effect: Callable[[], Any],
        lost: OSError | None = None,
        *,
        torn: bytes | None = None,
    ) -> Any:
        fault = self._before(verb, path)
        if fault is Fault.TORN and torn is not None:
            self._storage.put_hint(path, torn[: len(torn) // 2])
            raise StorageError(path, "the connection was cut")
        lost = lost or StorageError(path, "the answer was lost")
        if fault in (Fault.DELAYED, Fault.DELAYED_DUPLICATE):
            self._undelivered.append(effect)
        if fault is Fault.DELAYED:
            raise lost
        answer = effect()
        if fault is Fault.DUPLICATE:
            answer = effect()
        self._after(fault, verb, path, lost)
        return answer

    def _before(self, verb: str, path: str) -> Fault | None:
        self._check_alive()
        self._calls += 1
        fault = self._choose(Call(self._calls, verb, path))
        if fault is not None and fault not in faults_of(verb):
            raise InvalidInputError(f"{verb} cannot have the fault {fault.value!r}; see faults_of({verb!r})")
        if fault is Fault.CRASH_BEFORE:
            self._die(verb, path)
        if fault is Fault.FAIL_BEFORE:
            raise StorageError(path, "the request was lost")
        if fault is Fault.SLOW:
            self._sleep()
        return fault

    def _after(self, fault: Fault | None, verb: str, path: str, lost: OSError) -> None:
        if fault is Fault.CRASH_AFTER:
            self._die(verb, path)
        if fault is Fault.FAIL_AFTER:
            raise lost

    def _die(self, verb: str, path: str) -> None:
        self._death = Crashed(f"at call {self._calls}: {verb} {path}")
        raise self._death

    def _check_alive(self) -> None:
        if self._death is not None:
            raise Crashed(str(self._death))

    def _write(self, path: str, data: bytes) -> None:
        with self._storage.write_file(path) as file:
            file.write(data)


class _Watched:
    """A file being written, which keeps what was written and may stop half way through a write."""

    def __init__(self, file: BinaryIO, parts: list[bytes], *, tears: bool, path: str) -> None:
        self._file = file
        self._parts = parts
        self._tears = tears
        self._path = path

    def write(self, data: Any, /) -> int:
        body = bytes(data)
        if self._tears:
            self._file.write(body[: len(body) // 2])
            raise StorageError(self._path, "the connection was cut")
        self._parts.append(body)
        return self._file.write(body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
