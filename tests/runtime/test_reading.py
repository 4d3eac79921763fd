"""A source in one subtask: positions, event time by split, idleness, and readers that do what they must not."""

import pyarrow as pa
import pytest

from arrowstate.errors import InvalidInputError, SourceError, UserFunctionError
from arrowstate.runtime import Batch, EndOfSplit, Reader, Source, Split, Watermarks
from arrowstate.runtime.core.messages import SplitState
from arrowstate.runtime.core.reading import SourceSplits, split_type
from arrowstate.runtime.graph import SourceNode

SCHEMA = pa.schema({"at": pa.int64()})


def batch(split: str, position: object, *times: int | None) -> Batch:
    return Batch(pa.record_batch([pa.array(times, pa.int64())], schema=SCHEMA), split, position)


class Scripted(Source):
    """Gives what a list says."""

    schema = SCHEMA

    def __init__(self, *script, sequential=False, pausing=True):
        self.script = list(script)
        self.is_sequential = sequential
        self.made = _Pausing(self.script) if pausing else _Scripted(self.script)

    def discover(self, known):
        return []

    def reader(self):
        return self.made


class _Scripted(Reader):
    def __init__(self, script):
        self.script = script
        self.added: list[Split] = []
        self.told: dict = {}

    def add(self, splits):
        self.added += splits

    def read(self, max_rows):
        item = self.script.pop(0) if self.script else None
        if isinstance(item, Exception):
            raise item
        return item

    def committed(self, positions):
        self.told = dict(positions)


class _Pausing(_Scripted):
    paused: frozenset = frozenset()

    def pause(self, splits):
        self.paused = frozenset(splits)


def reading(source: Source, *ids: str, watermarks: Watermarks | None = None, **states) -> SourceSplits:
    splits = SourceSplits(SourceNode(uid="given", source=source, watermarks=watermarks, schema=SCHEMA))
    splits.add([states.get(id, SplitState(id, None)) for id in ids], 0)
    return splits


def all_of(splits: SourceSplits, now_ms: int = 0) -> list:
    """Read until nothing comes, and return the watermarks."""
    grown = []
    while (got := splits.read(100, now_ms)) is not None:
        grown.append(got[1])
    return grown


def test_a_reader_gets_its_splits_with_their_positions_and_none_that_were_read_to_the_end():
    source = Scripted()

    splits = reading(source, "a", "b", a=SplitState("a", 7), b=SplitState("b", 9, True))

    assert source.made.added == [Split("a", 7)]
    assert {state.id for state in splits.states} == {"a", "b"}


def test_what_a_checkpoint_stores_is_where_each_split_goes_on_that_has_not_ended():
    source = Scripted(batch("a", 3, 10, 12), batch("b", 5, 20), EndOfSplit("b"))
    numbered = {id: SplitState(id, number=number) for number, id in enumerate("abc")}
    splits = reading(source, "a", "b", "c", watermarks=Watermarks("at", out_of_order_ms=2), **numbered)
    all_of(splits)

    stored = splits.to_arrow()

    assert stored.type == split_type(pa.int64())
    assert stored.to_pylist() == [
        {"split": "a", "position": 3, "finished": False, "watermark": 9, "number": 0},
        {"split": "c", "position": None, "finished": False, "watermark": None, "number": 2},
    ]
    assert [state.id for state in splits.states if state.finished] == ["b"]


def test_the_watermark_is_the_lowest_of_the_splits_and_ends_with_them():
    source = Scripted(batch("a", 1, 100), batch("b", 1, 50), batch("a", 2, 200), batch("b", 2, 120), EndOfSplit("b"))

    assert all_of(reading(source, "a", "b", watermarks=Watermarks("at"))) == [None, 49, None, 119, 199]


def test_a_row_that_comes_late_does_not_turn_event_time_back():
    splits = reading(Scripted(batch("a", 1, 100), batch("a", 2, 30)), "a", watermarks=Watermarks("at"))

    assert all_of(splits) == [99, None]
    assert splits.states[0].watermark == 99


def test_event_time_begins_at_the_earliest_that_there_is_where_rows_are_earlier_still():
    source = Scripted(batch("a", 1, -(1 << 63) + 5), batch("a", 2, 7))

    splits = reading(source, "a", watermarks=Watermarks("at", out_of_order_ms=10))

    assert all_of(splits) == [-(1 << 63), -4]


def test_a_restored_split_holds_event_time_where_it_was():
    rule = Watermarks("at")
    restored = {"a": SplitState("a", 5, False, 99), "b": SplitState("b", 5, False, 40)}
    splits = reading(Scripted(batch("a", 6, 200)), "a", "b", watermarks=rule, **restored)

    assert splits.look() == 40
    assert all_of(splits) == [None]


def test_a_split_without_rows_holds_back_the_others_until_it_is_idle():
    splits = reading(Scripted(batch("a", 1, 100)), "a", "b", watermarks=Watermarks("at", idle_ms=50))
    all_of(splits, now_ms=10)

    # Of the ten milliseconds before its rows each of the two splits had half.
    assert splits.look_for_idle(54) is None
    assert splits.look_for_idle(55) == 99
    assert not splits.is_idle
    splits.look_for_idle(60)
    assert splits.is_idle


