"""The recovery store of Bytewax, read without Bytewax: what a dataflow kept by key, and how far its inputs were read.

A recovery store of Bytewax 0.18 and later is a folder of SQLite databases, its partitions. The table `snaps` has a
pickle for each step, key and epoch. A dataflow goes on from its resume epoch: the lowest epoch that a worker of its
last execution had not finished. Pickles are read by a loader that calls nothing but the types of plain values; an
object of any other class becomes the values that it held.
"""

from __future__ import annotations

import datetime
import io
import itertools
import os
import pickle
import sqlite3
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa

from arrowstate.errors import CorruptDataError, InvalidInputError, StoreNotFoundError

_DATABASES = "part-*.sqlite3"
_MOST_VALUES = 10_000_000
"""So many plain values one snapshot holds at most: a few bytes of a pickle can refer to each other without end."""


def _bytes(data: bytes = b"") -> bytes:
    # `bytearray(10**12)` would take the memory of the machine.
    return bytes(memoryview(data))


_PLAIN = {
    ("builtins", "bytearray"): _bytes,
    ("builtins", "complex"): complex,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "set"): set,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): lambda *_: {},
    ("collections", "deque"): deque,
    ("copyreg", "_reconstructor"): lambda kind, *_: kind(),
    ("datetime", "date"): datetime.date,
    ("datetime", "datetime"): datetime.datetime,
    ("datetime", "time"): datetime.time,
    ("datetime", "timedelta"): datetime.timedelta,
    ("datetime", "timezone"): datetime.timezone,
    ("decimal", "Decimal"): Decimal,
    ("uuid", "UUID"): UUID,
    ("zoneinfo", "ZoneInfo._unpickle"): lambda name, *_: ZoneInfo(name),
}
"""What a pickle may call: types whose values are plain, and which do nothing else."""


