"""Whatever a store of a job, an edit, a rollback and an import contains is named in the specification."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import arrowstate
from arrowstate.runtime import Job, OutputTable, Sink, TableSource

SPEC = "\n".join(path.read_text() for path in sorted((Path(__file__).parents[2] / "formats/spec").glob("*.md")))
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
# What stands in examples alone is not told.
NAMED = set(re.findall(r"[A-Za-z_][A-Za-z0-9_.]*", " ".join(re.findall(r"`([^`\n]+)`", BLOCK.sub("", SPEC)))))
# The names of their members are those of states, operators, files or columns.
BY_NAME = {"live_rows", "schema_versions", "waiting", "reduce", "pending", "recorded", "parameters"}


class Totals(arrowstate.BatchFunction):
    def open(self, context: Any) -> None:
        ttl = arrowstate.TimeToLive(86_400_000)
        self.total = context.state(arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum", ttl=ttl))
        self.seen = context.state(arrowstate.ListStateDescriptor("seen", pa.int64()))

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> pa.RecordBatch:
        if 13 in batch["n"].to_pylist():
            raise ValueError("13")
        keys = context.group_keys(batch)
        self.total.add_batch(keys, batch["n"])
        self.seen.add_batch(batch["k"], batch["n"])
        return batch


class Nowhere(Sink):
    def commit(self, rows: pa.Table, token: Any) -> None: ...


def members(value: Any) -> Iterator[str]:
    """Yield the names of all members of a document but those that are names of something else."""
    if isinstance(value, list):
        for item in value:
            yield from members(item)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from members(list(inner.values()) if name in BY_NAME and isinstance(inner, dict) else inner)


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a document, at any depth."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield value
    for item in inner:
        yield from objects(item)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All documents of a store in which everything has happened, and of a savepoint of it."""
    folder = tmp_path_factory.mktemp("contained")
    schema = pa.schema({"k": pa.int64(), "n": pa.int64()})
    rows = pa.table({"k": [0, 1] * 50, "n": list(range(100))}, schema=schema)
    job = Job(folder / "store", retention=None)
    stream = job.source(TableSource(rows), uid="rows")
    totals = stream.stateful(Totals(), key=["k"], uid="totals", output_schema=schema, on_error="dead_letter")
    totals.sink(OutputTable("copies"))
    totals.sink(Nowhere(), uid="nowhere")
    job.run(mode="inline")
    store = arrowstate.open_store(folder / "store")
    edit = store.edit()
    edit.execute("update totals.total set total = total + 1 where k = 0")
    edit.commit(comment="again")
    store.tag("gold")
    store.savepoint("saved")
    store.rollback("gold")
    arrowstate.open_store(folder / "other", create=True).import_savepoint(folder / "store/savepoints/saved")
    found = [json.loads(path.read_text()) for path in folder.rglob("*.json")]
    assert len(found) > 10
    return found


def operators_of(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [operator for document in documents for operator in document.get("operators", [])]


def test_every_member_of_a_document_is_named(documents: list[dict[str, Any]]) -> None:
    found = {name for document in documents for name in members(document)}

    assert {"arrowstate.runtime", "edited_from", "rolled_back_to", "imported_from", "comment"} <= found
    assert sorted(found - NAMED) == []


def test_every_operator_and_state_that_the_package_makes_is_told(documents: list[dict[str, Any]]) -> None:
    operators = operators_of(documents)
    states = {state["name"] for operator in operators for state in operator["operator_states"]}

    assert {operator["uid"] for operator in operators} == {"rows", "totals", "totals_dead_letters", "copies", "nowhere"}
    assert states == {"splits", "rows", "pending"}
    assert states <= NAMED
    assert "`<uid>_dead_letters`" in SPEC


def test_every_column_of_a_split_and_of_a_dead_letter_is_told(documents: list[dict[str, Any]]) -> None:
    columns = {
        field["name"]
        for operator in operators_of(documents)
        if operator["uid"] in ("rows", "totals_dead_letters")
        for state in operator["operator_states"]
        for field in state["value_type"]["fields"]
    }

    assert {"reason", "finished"} <= columns
    assert columns <= NAMED


def test_every_column_with_statistics_is_told(documents: list[dict[str, Any]]) -> None:
    columns = {found["column"] for document in documents for found in objects(document) if "null_count" in found}

    assert {"_seq", "_updated_at"} <= columns
    told = next(line for line in SPEC.splitlines() if line.startswith("| `statistics` | `column`"))
    assert all(f"`{column}`" in told for column in columns if column.startswith("_"))
