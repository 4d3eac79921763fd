"""A store with state of every kind that a seed makes, and the same rows as plain tables of DuckDB.

Each statement is made for both, as a verb or a script for an edit and as SQL for the tables. A new element of a list
has no `_seq` in a plain table, so lists are compared by the order of their elements.
"""

from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import arrowstate
from arrowstate.query.duckdb.sql_types import SqlForm

NOW_MS = 1_000_000
WATERMARK = 100
KEYS = (
    pa.schema([("k", pa.int64())]),
    pa.schema([("User", pa.string())]),
    pa.schema([("k", pa.int32()), ("at", pa.string())]),
    pa.schema([("k", pa.float32()), ("span", pa.duration("ms"))]),
)
DAY = pa.schema([("day", pa.int32())])
WINDOW = pa.schema([("start", pa.timestamp("ms")), ("window", pa.string())])
PAIR = pa.struct([("select", pa.int32()), ("text", pa.string()), ("parts", pa.list_(pa.int32()))])
WIDER = pa.struct([("more", pa.string()), ("select", pa.int64()), PAIR[1], PAIR[2]])
GROWN = arrowstate.ValueStateDescriptor("pair", WIDER)
KEYED: tuple[Any, ...] = (
    arrowstate.ValueStateDescriptor("v", pa.int64()),
    arrowstate.ValueStateDescriptor("pair", PAIR),
    arrowstate.ValueStateDescriptor("late", pa.decimal128(12, 2), ttl=arrowstate.TimeToLive(1000)),
    arrowstate.ValueStateDescriptor("early", pa.int32(), ttl=arrowstate.TimeToLive(40, clock="event_time")),
    arrowstate.ValueStateDescriptor("in.day", pa.float64(), namespace=DAY),
    arrowstate.ReducingStateDescriptor("total", pa.int64(), reduce="sum", namespace=WINDOW),
    arrowstate.ReducingStateDescriptor("least", pa.float32(), reduce="min"),
    arrowstate.AggregatingStateDescriptor("mean", pa.float64(), aggregate="mean"),
    arrowstate.AggregatingStateDescriptor("best", pa.int64(), aggregate=arrowstate.TopK(3)),
    arrowstate.AggregatingStateDescriptor("distinct", pa.int64(), aggregate="count_distinct"),
    arrowstate.ListStateDescriptor("seen", pa.int32()),
    arrowstate.ListStateDescriptor("spans", pa.duration("us"), namespace=DAY, ttl=arrowstate.TimeToLive(1000)),
    arrowstate.MapStateDescriptor("cart", pa.string(), pa.float64()),
    arrowstate.MapStateDescriptor(
        "places", pa.int16(), pa.struct([("x", pa.float16()), ("y", pa.string())]), namespace=DAY
    ),
)
OPERATOR: tuple[Any, ...] = (
    arrowstate.OperatorListStateDescriptor("offsets", pa.int64()),
    arrowstate.OperatorListStateDescriptor(
        "topics", pa.struct([("topic", pa.string()), ("n", pa.int32())]), mode="union"
    ),
    arrowstate.BroadcastStateDescriptor("rules", pa.string(), pa.float64()),
)
SKETCHES = ("distinct",)
_TESTS = {
    "int": pa.types.is_integer,
    "float": pa.types.is_floating,
    "string": pa.types.is_string,
    "decimal": pa.types.is_decimal,
    "list": pa.types.is_list,
    "duration": pa.types.is_duration,
    "timestamp": pa.types.is_timestamp,
}
EXPRESSIONS = {
    "int": ("{c} + 1", "-{c}", "42", "{c} % 7"),
    "float": ("{c} / 2", "{c} + 0.5", "3"),
    "string": ("{c} || 'x'", "upper({c})", "'new'"),
    "decimal": ("{c} + 1.25", "0.5"),
    "list": ("list_append({c}, 7)", "[1, 2]", "{c}[:1]"),
    "duration": ("{c} * 2", "interval 90 minutes", "{c} + interval 1 day"),
    "timestamp": ("{c} + interval 1 hour",),
}
CONDITIONS = {
    "int": ("{c} % 3 = 1", "{c} > 4", "{c} = 7", "{c} in (1, 5, 900)"),
    "float": ("{c} > 4", "{c} = 7", "{c} between -2 and 20"),
    "string": ("{c} like '%1'", "{c} > 'user 3'", "{c} = 'user 7'"),
    "decimal": ("{c} > 1.25",),
    "list": ("len({c}) > 1",),
    "duration": ("{c} > interval 3 milliseconds",),
    "timestamp": ("{c} > timestamp '1970-01-01 00:00:00.002'",),
}
ELSEWHERE = {"int": "{c} + 1000", "float": "{c} + 1000", "string": "{c} || '!'", "duration": "{c} + interval 1 hour"}