class BytewaxRecovery:
    """The state and positions from which a Bytewax dataflow would go on. Open one with `open_bytewax_recovery`."""

    def __init__(self, folder: Path, resume_epoch: int, steps: Mapping[str, Mapping[str, bytes]]) -> None:
        self.folder = folder
        "Where the recovery store is."
        self.resume_epoch = resume_epoch
        "The epoch that the dataflow would begin with."
        self.steps = MappingProxyType({step: len(snapshots) for step, snapshots in steps.items()})
        "The id of each step that keeps something, and how many keys or partitions it has."
        self._snapshots = steps

    def __repr__(self) -> str:
        return f"<BytewaxRecovery {self.folder}: {len(self.steps)} steps, epoch {self.resume_epoch}>"

    def values(self, step: str) -> dict[str, Any]:
        """Return the values of a step by key; for an input step, the position of each partition.

        Parameters
        ----------
        step
            The id of the step, as `totals.sum`; what Bytewax adds behind it may be left out.

        Returns
        -------
        dict
            Plain Python values. An object of a class that is no plain value is a dict of its attributes, or the
            arguments that it was made of.

        Raises
        ------
        InvalidInputError
            If no step, or more than one, has this id.
        CorruptDataError
            If a pickle is damaged, or calls what is no type of plain values.
        """
        found = self._step(step)
        return {key: self._value(found, key, data) for key, data in sorted(self._snapshots[found].items())}

    def to_arrow(
        self, step: str, *, key: str = "key", value: str = "value", type: pa.DataType | None = None
    ) -> pa.Table:
        """Return the values of a step as a table for `StateStore.bootstrap`.

        Parameters
        ----------
        step
            As for `values`.
        key, value
            The names of the columns: those of the key and of the state that is to be made.
        type
            The type of the values; by default that which Arrow finds for them.

        Returns
        -------
        pa.Table
            `key` string, `value` of the type; a row for each key.

        Raises
        ------
        InvalidInputError
            If no step has this id, or the values do not fit the type, or none.
        CorruptDataError
            As for `values`.
        """
        values = self.values(step)
        try:
            column = pa.array(list(values.values()), type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            kinds = sorted({each.__class__.__name__ for each in values.values()})
            raise InvalidInputError(
                f"what {step} kept ({', '.join(kinds)}) is no column of {type or 'one type'}: {error}; "
                "give type=..., or make a table of values(...)"
            ) from error
        return pa.table({key: pa.array(values, pa.string()), value: column})

    def _step(self, step: str) -> str:
        found = [each for each in self._snapshots if each == step] or [
            each for each in self._snapshots if each.startswith(f"{step}.") or f".{step}." in f".{each}."
        ]
        if len(found) != 1:
            what = "no step" if not found else "more than one step"
            raise InvalidInputError(f"{what} of {self.folder} is called {step!r}; it has {', '.join(self._snapshots)}")
        return found[0]

    def _value(self, step: str, key: str, data: bytes) -> Any:
        try:
            return _plain(_Loader(data).load(), itertools.count())
        # A pickle may have any error of what it makes.
        except Exception as error:
            detail = f"its pickle cannot be read: {type(error).__name__}: {error}"
            raise CorruptDataError(f"{step} of key {key!r}", detail) from error


def open_bytewax_recovery(folder: str | os.PathLike[str]) -> BytewaxRecovery:
    """Open the recovery store of a Bytewax dataflow; it is only read.

    Parameters
    ----------
    folder
        The folder with all partitions, `part-0.sqlite3` and so on. The dataflow must not be running.

    Raises
    ------
    StoreNotFoundError
        If there is no partition.
    CorruptDataError
        If a partition is missing or damaged, or no execution has left a snapshot.

    Examples
    --------
    >>> from arrowstate.foreign.bytewax import open_bytewax_recovery
    >>> recovery = open_bytewax_recovery("recovery")        # doctest: +SKIP
    >>> recovery.to_arrow("totals.sum", key="user", value="total").to_pylist()    # doctest: +SKIP
    [{'user': 'ann', 'total': 4}, {'user': 'bob', 'total': 2}]
    """
    place = Path(os.fspath(folder))
    paths = sorted(place.glob(_DATABASES))
    if not paths:
        raise StoreNotFoundError(str(place))
    executions: dict[int, tuple[int, int]] = {}
    frontiers: dict[tuple[int, int], int] = {}
    rows: list[tuple[str, str, int, bytes | None]] = []
    partitions: set[tuple[int, int]] = set()
    for path in paths:
        with closing(_opened(path)) as database:
            partitions.update(_read(database, path, "select part_index, part_count from parts"))
            for number, workers, epoch in _read(database, path, "select ex_num, worker_count, resume_epoch from exs"):
                executions[number] = workers, epoch
            query = "select ex_num, worker_index, worker_frontier from fronts"
            for number, worker, epoch in _read(database, path, query):
                frontiers[number, worker] = max(epoch, frontiers.get((number, worker), epoch))
            rows += _read(database, path, "select step_id, state_key, snap_epoch, ser_change from snaps")
    _check_whole(place, partitions)
    resume_epoch = _resume_epoch(place, executions, frontiers)
    newest: dict[str, dict[str, tuple[int, bytes | None]]] = {}
    for step, key, epoch, data in rows:
        of_step = newest.setdefault(step, {})
        if epoch < resume_epoch and (key not in of_step or of_step[key][0] < epoch):
            of_step[key] = epoch, data
    # A snapshot without a pickle says that the key was discarded.
    steps = {
        step: {key: data for key, (_, data) in of_step.items() if data is not None}
        for step, of_step in sorted(newest.items())
    }
    return BytewaxRecovery(place, resume_epoch, steps)


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _read(database: sqlite3.Connection, path: Path, query: str) -> Iterator[Any]:
    try:
        yield from database.execute(query)
    except sqlite3.Error as error:
        raise CorruptDataError(str(path), f"it is no partition of a recovery store of Bytewax: {error}") from error


def _check_whole(place: Path, partitions: set[tuple[int, int]]) -> None:
    counts = {count for _, count in partitions}
    indexes = {index for index, _ in partitions}
    missing = sorted(set(range(max(counts, default=1))) - indexes)
    if len(counts) != 1 or missing:
        raise CorruptDataError(
            str(place),
            f"it must hold all partitions of one recovery store; missing: {missing}, counts {sorted(counts)}",
        )


def _resume_epoch(
    place: Path, executions: Mapping[int, tuple[int, int]], frontiers: Mapping[tuple[int, int], int]
) -> int:
    """Return the lowest epoch that a worker of the last execution had not finished."""
    if not executions:
        raise CorruptDataError(str(place), "no execution of a dataflow is noted in it")
    number = max(executions)
    workers, first = executions[number]
    return min(max(first, frontiers.get((number, worker), first)) for worker in range(workers))


class _Object:
    """Stands for an object of a class that is not loaded: what it was made of, and what it held."""

    arguments: tuple[Any, ...]
    attributes: Any = None
    items: dict[Any, Any]
    "Of a class that is a dict."
    elements: list[Any]
    "Of a class that is a list."

    def __new__(cls, *arguments: Any, **named: Any) -> _Object:
        """Take what the class takes."""
        made = super().__new__(cls)
        made.arguments, made.items, made.elements = (*arguments, *named.values()), {}, []
        return made

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Do nothing."""

    def __setstate__(self, state: Any) -> None:
        self.attributes = state

    def __setitem__(self, name: Any, value: Any) -> None:
        self.items[name] = value

    def append(self, value: Any) -> None:
        """Take an element."""
        self.elements.append(value)

    def plain(self) -> Any:
        """Return what it held: its attributes, else its items, its elements, or what it was made of."""
        held = self.attributes
        if isinstance(held, tuple) and len(held) == 2:
            # Of a class with slots: what is in its dict, if it has one, and what is in the slots.
            held = {**(held[0] or {}), **(held[1] or {})}
        held = held or self.items or self.elements
        if held:
            return held
        return self.arguments[0] if len(self.arguments) == 1 else self.arguments


class _Loader(pickle.Unpickler):
    """Loads plain values, and objects of other classes as what they held."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))

    def find_class(self, module: str, name: str) -> Any:
        """Return a type of plain values, or one that stands for another class and does nothing."""
        return _PLAIN.get((module, name)) or type(name.rpartition(".")[2], (_Object,), {})


def _plain(value: Any, count: Iterator[int]) -> Any:
    """Return a value without objects of other classes."""
    if next(count) >= _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES} values")
    if isinstance(value, _Object):
        return _plain(value.plain(), count)
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, Mapping):
        return {_plain(name, count): _plain(each, count) for name, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(each, count) for each in value), key=repr)
    if isinstance(value, tuple):
        return tuple(_plain(each, count) for each in value)
    if isinstance(value, (list, deque)):
        return [_plain(each, count) for each in value]
    return str(value) if isinstance(value, UUID) else value
