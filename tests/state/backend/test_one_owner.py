"""A backend belongs to one thread at a time, and to the key groups and the key that it was made for."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.errors import ConcurrentUseError, InvalidInputError, KeyOutOfRangeError, KeyTypeError
from arrowstate.windows import TumblingEventTimeWindows, WindowOperator
from processes import at_once

TOTAL = arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum")


def backend_of(key=("k", pa.int64()), **options):
    return arrowstate.KeyedStateBackend(key=pa.schema([key]), max_parallelism=128, **options)


def refused_elsewhere(verb):
    """Whether a verb is refused in another thread while this one is in the middle of a verb."""
    with ThreadPoolExecutor(1) as pool, pytest.raises(ConcurrentUseError, match="one thread at a time"):
        pool.submit(verb).result()
    return True


def test_no_verb_of_any_kind_runs_beside_a_verb_of_another_thread():
    backend = backend_of()
    keys, spaces = pa.array([1]), pa.schema([("n", pa.int64())])
    value = backend.state(arrowstate.ValueStateDescriptor("value", pa.int64()))
    mean = backend.state(arrowstate.AggregatingStateDescriptor("mean", pa.int64(), aggregate="mean"))
    some = backend.state(arrowstate.ListStateDescriptor("some", pa.int64()))
    entries = backend.state(arrowstate.MapStateDescriptor("entries", pa.int64(), pa.int64()))
    spaced = backend.state(arrowstate.ReducingStateDescriptor("spaced", pa.int64(), reduce="sum", namespace=spaces))
    timers = backend.timers()
    windows = WindowOperator(backend_of(), TumblingEventTimeWindows(10), TOTAL)
    verbs = [
        lambda: value.update_batch(keys, [1]),
        lambda: value.get_batch(keys),
        lambda: value.clear_batch(keys),
        lambda: value.value(),
        lambda: value.update(1),
        lambda: len(value),
        lambda: mean.add_batch(keys, [1]),
        lambda: mean.add(1),
        lambda: mean.get(),
        lambda: some.add_batch(keys, [1]),
        lambda: some.add(1),
        lambda: some.get(),
        lambda: entries.put_batch(keys, keys, [1]),
        lambda: entries.put(1, 1),
        lambda: entries.is_empty(),
        lambda: spaced.merge_namespaces_batch(keys, 1, 2),
        lambda: timers.register_batch(keys, [1]),
        lambda: timers.pop_due(5),
        lambda: timers.next_timestamp(),
        lambda: setattr(backend, "current_key", 2),
        lambda: backend.freeze(),
        lambda: backend.transaction().__enter__(),
    ]
    backend.current_key = 1
    tried = []

    def in_the_middle(old, new):
        tried.extend(refused_elsewhere(verb) for verb in verbs)
        return old + new

    called = backend.state(arrowstate.ReducingStateDescriptor("called", pa.int64(), reduce=in_the_middle))
    called.add_batch(pa.array([1, 1]), [1, 2])

    assert len(tried) == len(verbs)
    assert called.get() == 3
    assert [len(state) for state in backend.states.values()] == [0, 0, 0, 0, 0, 0, 0, 1]
    with windows._backend.transaction():
        assert refused_elsewhere(lambda: windows.process(keys, [1], [1]))
        assert refused_elsewhere(lambda: windows.advance_watermark(5))


def test_a_runner_keeps_other_threads_out_from_its_first_row_to_its_last():
    class Meeting(arrowstate.KeyedProcessFunction):
        def open(self, context):
            self.total = context.state(TOTAL)

        def process_element(self, row, context, out):
            assert refused_elsewhere(lambda: total.get_batch(pa.array([1])))
            self.total.add(1)

    class Batches(arrowstate.BatchFunction):
        def process_batch(self, batch, context):
            assert refused_elsewhere(lambda: total.add_batch(batch["k"], [1]))

    backend = backend_of()
    total = backend.state(TOTAL)
    batch = pa.record_batch({"k": [1]})

    arrowstate.KeyedProcessRunner(backend, Meeting()).process(batch)
    arrowstate.BatchRunner(backend, Batches()).process(batch)

    assert total.get_batch(pa.array([1])).to_pylist() == [1]


def test_threads_that_use_one_state_at_once_lose_nothing_in_silence():
    backend = backend_of()
    total = backend.state(TOTAL)
    done = []

    def work(key):
        for _ in range(50):
            try:
                backend.current_key = key
                total.add(1)
                done.append(key)
            except ConcurrentUseError:
                pass

    at_once(work, range(4))

    assert total.get_batch(pa.array(range(4))).fill_null(0).to_pylist() == [done.count(key) for key in range(4)]


def test_the_current_key_of_a_running_thread_is_no_key_of_another():
    backend = backend_of()
    total = backend.state(TOTAL)
    fired = []

    with ThreadPoolExecutor(1) as pool:
        pool.submit(setattr, backend, "current_key", 1).result()
        with pytest.raises(ConcurrentUseError, match="current key"):
            total.add(1)
        # A timer brings its own key.
        backend.timers().register_batch(pa.array([2]), [5])
        backend.timers().advance_watermark(9, lambda timer: (total.add(3), fired.append(timer.key)))
        backend.current_key = 1
        total.add(2)

    assert fired == [2]
    assert total.get_batch(pa.array([1, 2])).to_pylist() == [2, 3]


def test_a_backend_is_handed_over_between_batches():
    backend = backend_of()
    total = backend.state(TOTAL)
    process = arrowstate.BatchRunner(backend, Sums())

    def work():
        backend.current_key = 7
        total.add(1)
        process.process(pa.record_batch({"k": [7], "n": [1]}))
        return backend.freeze()

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(4):
            pool.submit(work).result()

    # The thread that set it is gone.
    assert total.get() == 14


class Sums(arrowstate.BatchFunction):
    def open(self, context):
        self.total = context.state(TOTAL)

    def process_batch(self, batch, context):
        self.total.add_batch(batch["k"], batch["n"])


KEYED = [
    arrowstate.ValueStateDescriptor("s", pa.int64()),
    arrowstate.ReducingStateDescriptor("s", pa.int64(), reduce="sum"),
    arrowstate.AggregatingStateDescriptor("s", pa.int64(), aggregate="mean"),
]


@pytest.mark.parametrize("descriptor", KEYED, ids=lambda each: each.kind)
def test_keys_grouped_for_other_key_groups_are_refused(descriptor):
    lower = backend_of(key_groups=arrowstate.KeyGroupRange(0, 63))
    upper = backend_of(key_groups=arrowstate.KeyGroupRange(64, 127))
    numbers = np.arange(100)
    mine = numbers[arrowstate.key_groups(pa.array(numbers), 128).to_numpy() < 64]
    keys, values = lower.group_keys(pa.array(mine)), pa.array(mine)
    state = upper.state(descriptor)
    write = state.update_batch if descriptor.kind == "value" else state.add_batch

    for verb in (lambda: write(keys, values), lambda: state.get_batch(keys), lambda: state.read_keys(keys)):
        with pytest.raises(KeyOutOfRangeError):
            verb()
    with pytest.raises(KeyOutOfRangeError):
        state.clear_batch(keys)

    assert len(state) == 0
    everything = backend_of().state(descriptor)
    (everything.update_batch if descriptor.kind == "value" else everything.add_batch)(keys, values)
    assert len(everything) == len(mine)


@pytest.mark.parametrize("other", [("k", pa.int32()), ("other", pa.int64()), ("k", pa.timestamp("ms"))], ids=str)
def test_keys_grouped_for_another_key_are_refused(other):
    backend = backend_of(other)
    keys = backend.group_keys(pa.array([1], other[1]))
    state = backend_of().state(TOTAL)

    for verb in (lambda: state.add_batch(keys, [1]), lambda: state.get_batch(keys), lambda: state.read_keys(keys)):
        with pytest.raises(KeyTypeError):
            verb()

    assert len(state) == 0


def test_keys_grouped_with_or_without_namespaces_are_refused_by_a_state_that_has_others():
    backend = backend_of()

    def spaced(name, kind):
        descriptor = arrowstate.ValueStateDescriptor(name, pa.int64(), namespace=pa.schema([("n", kind)]))
        return backend.state(descriptor)

    numbers, texts, plain = spaced("a", pa.int64()), spaced("b", pa.string()), backend.state(TOTAL)
    grouped = numbers.key_batch(pa.array([1]), 5)

    for state, keys in ((texts, grouped), (plain, grouped), (numbers, backend.group_keys(pa.array([1])))):
        for verb in (state.get_batch, state.read_keys, state.clear_batch):
            with pytest.raises(InvalidInputError):
                verb(keys)
    assert numbers.get_batch(grouped).to_pylist() == [None]
