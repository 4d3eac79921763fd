"""Compaction of live state: a checkpoint takes little more room than its live rows, in few files."""

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import arrowstate
from arrowstate.checkpoints.compaction import choose, compact_backends, plan_compaction
from arrowstate.files.open_files import forget_open_files
from arrowstate.files.reading import store_key
from arrowstate.files.storage_use import RunSlice
from stores import KEY, NOTE, TOTAL

# Tables that merge nothing by themselves, so that what is seen is the compaction.
PATIENT = arrowstate.MergePolicy(fan_in=10_000, max_dead_share=1.0)
KEYS = 20_000


@pytest.fixture
def store(tmp_path):
    return arrowstate.open_store(tmp_path / "store", create=True)


def backends_of(parallelism, **options):
    return [
        arrowstate.KeyedStateBackend(
            key=KEY,
            max_parallelism=128,
            key_groups=arrowstate.key_group_range(128, parallelism=parallelism, subtask=subtask),
            merge_policy=PATIENT,
            **options,
        )
        for subtask in range(parallelism)
    ]


def restored(snapshot, parallelism):
    forget_open_files()
    backends = [snapshot.restore("op", parallelism=parallelism, subtask=n) for n in range(parallelism)]
    for backend in backends:
        for state in backend.states.values():
            state.table._policy = PATIENT
    return backends


class Model:
    """What the state holds, as numpy arrays, and how it is written to."""

    def __init__(self, seed=1):
        self.random = np.random.default_rng(seed)
        self.total = np.zeros(KEYS, dtype=np.int64)

    def add(self, backends, keys):
        keys = np.unique(keys)
        values = self.random.integers(1, 100, keys.size)
        self.total[keys] += values
        numbers = arrowstate.key_groups(pa.array(keys), 128).to_numpy()
        for backend in backends:
            own = (numbers >= backend.key_groups.start) & (numbers <= backend.key_groups.end)
            backend.state(TOTAL).add_batch(pa.array(keys[own]), pa.array(values[own]))

    def churn(self, backends, share=0.01):
        self.add(backends, self.random.integers(0, KEYS, int(KEYS * share)))

    def check(self, snapshot):
        forget_open_files()
        values = snapshot.restore("op").state(TOTAL).get_batch(np.arange(KEYS)).fill_null(0)
        assert (values.to_numpy() == self.total).all()


def test_two_hundred_rounds_of_churn_stay_under_the_limit_and_within_the_bound_of_rewriting(store):
    model, backends = Model(), backends_of(1)
    model.add(backends, np.arange(KEYS))
    found = []
    with store.writer() as writer:
        for _ in range(200):
            model.churn(backends)
            snapshot = writer.checkpoint({"op": backends})
            found.append(snapshot.storage_use())
    model.check(snapshot)

    assert max(use.space_amplification for use in found) < 2
    assert max(use.small_files for use in found) <= 16 + 1
    # Two bytes for each that died, and each small file a few times; without a limit it would be 200 times the state.
    written = sum(path.stat().st_size for path in (Path(store.url) / "data").rglob("*.arrow"))
    assert written < 60 * found[-1].live_bytes


def test_without_compaction_the_same_rounds_take_more(store):
    model, backends = Model(), backends_of(1)
    model.add(backends, np.arange(KEYS))
    with store.writer(compaction=None) as writer:
        for _ in range(30):
            model.churn(backends, 0.05)
            snapshot = writer.checkpoint({"op": backends})

    assert snapshot.storage_use().space_amplification > 2
    assert snapshot.storage_use().small_files == 30 + 1


@pytest.mark.parametrize("limit", [1.2, 1.5, 3.0])
def test_the_limit_can_be_set(store, limit):
    model, backends = Model(), backends_of(1)
    model.add(backends, np.arange(KEYS))
    found = []
    with store.writer(compaction=arrowstate.CompactionPolicy(limit, max_small_files=1000)) as writer:
        for _ in range(40):
            model.churn(backends, 0.05)
            found.append(writer.checkpoint({"op": backends}).storage_use().space_amplification)
    model.check(store.latest())

    # The manifest comes on top of what the policy looks at.
    assert (1 + limit) / 2 * 0.9 < max(found) < limit * 1.05


