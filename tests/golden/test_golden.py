"""The golden stores of version 1 stay readable in every row: by this library, and by the specification alone."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

import arrowstate
from arrowstate.checkpoints.compaction import CompactionPolicy
from stores import commit

FORMATS = Path(__file__).parents[2] / "formats"
GOLDEN = FORMATS / "golden" / "v1"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOLDEN_SCRIPT = loaded(FORMATS / "golden" / "make_golden.py")
READER = loaded(Path(__file__).parents[1] / "formats" / "independent_reader.py")


@pytest.mark.parametrize("name", EXPECTED)
def test_the_library_reads_every_row_of_every_checkpoint(name: str) -> None:
    store = arrowstate.open_store(GOLDEN / name)

    found = {str(item.checkpoint_id): GOLDEN_SCRIPT.rows_of(item) for item in store.checkpoints()}

    assert found == EXPECTED[name]
    assert store.verify(deep=True).problems == []


@pytest.mark.parametrize("name", EXPECTED)
def test_json_pyarrow_and_xxhash_alone_read_every_row_of_every_checkpoint(name: str) -> None:
    for checkpoint, states in EXPECTED[name].items():
        found = READER.read_store(GOLDEN / name, int(checkpoint))

        assert {state: GOLDEN_SCRIPT.plain(rows) for state, rows in found.items()} == states


def test_the_stores_have_what_they_are_to_show() -> None:
    for name in EXPECTED:
        store = arrowstate.open_store(GOLDEN / name)
        kinds = {item.entry.kind for item in store.checkpoints()}
        operator = store.checkpoints()[1].entry.operators[0]
        assert kinds == {"checkpoint", "compaction"}
        assert list(store.tags()) == ["first"]
        assert bool(operator.subtask_files) == (name == "lists")
        assert operator.parallelism == 3
    lists = json.loads(sorted((GOLDEN / "lists" / "log").iterdir())[-2].read_text())
    assert (lists["kind"], lists["operators"]) == ("fence", [])


@pytest.mark.parametrize("name", EXPECTED)
def test_a_job_goes_on_from_it(name: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / name, tmp_path / "store")
    store = arrowstate.open_store(tmp_path / "store")
    before = GOLDEN_SCRIPT.rows_of(store.latest())
    # One subtask has one copy of it, three have three.
    before["shop.rules"] = before["shop.rules"][:1]
    backend = store.latest().restore("shop", clock_ms=lambda: 0)
    own = [store.latest().restore_operator_state("shop")]

    after = commit(store, {"shop": [backend]}, operator_states={"shop": own})
    store.compact(CompactionPolicy(max_space_amplification=1.01, min_bytes=0)).apply()
    store.untag("first")
    store.collect(arrowstate.RetentionPolicy(count=1), grace_ms=60_000).apply()

    assert GOLDEN_SCRIPT.rows_of(after) == before
    assert GOLDEN_SCRIPT.rows_of(store.latest()) == before
    assert store.verify(deep=True).problems == []