def test_a_split_is_not_idle_while_nobody_asks_for_its_rows():
    splits = reading(Scripted(batch("a", 1, 100)), "a", "b", watermarks=Watermarks("at", idle_ms=60))
    all_of(splits)

    # There was no room for rows, or the process was suspended.
    assert splits.read(100, 100_000) is None
    assert splits.look_for_idle(splits.asked_ms) is None
    assert [splits.read(100, 100_000 + at) for at in (20, 40, 60)] == [None] * 3
    assert splits.look_for_idle(splits.asked_ms) == 99


def test_a_split_turns_idle_after_as_long_though_the_clock_was_set_back():
    splits = reading(Scripted(batch("a", 1, 100)), "a", "b", watermarks=Watermarks("at", idle_ms=50))
    splits.read(10, 1_000_000)

    splits.read(10, 5)

    assert splits.look_for_idle(5) is None
    for now in range(10, 60, 5):
        splits.read(10, now)
    assert splits.look_for_idle(55) == 99


def test_a_split_that_was_idle_and_has_rows_again_counts():
    script = [batch("a", 1, 100), batch("b", 1, 80)]
    source = Scripted(script[0])
    splits = reading(source, "a", "b", watermarks=Watermarks("at", idle_ms=50))
    all_of(splits, now_ms=10)
    splits.look_for_idle(100)
    assert splits.is_idle

    source.script.append(batch("b", 1, 300))
    source.script.append(batch("a", 2, 400))

    assert all_of(splits, now_ms=110) == [299, None]
    assert not splits.is_idle


def test_without_a_time_to_be_idle_a_split_is_waited_for_for_ever():
    splits = reading(Scripted(batch("a", 1, 100)), "a", "b", watermarks=Watermarks("at"))
    all_of(splits)

    assert splits.look_for_idle(1 << 50) is None
    assert not splits.is_idle


def test_a_subtask_that_was_given_no_split_is_idle():
    splits = reading(Scripted(), watermarks=Watermarks("at"))

    assert splits.is_idle
    splits.add([SplitState("late", None)], 0)
    assert not splits.is_idle


def test_a_subtask_whose_splits_have_all_ended_is_idle_after_its_time_and_not_before():
    splits = reading(Scripted(batch("a", 1, 100), EndOfSplit("a")), "a", watermarks=Watermarks("at", idle_ms=50))
    all_of(splits)

    splits.look_for_idle(1_000)
    assert not splits.is_idle
    splits.look_for_idle(1_050)
    assert splits.is_idle
    splits.add([SplitState("next", None)], 1_060)
    assert not splits.is_idle


def test_of_a_sequential_source_a_split_that_was_not_begun_holds_nothing_back():
    source = Scripted(batch("a", 1, 100), EndOfSplit("a"), batch("b", 1, 300), sequential=True)

    assert all_of(reading(source, "a", "b", watermarks=Watermarks("at"))) == [99, None, 299]


def test_of_a_sequential_source_a_restored_split_that_was_begun_holds_the_others_back():
    source = Scripted(batch("b", 1, 300), sequential=True)
    splits = reading(source, "a", "b", watermarks=Watermarks("at"), a=SplitState("a", 5, False, 40))

    assert splits.look() == 40
    assert all_of(splits) == [None]


def test_all_is_read_when_every_split_has_ended_and_none_will_be_added():
    splits = reading(Scripted(EndOfSplit("a"), EndOfSplit("b")), "a", "b")
    splits.no_more = True

    assert not splits.is_finished
    all_of(splits)
    assert splits.is_finished
    splits.no_more = False
    assert not splits.is_finished


def grouped(*script, pausing=True):
    rule = Watermarks("at", group="all", max_drift_ms=10)
    source = Scripted(*script, pausing=pausing)
    return source, reading(source, "a", "b", watermarks=rule)


def test_a_split_of_a_group_pauses_as_soon_as_it_is_ahead_of_the_limit():
    source, splits = grouped(batch("a", 1, 50), batch("a", 2, 101), batch("b", 1, 70))
    splits.limit(60)

    assert splits.read(100, 0) is not None
    assert source.made.paused == frozenset()
    splits.read(100, 0)
    assert source.made.paused == {"a"}
    splits.read(100, 0)
    assert source.made.paused == {"a", "b"}
    assert splits.is_paused


def test_a_limit_that_rises_lets_splits_go_on():
    source, splits = grouped(batch("a", 1, 101), batch("b", 1, 70))
    splits.limit(0)
    all_of(splits)

    splits.limit(80)

    assert source.made.paused == {"a"}
    assert not splits.is_paused
    splits.limit(200)
    assert source.made.paused == frozenset()


def test_before_the_slowest_of_a_group_is_known_each_split_shows_its_first_rows_and_no_more():
    source, splits = grouped(batch("a", 1, 50))

    assert not splits.is_paused
    all_of(splits)

    assert source.made.paused == {"a"}
    assert not splits.is_paused