def test_files_that_subtasks_share_after_a_rescale_are_left_by_all_of_them_or_none(store):
    model, backends = Model(), backends_of(1)
    model.add(backends, np.arange(KEYS))
    policy = arrowstate.CompactionPolicy(1.5)
    with store.writer(compaction=policy) as writer:
        for parallelism in (1, 4, 1):
            backends = restored(writer.checkpoint({"op": backends}), parallelism)
            uses = []
            for _ in range(40):
                # Mostly in one subtask of four: by itself it would leave the file to the others.
                model.churn(backends, 0.01)
                model.add(backends[:1], np.arange(KEYS)[owned(backends[0])][:200])
                uses.append(writer.checkpoint({"op": backends}).storage_use())
            assert max(use.space_amplification for use in uses) < 1.5 * 1.05
            model.check(store.latest())


def owned(backend):
    groups = arrowstate.key_groups(pa.array(np.arange(KEYS)), 128).to_numpy()
    return (groups >= backend.key_groups.start) & (groups <= backend.key_groups.end)


def test_many_small_files_become_one_per_subtask(store):
    model, backends = Model(), backends_of(4)
    with store.writer(compaction=None) as writer:
        for start in range(0, KEYS, KEYS // 20):
            model.add(backends, np.arange(start, start + KEYS // 20))
            # So small that they would be inline.
            before = writer.checkpoint({"op": backends})
    assert before.storage_use().small_files == 0
    model = Model(2)
    backends = backends_of(2)
    with store.writer(compaction=None) as writer:
        for start in range(0, KEYS, KEYS // 10):
            model.add(backends, np.arange(start, start + KEYS // 10))
            before = writer.checkpoint({"op": backends})
    assert before.storage_use().small_files == 20

    with store.writer(compaction=arrowstate.CompactionPolicy(max_small_files=9)) as writer:
        after = writer.checkpoint({"op": backends})

    assert after.storage_use().small_files == 2
    model.check(after)
    with store.writer(compaction=arrowstate.CompactionPolicy(max_small_files=1)) as writer:
        again = writer.checkpoint({"op": backends})
    assert again.entry.operators == after.entry.operators


def test_state_that_is_within_the_limits_is_left_alone(store):
    model, backends = Model(), backends_of(1)
    model.add(backends, np.arange(KEYS))
    model.churn(backends, 0.3)

    plan = plan_compaction({"op": backends}, store_key(store.storage, store.store_id), arrowstate.CompactionPolicy())

    assert plan.runs == 0
    plan.run()
    assert plan.adopt() == 0


def test_checkpoints_and_updates_go_on_while_a_thread_compacts(store):
    model, backends = Model(), backends_of(3)
    model.add(backends, np.arange(KEYS))
    key = store_key(store.storage, store.store_id)
    policy = arrowstate.CompactionPolicy(1.1)
    adopted = 0
    with store.writer(compaction=None) as writer:
        for _ in range(6):
            for _ in range(3):
                model.churn(backends, 0.05)
                writer.checkpoint({"op": backends})
            plan = plan_compaction({"op": backends}, key, policy)
            errors = []

            def work(plan=plan, errors=errors):
                try:
                    plan.run()
                except BaseException as error:  # noqa: BLE001 - shown by the test
                    errors.append(error)

            thread = threading.Thread(target=work)
            thread.start()
            commits = 0
            while thread.is_alive() or not commits:
                model.churn(backends, 0.05)
                model.check(writer.checkpoint({"op": backends}))
                commits += 1
            thread.join()
            assert not errors
            before = [backend.freeze() for backend in backends]
            adopted += plan.adopt()
            model.check(writer.checkpoint({"op": backends}))
            # A view that was frozen before is as it was.
            assert sum(state.table.live_rows for subtask in before for state in subtask.states) == KEYS

    assert adopted >= 6 * 3


def test_a_frozen_view_and_a_second_plan_do_not_mind_an_adoption(store):
    model, backends = Model(), backends_of(1)
    model.add(backends, np.arange(KEYS))
    model.churn(backends, 0.5)
    frozen = backends[0].freeze()
    rows = sorted(v for run in frozen.states[0].table.runs for b in run.live_batches() for v in b["total"].to_pylist())
    policy = arrowstate.CompactionPolicy(1.1)
    key = store_key(store.storage, store.store_id)
    plans = [plan_compaction({"op": backends}, key, policy) for _ in range(2)]
    for plan in plans:
        plan.run()

    assert [plan.adopt() for plan in plans] == [1, 0]

    again = sorted(v for run in frozen.states[0].table.runs for b in run.live_batches() for v in b["total"].to_pylist())
    assert again == rows
    with store.writer(compaction=None) as writer:
        model.check(writer.checkpoint({"op": backends}))


def test_a_state_that_was_taken_up_anew_drops_its_part():
    (backend,) = backends_of(1)
    backend.state(NOTE).update_batch(range(100), ["x"] * 100)
    backend.state(NOTE).clear_batch(range(60))
    plan = plan_compaction({"op": [backend]}, "", arrowstate.CompactionPolicy(min_bytes=0))
    plan.run()
    state = backend.states["note"]
    backend._add(state.descriptor, state.table.runs)

    assert (plan.runs, plan.adopt()) == (1, 0)

    assert backend.state(NOTE).get_batch([5, 70]).to_pylist() == [None, "x"]


def test_merged_rows_of_mapped_files_go_to_mapped_files(store, tmp_path, monkeypatch):
    model, backends = Model(), backends_of(1)
    model.add(backends, np.arange(KEYS))
    model.churn(backends, 0.5)
    with store.writer(compaction=None) as writer:
        snapshot = writer.checkpoint({"op": backends})
    (backend,) = restored(snapshot, 1)
    backend.states["total"].table._policy = arrowstate.MergePolicy(
        fan_in=10_000, max_dead_share=1.0, segment_bytes=100_000
    )

    assert compact_backends({"op": [backend]}, "", arrowstate.CompactionPolicy(max_small_files=1)) == 1

    (run,) = backend.states["total"].table.runs
    assert run.mapped
    assert run.live_rows == run.rows == KEYS


def slice_of(name, rows, live_rows, *, size=None, subtask=0, inline=False):
    return RunSlice(subtask, name, name, inline, size or rows * 10, 0, 0, rows * 14 * inline, rows, live_rows)


def chosen(slices, subtasks=1, **policy):
    found = choose(slices, subtasks, arrowstate.CompactionPolicy(**{"min_bytes": 0} | policy))
    return {subtask: sorted(part.item for part in parts) for subtask, parts in found.items()}


def test_the_worst_files_are_rewritten_and_no_more_than_needed():
    state = [slice_of("a", 100, 5), slice_of("b", 100, 50), slice_of("c", 100, 90), slice_of("d", 100, 20)]

    # 4000 bytes, 1650 live. Without the dead rows of a and d it is 2250, at most 1.5 times as much.
    assert chosen(state, small_file_bytes=0) == {0: ["a", "d"]}


def test_rows_that_no_subtask_owns_are_dead():
    shared = [slice_of("a", 100, 20, subtask=0), slice_of("a", 100, 20, subtask=1)]

    assert chosen(shared, 2, small_file_bytes=0) == {0: ["a"], 1: ["a"]}


def test_a_file_that_is_whole_is_not_copied():
    assert chosen([slice_of("a", 100, 100)] * 1, max_space_amplification=1.0001) == {}
    small = [slice_of(name, 100, 100, subtask=number) for number, name in enumerate("abc")]
    assert chosen([*small, slice_of("d", 100, 100, subtask=0)], 3, max_small_files=1) == {0: ["a", "d"]}


def test_a_state_that_takes_little_is_left_alone():
    state = [slice_of("a", 100, 10), slice_of("b", 100, 10)]

    assert chosen(state, 2, min_bytes=1001) == {}
    assert chosen(state, 2, min_bytes=1000) == {0: ["a", "b"]}


def test_inline_runs_are_no_files_and_go_along():
    inline = [slice_of(f"i{n}", 10, 10, inline=True) for n in range(50)]

    assert chosen(inline, max_small_files=1) == {}
    assert len(chosen([*inline, slice_of("a", 9, 9), slice_of("b", 9, 9)], max_small_files=1)[0]) == 52


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_space_amplification": 1.0}, "above 1 and finite, got 1.0"),
        ({"max_space_amplification": float("nan")}, "above 1 and finite, got nan"),
        ({"max_space_amplification": float("inf")}, "above 1 and finite, got inf"),
        ({"small_file_bytes": -1}, "not be negative, got -1"),
        ({"max_small_files": 0}, "at least 1, got 0"),
        ({"min_bytes": -1}, "not be negative, got -1"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(options, message):
    with pytest.raises(arrowstate.InvalidInputError, match=message):
        arrowstate.CompactionPolicy(**options)