def family(kind: pa.DataType) -> str:
    """The name of a group of types for which the same expressions are made."""
    return next(name for name, test in _TESTS.items() if test(kind))


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def keys_of(key: pa.Schema, numbers: Any) -> pa.RecordBatch:
    """A key for each number, distinct ones for numbers below 100."""
    columns = []
    for field in key:
        if pa.types.is_string(field.type):
            columns.append(pa.array([f"user {number}" for number in numbers.tolist()]))
        else:
            columns.append(pa.array(numbers.astype(np.int64)).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=key)


def values_of(kind: pa.DataType, random: Any, count: int, *, nulls: bool = False) -> pa.Array:
    """Some values; with `nulls` text may be missing."""
    numbers = random.integers(-50, 50, count)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays(
            [values_of(field.type, random, count, nulls=True) for field in kind], fields=list(kind)
        )
    if pa.types.is_list(kind):
        return pa.array([[int(number), None] * (int(number) % 3) for number in numbers], kind)
    if pa.types.is_string(kind):
        return pa.array([None if nulls and number % 5 == 0 else f"t{number}" for number in numbers.tolist()], kind)
    if pa.types.is_decimal(kind):
        return pa.array([Decimal(number) / 4 for number in numbers.tolist()], kind)
    if pa.types.is_floating(kind):
        return pa.array((numbers / 4).astype(kind.to_pandas_dtype()))
    return pa.array(numbers).cast(kind)