def test_a_reader_that_cannot_pause_is_not_read_at_all_while_a_split_is_ahead():
    _, splits = grouped(batch("a", 1, 101), pausing=False)
    splits.limit(60)
    all_of(splits)

    assert splits.is_paused
    splits.limit(200)
    assert not splits.is_paused


def test_a_split_that_waits_for_its_group_is_not_idle():
    rule = Watermarks("at", idle_ms=50, group="all", max_drift_ms=10)
    splits = reading(Scripted(batch("a", 1, 500)), "a", watermarks=rule)
    splits.limit(100)
    all_of(splits)

    splits.look_for_idle(1_000)

    assert not splits.is_idle


def test_a_reader_is_told_what_a_checkpoint_has():
    source = Scripted()
    splits = reading(source, "a", "b")

    splits.committed([SplitState("a", 5), SplitState("b", 9, True)])

    assert source.made.told == {"a": 5, "b": 9}


def test_rows_of_another_schema_are_refused_with_split_and_position():
    wrong = Batch(pa.record_batch({"at": ["x"]}), "a", 7)

    with pytest.raises(
        InvalidInputError, match=r"source 'given' must give .* at int64; at position 7 of split 'a' .* at s"
    ):
        reading(Scripted(wrong), "a").read(100, 0)


def test_a_source_that_goes_back_is_refused_with_both_positions():
    splits = reading(Scripted(batch("a", 4, 1)), "a", a=SplitState("a", 9))

    with pytest.raises(InvalidInputError, match="'given' went back: split 'a' was at position 9, and .* up to 4"):
        splits.read(100, 0)


@pytest.mark.parametrize("given", [batch("x", 1, 1), EndOfSplit("x")])
def test_rows_of_a_split_that_was_not_given_are_refused(given):
    with pytest.raises(InvalidInputError, match="gave rows of split 'x', which it was not given"):
        reading(Scripted(given), "a").read(100, 0)


def test_rows_of_a_split_that_has_ended_are_refused():
    splits = reading(Scripted(EndOfSplit("a"), batch("a", 1, 1)), "a")
    splits.read(100, 0)

    with pytest.raises(InvalidInputError, match="or which has ended"):
        splits.read(100, 0)


def test_a_null_event_time_is_refused_with_its_row():
    splits = reading(Scripted(batch("a", 2, 5, None)), "a", watermarks=Watermarks("at"))

    with pytest.raises(
        SourceError, match="from the start: the event time, 'at', is null in row 1 from there"
    ) as caught:
        splits.read(100, 0)

    assert caught.value.split == "a"


def test_what_a_reader_raises_is_told_with_the_source_and_its_traceback():
    with pytest.raises(UserFunctionError, match=r"'given'(.|\n)*the disk is gone(.|\n)*test_reading.py"):
        reading(Scripted(OSError("the disk is gone")), "a").read(100, 0)


def test_a_source_whose_reader_is_none_is_refused():
    class Wrong(Scripted):
        def reader(self):
            return "no reader"

    with pytest.raises(
        InvalidInputError, match="the source of 'given' must give a Reader, got str; derive from Reader"
    ):
        reading(Wrong(), "a")


def restored(*states: SplitState, script=(), idle_ms=None) -> SourceSplits:
    """A source of files, of which these splits are left."""
    source = Scripted(*script, sequential=True)
    rule = Watermarks("at", idle_ms=idle_ms)
    splits = SourceSplits(SourceNode(uid="given", source=source, watermarks=rule, schema=SCHEMA))
    splits.add(states, 0)
    return splits


def test_a_file_that_waits_holds_event_time_back_if_a_later_one_was_begun():
    begun, waits = SplitState("b", 5, False, 400, number=5), SplitState("a", number=4)
    script = [batch("b", 6, 450), EndOfSplit("b"), batch("a", 1, 300), EndOfSplit("a"), batch("c", 1, 500)]

    splits = restored(begun, waits, SplitState("c", number=7), script=script)

    assert splits.look() is None
    assert all_of(splits) == [None, None, 299, None, 499]


def test_a_file_that_waits_for_its_turn_is_not_idle():
    states = [SplitState("a", 5, False, 100, number=1), SplitState("b", 5, False, 400, number=5)]
    splits = restored(*states, script=[batch("a", 6, 150)], idle_ms=50)
    all_of(splits)

    for now_ms in (10, 60, 200):
        splits.look_for_idle(now_ms)

    # Only the first is, whose turn it is.
    assert not splits.is_idle


def test_the_file_whose_turn_it_is_turns_idle_though_it_had_no_rows_since_a_restart():
    splits = restored(SplitState("a", 5, False, 100, number=1), idle_ms=50)

    splits.look_for_idle(10)
    splits.look_for_idle(60)

    assert splits.is_idle


def test_a_reader_that_cannot_pause_goes_on_until_it_is_known_how_far_the_source_is():
    rule = Watermarks("at", group="all", max_drift_ms=10)
    splits = reading(Scripted(batch("a", 1, 100), batch("b", 1, 50), pausing=False), "a", "b", watermarks=rule)

    splits.read(100, 0)
    assert not splits.is_paused
    splits.read(100, 0)
    assert splits.is_paused
