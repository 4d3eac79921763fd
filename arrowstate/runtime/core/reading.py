"""A source in one subtask: its splits, how far each was read, and the event time that they have shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from arrowstate.errors import InvalidInputError, SourceError
from arrowstate.functions.dead_letters import DeadLetters
from arrowstate.runtime.connectors import Batch, EndOfSplit, Reader, Split
from arrowstate.runtime.core.elements import with_schema
from arrowstate.runtime.core.explaining import explained
from arrowstate.runtime.core.messages import SplitState
from arrowstate.runtime.core.valve import MAX_WATERMARK, WatermarkValve
from arrowstate.runtime.graph import SourceNode
from arrowstate.schema.times import timestamp_array
from arrowstate_formats.integers import INT64_MIN


def split_type(position: pa.DataType) -> pa.StructType:
    """Return the type of an element of the list state `splits`, which has one for each split."""
    return pa.struct(
        [
            ("split", pa.string()),
            ("position", position),
            ("finished", pa.bool_()),
            ("watermark", pa.int64()),
            ("number", pa.int64()),
        ]
    )


def splits_to_arrow(splits: Iterable[SplitState], kind: pa.StructType) -> pa.Array:
    """Return splits as elements of the list state."""
    rows = [
        {
            "split": state.id,
            "position": state.position,
            "finished": state.finished,
            "watermark": state.watermark,
            "number": state.number,
        }
        for state in splits
    ]
    return pa.array(rows, kind)


class SourceSplits:
    """Reads the splits of one subtask."""

    def __init__(self, node: SourceNode) -> None:
        self._node = node
        self._uid = node.uid
        with explained(self._uid, "reader"):
            self._reader: Reader = node.source.reader()
        if not isinstance(self._reader, Reader):
            raise InvalidInputError(
                f"the source of {self._uid!r} must give a Reader, got {type(self._reader).__name__}; derive from Reader"
            )
        self.dead = None if node.dead_letters is None else DeadLetters(node.dead_letters, 1)
        "Rows without the event time that the source is asked for."
        self._states: dict[str, SplitState] = {}
        self._active_ms: dict[str, float] = {}
        self.asked_ms: int | None = None
        "When the reader was asked last, or was given its first splits."
        self._valve = WatermarkValve(waits_for_late=True)
        self._ahead: set[str] = set()
        rule = node.watermarks
        # Before the slowest source of a group is known, each split shows its first rows and no more.
        self._limit = None if rule is None or rule.group is None else -MAX_WATERMARK
        self._empty_since_ms: int | None = None
        self._is_empty_for_long = False
        self.no_more = False
        "Whether no split will be added."
        self.had_splits = False
        "Whether it has, or had, any."

    @property
    def is_finished(self) -> bool:
        """Whether all there is to read was read."""
        return self.no_more and all(state.finished for state in self._states.values())

    @property
    def watermark(self) -> int | None:
        """The event time of all splits that count."""
        return self._valve.watermark

    @property
    def is_idle(self) -> bool:
        """Whether no split that is not finished has had rows for long, or none ever came."""
        if self._node.watermarks is None:
            return self._valve.is_idle
        return self._valve.is_idle or self._is_empty_for_long or not self.had_splits

    @property
    def states(self) -> list[SplitState]:
        """How far each split was read, but for those that a checkpoint has recorded as finished."""
        return list(self._states.values())

    def add(self, splits: Sequence[SplitState], now_ms: int) -> None:
        """Read these too."""
        self._empty_since_ms, self._is_empty_for_long = None, False
        self.asked_ms = now_ms if self.asked_ms is None else self.asked_ms
        self.had_splits = self.had_splits or bool(splits)
        self._states.update((split.id, split) for split in splits)
        last_begun = max((split.number for split in self._unfinished() if split.watermark is not None), default=-1)
        for split in splits:
            if split.finished:
                continue
            if not self._node.source.is_sequential:
                self._begin(split, now_ms)
            elif split.watermark is not None or split.number < last_begun:
                # Its rows may be earlier than what was read of a split that follows it.
                self._valve.add(split.id, watermark=split.watermark)
        unread = [Split(split.id, split.position) for split in splits if not split.finished]
        if unread:
            with explained(self._uid, f"splits {', '.join(split.id for split in unread)}"):
                self._reader.add(unread)

    def look(self) -> int | None:
        """Return the watermark if it grew by splits that were added."""
        return self._valve.look()

    def read(self, max_rows: int, now_ms: int) -> tuple[pa.RecordBatch | None, int | None] | None:
        """Return rows, or None at the end of a split, and the watermark if it grew by that; None for nothing now."""
        with explained(self._uid, "reading"):
            got = self._reader.read(max_rows)
        self._let_pass(now_ms, is_empty=got is None)
        if got is None:
            return None
        state = self._states.get(got.split)
        if state is None or state.finished:
            raise InvalidInputError(
                f"the reader of source {self._uid!r} gave rows of split {got.split!r}, which it was not given, or "
                "which has ended"
            )
        if isinstance(got, EndOfSplit):
            self._states[got.split] = replace(state, finished=True)
            self._active_ms.pop(got.split, None)
            return None, self._valve.remove(got.split)
        self._check(got)
        got = replace(got, rows=with_schema(got.rows, self._node.schema))
        if got.split not in self._active_ms:
            self._begin(state, now_ms)
        self._active_ms[got.split] = now_ms
        grown = self._valve.set_idle(got.split, False)
        self._set_aside(got, state.position)
        rows = self._timed(got, state.position)
        latest = self._latest(rows)
        if latest is not None and self._node.watermarks is not None:
            known = max(latest - self._node.watermarks.out_of_order_ms - 1, INT64_MIN)
            highest = known if state.watermark is None else max(known, state.watermark)
            state = replace(state, watermark=highest)
            grown = self._valve.advance(got.split, known) or grown
        self._states[got.split] = replace(state, position=got.position)
        if self._is_ahead(state) and got.split not in self._ahead:
            self._hold()
        return rows, grown

    def _let_pass(self, now_ms: int, *, is_empty: bool) -> None:
        """Let the time since the reader was asked before count for the splits that may turn idle.

        Only who is asked can have no rows. So a wait for room downstream, a long step or a suspended process counts for
        a quarter of `idle_ms` at most, and not at all for splits that are paused. An answer with rows is one of a round
        in which each split has its turn.
        """
        passed = now_ms - (now_ms if self.asked_ms is None else self.asked_ms)
        self.asked_ms = now_ms
        rule = self._node.watermarks
        if rule is None or rule.idle_ms is None or passed == 0:
            return
        if passed < 0:
            # The clock was set back: what was of later is of now.
            self._active_ms = {id: min(active_ms, now_ms) for id, active_ms in self._active_ms.items()}
            self._empty_since_ms = None if self._empty_since_ms is None else min(self._empty_since_ms, now_ms)
            return
        turns = 1 if is_empty else max(len(self._active_ms.keys() - self._ahead), 1)
        lost = passed - min(passed / turns, max(rule.idle_ms / 4, 1))
        for id, active_ms in self._active_ms.items():
            self._active_ms[id] = min(active_ms + (passed if id in self._ahead else lost), now_ms)

    def look_for_idle(self, now_ms: int) -> int | None:
        """Take note of splits that had no rows for long; return the watermark if it grew by that.

        `now_ms` is when the reader was asked last: nobody knows of later.
        """
        rule = self._node.watermarks
        if rule is None or rule.idle_ms is None:
            return None
        first = next(self._unfinished(), None)
        if first is None:
            self._empty_since_ms = now_ms if self._empty_since_ms is None else self._empty_since_ms
            self._is_empty_for_long = now_ms - self._empty_since_ms >= rule.idle_ms
        elif self._node.source.is_sequential and first.id in self._valve:
            # Those after it wait for their turn, and are not idle by that.
            self._active_ms.setdefault(first.id, now_ms)
        grown = None
        for id, active_ms in self._active_ms.items():
            if now_ms - active_ms >= rule.idle_ms and id not in self._ahead:
                grown = self._valve.set_idle(id, True) or grown
        return grown

    def limit(self, watermark: int) -> None:
        """Let splits pause that are ahead of this event time."""
        self._limit = watermark
        self._hold()

    def _hold(self) -> None:
        ahead = {state.id for state in self._states.values() if self._is_ahead(state)}
        if ahead != self._ahead:
            self._ahead = ahead
            self._reader.pause(ahead)

    def _is_ahead(self, state: SplitState) -> bool:
        if self._limit is None or state.watermark is None or state.finished:
            return False
        return state.watermark > self._limit

    @property
    def is_paused(self) -> bool:
        """Whether a split is ahead and the reader cannot leave it out."""
        if type(self._reader).pause is Reader.pause:
            # Before each split that counts has shown rows nobody knows how far the source is, and all wait for it.
            return bool(self._ahead) and (self.watermark is not None or self._limit != -MAX_WATERMARK)
        return bool(self._ahead) and len(self._ahead) == sum(1 for _ in self._unfinished())

    def behind(self) -> int | None:
        """Return how many rows of the splits are there and not read, where the reader tells."""
        with explained(self._uid, "reader"):
            return self._reader.behind()

    def committed(self, states: Iterable[SplitState]) -> None:
        """Tell the reader what a committed checkpoint has, which has recorded what is finished in it."""
        with explained(self._uid, "committed"):
            self._reader.committed({state.id: state.position for state in states})
        for state in states:
            if state.finished:
                self._states.pop(state.id, None)

    def to_arrow(self) -> pa.Array:
        """Return what a checkpoint stores as state of the subtask; what is finished it records by itself."""
        return splits_to_arrow(self._unfinished(), split_type(self._node.source.position_type))

    def close(self) -> None:
        self._reader.close()

    def _begin(self, split: SplitState, now_ms: int) -> None:
        self._active_ms[split.id] = now_ms
        self._valve.add(split.id, watermark=split.watermark)

    def _unfinished(self) -> Iterator[SplitState]:
        return (state for state in self._states.values() if not state.finished)

    def _check(self, got: Batch) -> None:
        schema = self._node.schema
        if got.rows.schema.names != schema.names or got.rows.schema.types != schema.types:
            raise InvalidInputError(
                f"source {self._uid!r} must give the columns of its schema, "
                f"{', '.join(f'{field.name} {field.type}' for field in schema)}; at position {got.position!r} of split "
                f"{got.split!r} it gave {', '.join(f'{field.name} {field.type}' for field in got.rows.schema)}"
            )
        before = self._states[got.split].position
        if _is_before(got.position, before):
            raise InvalidInputError(
                f"source {self._uid!r} went back: split {got.split!r} was at position {before}, and its reader gave "
                f"rows up to {got.position}"
            )

    def _set_aside(self, got: Batch, position: Any) -> None:
        """Set rows aside that the reader could not read, where there is a table for them; otherwise raise."""
        unread = got.unread
        if unread is None or not unread.reasons:
            return
        if self.dead is None:
            raise SourceError(
                got.split,
                position,
                f"the row at position {unread.positions[0]} cannot be read: {unread.errors[0]}: {unread.reasons[0]}; "
                'mend it, or declare the source with on_error="dead_letter"',
                source=self._uid,
            )
        place = [
            pa.array([got.split] * len(unread.reasons)),
            pa.array(unread.positions, self._node.source.position_type),
            *unread.rows.columns,
        ]
        self.dead.add(place, [None] * len(self._node.schema), unread.errors, unread.reasons)

    def _timed(self, got: Batch, position: Any) -> pa.RecordBatch:
        """Return the rows with an event time, where there is one; others are set aside, or an error."""
        rule, rows = self._node.watermarks, got.rows
        if rule is None or not rows.column(rule.timestamp).null_count:
            return rows
        absent = rows.column(rule.timestamp).is_null()
        if self.dead is None:
            row = pc.index(absent, True).as_py()
            raise SourceError(
                got.split,
                position,
                f"the event time, {rule.timestamp!r}, is null in row {row} from there",
                source=self._uid,
            )
        numbers = pc.indices_nonzero(absent).to_pylist()
        whole = rows.filter(absent)
        place = [
            pa.array([got.split] * len(numbers)),
            pa.array([position] * len(numbers), self._node.source.position_type),
            *(pa.nulls(len(numbers), field.type) for field in self._node.source.unread_schema),
        ]
        reasons = [f"event time {rule.timestamp!r} is null in row {row} from the position" for row in numbers]
        self.dead.add(place, whole.columns, ["SourceError"] * len(numbers), reasons)
        return rows.filter(pc.invert(absent))

    def _latest(self, rows: pa.RecordBatch) -> int | None:
        rule = self._node.watermarks
        if rule is None or not rows.num_rows:
            return None
        latest: int = pc.max(timestamp_array(rule.timestamp, rows.column(rule.timestamp), round_down=True)).as_py()
        return latest


def _is_before(position: Any, other: Any) -> bool:
    """Whether a position is known to be before another: by numbers, those of a struct in the order of its fields."""
    if isinstance(position, Mapping) and isinstance(other, Mapping):
        names = [name for name in other if position.get(name) != other[name]]
        return bool(names) and _is_before(position.get(names[0]), other[names[0]])
    return isinstance(position, int) and isinstance(other, int) and position < other