def spaces_of(schema: pa.Schema, random: Any, count: int) -> pa.RecordBatch:
    numbers = random.integers(1, 4, count)
    columns = [
        pa.array([f"w{number}" for number in numbers]) if pa.types.is_string(field.type) else pa.array(numbers)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


class Job:
    """An operator whose subtasks have some of the states, over a few checkpoints of a store."""

    def __init__(self, store: arrowstate.StateStore, random: Any) -> None:
        self.random = random
        self.key = KEYS[int(random.integers(len(KEYS)))]
        self.max_parallelism = int(random.choice([4, 16, 128, 500]))
        chosen = [descriptor for descriptor in KEYED if random.random() < 0.3]
        self.states = chosen or [KEYED[int(random.integers(len(KEYED)))]]
        # What is written first has expired in the end.
        self.now = NOW_MS - 1200
        cuts = random.permutation(np.arange(1, self.max_parallelism))[: int(random.integers(0, 3))]
        edges = [0, *sorted(cuts.tolist()), self.max_parallelism]
        self.backends = [
            arrowstate.KeyedStateBackend(
                key=self.key,
                max_parallelism=self.max_parallelism,
                key_groups=arrowstate.KeyGroupRange(start, end - 1),
                merge_policy=arrowstate.MergePolicy(fan_in=3, first_tier_rows=60),
                clock_ms=lambda: self.now,
            )
            for start, end in pairwise(edges)
        ]
        self.operator = [arrowstate.OperatorStateBackend() for _ in self.backends]
        self.format = str(random.choice(["arrow", "arrow", "parquet"]))
        steps = int(random.integers(2, 4))
        with store.writer() as writer:
            for step in range(steps):
                self.step(writer, step)
            if random.random() < 0.4:
                self.rescale(store)
                self.step(writer, steps)

    def rescale(self, store: arrowstate.StateStore) -> None:
        """Go on at another parallelism, with a struct that has grown."""
        count = int(self.random.integers(1, 4))
        own = [{"parallelism": count, "subtask": number} for number in range(count)]
        snapshot = store.latest()
        self.backends = [snapshot.restore("op", **each, clock_ms=lambda: self.now) for each in own]
        self.operator = [snapshot.restore_operator_state("op", **each) for each in own]
        self.states = [GROWN if item.name == "pair" else item for item in self.states]

    def step(self, writer: Any, step: int) -> None:
        """Change the states, and commit a checkpoint."""
        self.now += 400
        for backend in self.backends:
            for descriptor in self.states:
                self.write(backend, backend.state(descriptor))
            keys = self.own(backend, np.arange(10))
            times = pa.array(self.random.integers(5000, 5004, keys.num_rows))
            backend.timers().register_batch(keys, times)
            spaces = spaces_of(DAY, self.random, keys.num_rows)
            alarms = backend.timers("alarms", DAY)
            alarms.register_batch(keys, times, namespace=spaces, clock="processing_time")
        for number, operator in enumerate(self.operator):
            offsets, topics, rules = (operator.state(descriptor) for descriptor in OPERATOR)
            offsets.add_all([step, number])
            topics.add({"topic": f"t{step}", "n": number})
            rules.put_batch([f"r{n}" for n in range(step + 2)], [float(step)] * (step + 2))
        watermark = WATERMARK - 10 * (3 - step)
        for backend in self.backends:
            backend.advance_watermark(watermark)
        writer.checkpoint(
            {"op": self.backends},
            operator_states={"op": self.operator},
            properties={"offset": step},
            watermark=watermark,
            format=self.format,
        )

    def own(self, backend: Any, numbers: Any) -> pa.RecordBatch:
        keys = keys_of(self.key, numbers)
        groups = arrowstate.key_groups(keys, self.max_parallelism).to_numpy()
        return keys.filter(pa.array((groups >= backend.key_groups.start) & (groups <= backend.key_groups.end)))

    def write(self, backend: Any, state: Any) -> None:
        random, descriptor = self.random, state.descriptor
        keys = self.own(backend, np.unique(random.integers(0, 40, 30)))
        count = keys.num_rows
        values = values_of(descriptor.type, random, count)
        beside = {}
        if descriptor.namespace is not None:
            beside["namespace"] = spaces_of(descriptor.namespace, random, count)
        if descriptor.ttl is not None and descriptor.ttl.clock == "event_time":
            beside["timestamps"] = random.integers(0, 120, count).tolist()
        if isinstance(descriptor, arrowstate.ValueStateDescriptor):
            state.update_batch(keys, values, **beside)
        elif isinstance(descriptor, arrowstate.MapStateDescriptor):
            state.put_batch(keys, values_of(descriptor.key_type, random, count), values, **beside)
        else:
            state.add_batch(keys, values, **beside)
        if descriptor.namespace is None:
            state.clear_batch(self.own(backend, np.unique(random.integers(0, 40, 5))))


class Columns:
    """The columns of a state by what they are for, from its document."""

    def __init__(self, operator: Any, document: Any) -> None:
        self.key = [field.name for field in operator.key]
        entry = [*document.namespace, *([document.user_key] if document.user_key is not None else [])]
        self.entry = [field.name for field in entry]
        self.values = [field.name for field in document.columns]
        self.is_list = document.kind == "list"
        self.time_to_live = document.time_to_live

    @property
    def identity(self) -> list[str]:
        return [*self.key, *self.entry]

    @property
    def all(self) -> list[str]:
        sequence, times = ["_seq"] * self.is_list, ["_updated_at"] * (self.time_to_live is not None)
        return [*self.identity, *sequence, *self.values, *times]


class Plain:
    """The states of a checkpoint as tables of DuckDB that know nothing of arrowstate."""

    def __init__(self, snapshot: Any) -> None:
        self.connection = duckdb.connect()
        self.columns: dict[str, Columns] = {}
        self.schemas: dict[str, pa.Schema] = {}
        self.connection.execute("create schema op")
        (operator,) = snapshot.entry.operators
        for document in operator.states:
            self.columns[document.name] = Columns(operator, document)
            self.take(snapshot, document.name)
        for descriptor in OPERATOR:
            self.fill(f"op.{descriptor.name}", snapshot.sql(f"from op.{descriptor.name}").to_arrow_table())

    def fill(self, name: str, table: pa.Table) -> None:
        self.connection.register("_given", table)
        self.connection.execute(f"create or replace table {name} as from _given")
        self.connection.unregister("_given")

    def take(self, snapshot: Any, name: str) -> None:
        """Make the table of a state what a checkpoint has."""
        table = stored_rows(snapshot, name, self.columns[name])
        self.schemas[name] = table.schema
        self.fill(f"op.{quoted(name)}", in_sql(table))

    def run(self, query: str) -> None:
        self.connection.execute(query)

    def check(self, snapshot: Any, what: str) -> None:
        """Compare all states with those of a checkpoint."""
        for name, columns in self.columns.items():
            table = in_sql(stored_rows(snapshot, name, columns))
            if columns.time_to_live is not None:
                now = snapshot.watermark if columns.time_to_live.clock == "event_time" else NOW_MS
                self.run(f"update op.{quoted(name)} set _updated_at = {now} where _updated_at is null")
            self.connection.register("_given", table)
            have = self.rows("_given", columns)
            self.connection.unregister("_given")
            assert have == self.rows(f"op.{quoted(name)}", columns), f"{name} after {what}"
            if columns.is_list:
                self.take(snapshot, name)
        for descriptor in OPERATOR:
            have = snapshot.sql(f"from op.{descriptor.name}").fetchall()
            expected = self.connection.sql(f"from op.{descriptor.name}").fetchall()
            assert sorted(map(repr, have)) == sorted(map(repr, expected)), f"{descriptor.name} after {what}"

    def rows(self, table: str, columns: Columns) -> Any:
        """The rows as values to be compared: in any order, but the elements of a list in theirs."""
        names = [name for name in columns.all if name != "_seq"]
        order = "order by _seq nulls last, rowid" if columns.is_list and table != "_given" else ""
        order = "order by _seq" if columns.is_list and table == "_given" else order
        rows = self.connection.execute(f"select {', '.join(map(quoted, names))} from {table} {order}").fetchall()
        if not columns.is_list:
            return sorted(map(repr, rows))
        by_key = defaultdict(list)
        for row in rows:
            by_key[repr(row[: len(columns.identity)])].append(repr(row[len(columns.identity) :]))
        return dict(by_key)


def stored_rows(snapshot: Any, name: str, columns: Columns) -> pa.Table:
    """The rows of a state that are seen, with the columns that a script has."""
    return snapshot.to_arrow(("op", name), columns=columns.all)


def in_sql(table: pa.Table) -> pa.Table:
    """The same in types that DuckDB has."""
    form = SqlForm(table.schema)
    return pa.Table.from_batches([form(batch) for batch in table.to_batches()], form.schema)


class Statements:
    """Statements that a seed makes, done to an edit and to the plain tables."""

    def __init__(self, job: Job, plain: Plain, edit: Any) -> None:
        self.random = job.random
        self.key = job.key
        self.plain = plain
        self.edit = edit

    def choose(self, choices: Any) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def one(self) -> str:
        """Do one statement; return what it was."""
        if self.random.random() < 0.15:
            return self.of_operator_state()
        if self.random.random() < 0.1:
            return self.delete_key()
        name = self.choose(sorted(self.plain.columns))
        kinds = [self.delete, self.upsert, self.insert, self.move, self.script, self.copy]
        if self.plain.columns[name].values and name not in SKETCHES:
            kinds += [self.update, self.update, self.script]
        return self.choose(kinds)(name)

    def condition(self, name: str) -> str | None:
        schema = self.plain.schemas[name]
        columns = [field for field in schema if not field.name.startswith("_") and field.name != "sketch"]
        field = self.choose([*columns, None])
        if field is None:
            return self.choose([None, "true", "1 = 0"])
        return str(self.choose(CONDITIONS[family(field.type)])).format(c=quoted(field.name))

    def assigned(self, name: str, table: str = "") -> dict[str, str]:
        schema, columns = self.plain.schemas[name], self.plain.columns[name]
        fields = [schema.field(self.choose(columns.values)) for _ in range(2)]
        return {
            field.name: str(self.choose(EXPRESSIONS[family(field.type)])).format(c=table + quoted(field.name))
            for field in fields
        }

    def update(self, name: str) -> str:
        assigned, where = self.assigned(name), self.condition(name)
        said = ", ".join(f"{quoted(column)} = {value}" for column, value in assigned.items())
        text = f"update op.{quoted(name)} set {said}" + ("" if where is None else f" where {where}")
        count = self.edit.update(("op", name), set=assigned, where=where)
        assert count == self.plain.connection.execute(text).fetchone()[0], text
        return text

    def delete(self, name: str) -> str:
        where = self.condition(name) or "false"
        text = f"delete from op.{quoted(name)} where {where}"
        count = self.edit.delete(("op", name), where=where)
        assert count == self.plain.connection.execute(text).fetchone()[0], text
        return text

    def move(self, name: str) -> str:
        schema, columns = self.plain.schemas[name], self.plain.columns[name]
        fields = [schema.field(column) for column in columns.identity if family(schema.field(column).type) in ELSEWHERE]
        field, where = self.choose(fields), self.condition(name)
        value = ELSEWHERE[family(field.type)].format(c=quoted(field.name))
        if pa.types.is_int16(field.type):
            value = f"{quoted(field.name)} + 100"
        text = f"update op.{quoted(name)} set {quoted(field.name)} = {value}"
        text += "" if where is None else f" where {where}"
        ordered = columns.is_list
        self.edit.update(("op", name), set={field.name: value}, where=where)
        if ordered:
            # What moves is at the end of the list it comes to.
            self.plain.run(f"create temp table moved as from op.{quoted(name)} where {where or 'true'} order by _seq")
            self.plain.run(f"update moved set {quoted(field.name)} = {value}, _seq = null")
            self.plain.run(f"delete from op.{quoted(name)} where {where or 'true'}")
            self.plain.run(f"insert into op.{quoted(name)} by name from moved")
            self.plain.run("drop table moved")
        else:
            self.plain.run(text)
        return text

    def given(self, name: str, numbers: Any) -> pa.Table:
        """Rows of some keys, one of each."""
        schema, columns = self.plain.schemas[name], self.plain.columns[name]
        keys = keys_of(self.key, numbers)
        out = {field.name: column for field, column in zip(keys.schema, keys.columns, strict=True)}
        for column in [*columns.entry, *columns.values]:
            out[column] = values_of(schema.field(column).type, self.random, numbers.size)
        return pa.table(out)

    def write(self, name: str, table: pa.Table, verb: str) -> None:
        columns = self.plain.columns[name]
        getattr(self.edit, verb)(("op", name), table)
        self.plain.connection.register("_rows", in_sql(table))
        if not columns.is_list:
            same = " and ".join(f"o.{quoted(column)} = n.{quoted(column)}" for column in columns.identity)
            self.plain.run(f"delete from op.{quoted(name)} o using _rows n where {same}")
        self.plain.run(f"insert into op.{quoted(name)} by name from _rows")
        self.plain.connection.unregister("_rows")

    def upsert(self, name: str) -> str:
        if name in SKETCHES:
            return self.copy(name)
        self.write(name, self.given(name, np.unique(self.random.integers(0, 60, 10))), "upsert")
        return f"upsert into {name}"

    def insert(self, name: str) -> str:
        if name in SKETCHES:
            return self.copy(name)
        free = np.arange(60, 99)
        columns = self.plain.columns[name]
        first = quoted(columns.key[0])
        taken = {row[0] for row in self.plain.connection.execute(f"select {first} from op.{quoted(name)}").fetchall()}
        keys = keys_of(self.key, free).column(0).to_pylist()
        free = np.array([number for number, key in zip(free, keys, strict=True) if key not in taken], dtype=np.int64)
        self.write(name, self.given(name, free[self.random.random(free.size) < 0.3]), "insert")
        return f"insert into {name}"

    def copy(self, name: str) -> str:
        """Rows of a query take the places of themselves and of those of another key."""
        columns = self.plain.columns[name]
        value = ELSEWHERE[family(self.key.field(0).type)].format(c=quoted(columns.key[0]))
        names = [column for column in columns.all if column not in ("_seq", "_updated_at", columns.key[0])]
        where = self.condition(name) or "true"
        order = " order by _seq" if columns.is_list else ""
        rest = ", ".join(map(quoted, names))
        query = f"select {value} as {quoted(columns.key[0])}, {rest} from op.{quoted(name)} where {where}{order}"
        if not columns.is_list:
            self.edit.upsert(("op", name), query)
            given = self.plain.connection.sql(query).to_arrow_table()
            self.plain.connection.register("_rows", given)
            same = " and ".join(f"o.{quoted(column)} = n.{quoted(column)}" for column in columns.identity)
            self.plain.run(f"delete from op.{quoted(name)} o using _rows n where {same}")
            self.plain.run(f"insert into op.{quoted(name)} by name from _rows")
            self.plain.connection.unregister("_rows")
        else:
            self.edit.insert(("op", name), query)
            self.plain.run(f"insert into op.{quoted(name)} by name {query}")
        return f"upsert {query}"

    def delete_key(self) -> str:
        keys = keys_of(self.key, np.unique(self.random.integers(0, 60, 6)))
        self.edit.delete_key("op", keys)
        self.plain.connection.register("_rows", pa.table(keys))
        for name, columns in self.plain.columns.items():
            same = " and ".join(f"o.{quoted(column)} = n.{quoted(column)}" for column in columns.key)
            self.plain.run(f"delete from op.{quoted(name)} o using _rows n where {same}")
        self.plain.connection.unregister("_rows")
        return "delete_key"

    def script(self, name: str) -> str:
        """One text for both."""
        columns = self.plain.columns[name]
        table, where = f"op.{quoted(name)}", self.condition(name) or "true"
        texts = [f"delete from {table} where {where}"]
        if columns.values and name not in SKETCHES:
            said = ", ".join(f"{quoted(column)} = {value}" for column, value in self.assigned(name).items())
            texts.append(f"update {table} set {said} where {where}")
            match = " and ".join(f"t.{quoted(column)} = s.{quoted(column)}" for column in columns.identity)
            if columns.is_list:
                match += " and t._seq = s._seq"
            said = ", ".join(f"{quoted(column)} = {value}" for column, value in self.assigned(name, "t.").items())
            what = "delete" if self.random.random() < 0.5 else f"update set {said}"
            merge = f"merge into {table} t using (from {table} where {where}) s on {match}"
            texts.append(f"{merge} when matched then {what}")
        value = ELSEWHERE[family(self.key.field(0).type)].format(c=quoted(columns.key[0]))
        names = [column for column in columns.all if column not in ("_seq", "_updated_at", columns.key[0])]
        rest = ", ".join(map(quoted, names))
        ordered = " order by _seq" if columns.is_list else ""
        made = f"select {value} as {quoted(columns.key[0])}, {rest} from {table} where {where}{ordered}"
        if not columns.is_list:
            same = " and ".join(f"o.{quoted(column)} = n.{quoted(column)}" for column in columns.identity)
            made = f"from ({made}) n anti join {table} o on {same}"
        texts.append(f"insert into {table} by name {made}")
        text = ";\n".join(self.choose(texts) for _ in range(int(self.random.integers(1, 3))))
        self.edit.execute(text)
        self.plain.run(text)
        return text

    def of_operator_state(self) -> str:
        text = self.choose(
            [
                "update op.offsets set offsets = offsets + 1 where offsets % 2 = 0",
                "delete from op.offsets where offsets = 1",
                "update op.topics set topic = topic || '?', n = n + 1 where n < 2",
                "delete from op.topics where n = 0",
                "update op.rules set rules = rules * 2 where rules_key > 'r0'",
                "delete from op.rules where rules_key = 'r1'",
            ]
        )
        if self.random.random() < 0.5:
            self.edit.execute(text)
        elif text.startswith("delete"):
            self.edit.delete(text.split()[2], where=text.partition(" where ")[2])
        else:
            said, _, where = text.partition(" set ")[2].partition(" where ")
            assigned = dict(part.split(" = ") for part in said.split(", "))
            self.edit.update(text.split()[1], set=assigned, where=where)
        self.plain.run(text)
        return str(text)
