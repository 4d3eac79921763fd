"""A store with a random history that is published again and again, and what its tables must show."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

import arrowstate
from arrowstate.publish.delta_table import _from_z85
from arrowstate.publish.held import OWN_TAGS
from arrowstate.publish.types import DELTA, ICEBERG, KnownTypes, plain_array, plain_type
from every_kind import FORMATS, UID, Job
from stores import commit
from table_readers import Rows, by_arrow

SHOP = "shop"
USER = pa.schema([("user", pa.string()), ("shelf", pa.int16())])
FORMS = (
    (pa.struct([("amount", pa.int32()), ("note", pa.string())]), arrowstate.SchemaEvolution()),
    (
        pa.struct([("total", pa.int32()), ("note", pa.string()), ("currency", pa.string())]),
        arrowstate.SchemaEvolution(renamed={"amount": "total"}, defaults={"currency": "EUR"}),
    ),
    (
        pa.struct([("total", pa.int64()), ("currency", pa.string()), ("amount", pa.decimal128(9, 2))]),
        arrowstate.SchemaEvolution(dropped=["note"]),
    ),
    (
        pa.struct([("total", pa.int64()), ("currency", pa.string()), ("amount", pa.decimal128(12, 4))]),
        arrowstate.SchemaEvolution(),
    ),
)
"""What the state `purchase` is: a field is renamed, added with a default, widened, dropped, and its name used again."""


def committed_forms(store: arrowstate.StateStore, format: Any) -> Iterator[None]:
    """Commit a checkpoint with each form of `purchase`, of 3,000 rows at first and then of some; yield after each."""
    backend = arrowstate.KeyedStateBackend(key=USER, max_parallelism=128)
    for number, (form, evolution) in enumerate(FORMS):
        state = backend.state(arrowstate.ValueStateDescriptor("purchase", form, evolution=evolution))
        users = [f"user {user}" for user in range(number * 10, 3000 if number == 0 else number * 10 + 20)]
        keys = pa.table({"user": users, "shelf": [1] * len(users)}, schema=USER)
        value = {item.name: number for item in form} | {"note": "n", "currency": "USD"}
        state.update_batch(keys, pa.array([value] * len(users), form))
        commit(store, {"op": [backend]}, format=format)
        yield
        backend = store.latest().restore("op")


def expected(snapshot: arrowstate.Snapshot, state: str, columns: list[str], known: KnownTypes = ICEBERG) -> Rows:
    """The rows that a table must show of a checkpoint, those that have expired too, in the types of open tables."""
    table = snapshot.to_arrow(state, columns=columns, expired=True).combine_chunks()
    arrays = [
        pa.chunked_array([plain_array(chunk, plain_type(chunk.type, name, known), name) for chunk in column.chunks])
        if column.num_chunks
        else pa.chunked_array([], plain_type(column.type, name, known))
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return by_arrow(pa.table(arrays, names=table.column_names))


def metadata_of(url: str) -> dict[str, Any]:
    """What the metadata of a table says."""
    return json.loads(Path(url.removeprefix("file://")).read_bytes())


def compared(
    store: arrowstate.StateStore,
    publication: arrowstate.Publication,
    read: Callable[[str, int | None], Rows],
    *,
    newest_only: bool = False,
) -> int:
    """Compare each snapshot of each table with the store; return how many were."""
    entries = {entry.document.number: entry.document for entry in store._log.history().checkpoints()}
    count = 0
    for table in publication.tables:
        metadata = metadata_of(table.metadata)
        schemas = {schema["schema-id"]: [item["name"] for item in schema["fields"]] for schema in metadata["schemas"]}
        current = metadata["current-snapshot-id"]
        for snapshot in metadata["snapshots"]:
            if newest_only and snapshot["snapshot-id"] != current:
                continue
            entry = entries[int(snapshot["summary"]["arrowstate.log-number"])]
            name = f"{table.operator}.{table.state}"
            wanted = []
            if name in store.snapshot_of(entry).states():
                wanted = expected(store.snapshot_of(entry), name, schemas[snapshot["schema-id"]])
            found = read(table.metadata, snapshot["snapshot-id"])
            assert found == wanted, (name, entry.checkpoint_id, len(found), len(wanted), found[:2], wanted[:2])
            count += 1
        tags = store.tags()
        by_id = {
            item["snapshot-id"]: int(item["summary"]["arrowstate.checkpoint-id"]) for item in metadata["snapshots"]
        }
        refs = {tag: by_id[ref["snapshot-id"]] for tag, ref in metadata["refs"].items() if tag != "main"}
        assert refs == {tag: tags[tag] for tag in refs}
        assert by_id[metadata["refs"]["main"]["snapshot-id"]] == store.latest().checkpoint_id
    return count


class Shown(NamedTuple):
    """A version of a Delta table that can be read."""

    version: int
    number: int
    "That of the log entry whose checkpoint it shows."
    columns: list[str]
    files: set[str]
    "In the folder of the table."


def shown(folder: Path) -> list[Shown]:
    """What the log of a Delta table says, commit by commit after the first checkpoint of it."""
    log = folder / "_delta_log"
    adds: dict[str, dict[str, Any]] = {}
    schema, found = "", []
    commits = sorted(log.glob("*.json"))
    start = log / f"{commits[0].stem}.checkpoint.parquet"
    if int(commits[0].stem):
        for row in pq.read_table(start).to_pylist():
            adds |= {} if row["add"] is None else {row["add"]["path"]: row["add"]}
            schema = schema if row["metaData"] is None else row["metaData"]["schemaString"]
    for file in commits:
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for action in actions:
            adds.pop(action.get("remove", {}).get("path"), None)
        for action in actions:
            adds |= {action["add"]["path"]: action["add"]} if "add" in action else {}
            schema = action["metaData"]["schemaString"] if "metaData" in action else schema
        said = actions[0]["commitInfo"]["operationParameters"]
        vectors = [item["deletionVector"] for item in adds.values() if item.get("deletionVector")]
        names = {f"deletion_vector_{UUID(bytes=_from_z85(item['pathOrInlineDv']))}.bin" for item in vectors}
        columns = [item["name"] for item in json.loads(schema)["fields"]]
        found.append(Shown(int(file.stem), int(said["arrowstate.log-number"]), columns, {*adds, *names}))
    return found


def compared_delta(
    store: arrowstate.StateStore,
    publication: arrowstate.Publication,
    read: Callable[[str, int | None], Rows],
    *,
    newest_only: bool = False,
) -> int:
    """Compare each version of each Delta table with the store; return how many were."""
    entries = {entry.document.number: entry.document for entry in store._log.history().checkpoints()}
    count = 0
    for table in publication.tables:
        versions = shown(Path(table.metadata.removeprefix("file://")))
        assert [item.version for item in versions][-1] == table.version
        for item in versions[-1:] if newest_only else versions:
            name, entry = f"{table.operator}.{table.state}", entries[item.number]
            snapshot = store.snapshot_of(entry)
            wanted = expected(snapshot, name, item.columns, DELTA) if name in snapshot.states() else []
            found = read(table.metadata, item.version)
            assert found == wanted, (name, item.version, len(found), len(wanted), found[:2], wanted[:2])
            count += 1
        assert store.snapshot_of(entries[versions[-1].number]).checkpoint_id == store.latest().checkpoint_id
    return count


class History:
    """Random work on a store: steps, checkpoints, and all that happens to a store between two publications."""

    def __init__(self, folder: Path, seed: int, *, keys: int = 60) -> None:
        self.dice = random.Random(seed)
        self.folder = folder
        self.store = arrowstate.open_store(folder / "store", create=True)
        self.keys = keys
        self.form = 0
        self.number = 0
        self.tagged = 0
        self.job = Job.new(self.dice.choice([1, 3]), keys)
        self.shop: arrowstate.KeyedStateBackend | None = arrowstate.KeyedStateBackend(key=USER, max_parallelism=128)
        self.formats = self.dice.choice([FORMATS, ("parquet",), ("arrow",)])
        self.step()
        self.checkpoint()

    def step(self) -> None:
        """Change every state."""
        self.number += 1
        self.job.step(self.number)
        if self.shop is None:
            return
        form, evolution = FORMS[self.form]
        state = self.shop.state(arrowstate.ValueStateDescriptor("purchase", form, evolution=evolution))
        users = [self.dice.randrange(self.keys) for _ in range(self.keys // 3)]
        keys = {"user": [f"user {user}" for user in users], "shelf": [user % 3 for user in users]}
        values = [
            {item.name: self.number * 100 + user if item.name != "note" else f"n{user}" for item in form}
            for user in users
        ]
        for value in values:
            value.update({"currency": "USD"} if "currency" in value else {})
        state.update_batch(pa.table(keys, schema=USER), pa.array(values, form))
        state.clear_batch(pa.table(keys, schema=USER).slice(0, 3))

    def checkpoint(self) -> None:
        """Commit what is in the backends."""
        operators = {UID: self.job.keyed} | ({} if self.shop is None else {SHOP: [self.shop]})
        with self.store.writer(compaction=None) as writer:
            writer.checkpoint(
                operators,
                operator_states={UID: self.job.operator},
                format=self.dice.choice(self.formats),
                allow_dropped_state=True,
            )

    def restore(self) -> None:
        """Go on from the newest checkpoint, at another parallelism and perhaps with another schema."""
        snapshot = self.store.latest()
        self.job = Job.restored(snapshot, self.dice.choice([1, 2, 3]), self.keys)
        if self.shop is not None and SHOP in snapshot.operators:
            self.shop = snapshot.restore(SHOP)
            self.form = min(self.form + self.dice.randrange(2), len(FORMS) - 1)

    def happen(self) -> str:
        """Do something, and return what."""
        what = self.dice.choice(
            ["steps"] * 4 + ["restore", "compact", "tag", "untag", "collect", "rollback", "edit", "drop"]
        )
        if what == "steps":
            for _ in range(self.dice.randrange(1, 3)):
                self.step()
                self.checkpoint()
        elif what == "restore":
            self.restore()
            self.step()
            self.checkpoint()
        elif what == "compact":
            policy = arrowstate.CompactionPolicy(max_space_amplification=1.01)
            self.store.compact(policy).apply()
        elif what == "tag":
            self.tagged += 1
            self.store.tag(f"tag-{self.tagged}", self.dice.choice(self.store.checkpoints()).checkpoint_id)
        elif what == "untag":
            own = [tag for tag in self.store.tags() if not tag.startswith(OWN_TAGS)]
            if own:
                self.store.untag(self.dice.choice(own))
        elif what == "collect":
            self.store.collect(arrowstate.RetentionPolicy(count=self.dice.randrange(1, 4))).apply()
        elif what == "rollback":
            back = self.dice.choice(self.store.checkpoints())
            if "purchase" in back.operators.get(SHOP, []):
                self.store.rollback(back.checkpoint_id)
                names = back[f"{SHOP}.purchase"].schema.names
                self.form = next(
                    number
                    for number, (form, _) in enumerate(FORMS)
                    if {item.name for item in form} <= {*names}
                    and all(back[f"{SHOP}.purchase"].schema.field(item.name).type == item.type for item in form)
                )
                self.job = Job.restored(self.store.latest(), len(self.job.keyed), self.keys)
                self.shop = self.store.latest().restore(SHOP)
        elif what == "edit":
            with self.store.edit() as edit:
                edit.delete(f"{UID}.total", where=f"k % 7 = {self.dice.randrange(7)}")
                edit.commit()
            self.job = Job.restored(self.store.latest(), len(self.job.keyed), self.keys)
            if self.shop is not None and SHOP in self.store.latest().operators:
                self.shop = self.store.latest().restore(SHOP)
        elif what == "drop":
            if self.shop is None:
                self.shop, self.form = arrowstate.KeyedStateBackend(key=USER, max_parallelism=128), 0
            else:
                self.shop = None
            self.step()
            self.checkpoint()
        return what

    def publish(self, version: int, history: int = 3, format: str = "iceberg") -> arrowstate.Publication:
        """Publish all, to a place for the format and its version."""
        place = self.folder / f"{'tables' if format == 'iceberg' else format}-{version}"
        return self.store.publish(place, format=format, version=version, history=history)
