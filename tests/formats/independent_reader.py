"""A reader of stores written from the text of `formats/spec` alone: json, pyarrow, xxhash and the standard library.

Not a line of this project is used, so that what it reads is what the specification says, and not what the code does.
It is made to be read beside the text and to find fault: whatever MUST be so and is not ends it with a `Damage`. It is
slow, and holds everything in memory. Lance files need their own library, `lance`, beside it.
"""

import base64
import datetime
import decimal
import hashlib
import io
import json
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

Json = dict[str, Any]
Row = dict[str, Any]

HIDDEN_IDS = {"_key_hash": 2147480001, "_entry_hash": 2147480002, "_seq": 2147480003, "_updated_at": 2147480004}


class Damage(Exception):
    """Something is not as the specification says it must be."""


def must(condition: object, what: str) -> None:
    if not condition:
        raise Damage(what)


def checksum(data: bytes | memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def whole(value: Any) -> int:
    """An integer, which large ones may be written as texts of."""
    return int(value)


def optional(value: Any) -> int | None:
    return None if value is None else int(value)


# --- README: inline objects, versions ---------------------------------------------------------------------------


def document(data: bytes, known: tuple[str, ...] = ()) -> Json:
    found: Json = json.loads(data, object_pairs_hook=members)
    must(found.get("format_version") == 1, f"format version {found.get('format_version')}")
    for feature in found.get("features", []):
        must(feature in known, f"the feature {feature} is not known")
    return found


def members(pairs: list[tuple[str, Any]]) -> Json:
    must(len(dict(pairs)) == len(pairs), "a member occurs twice")
    return dict(pairs)


DEFAULTS: dict[str, Json] = {
    "operator": {"operator_states": [], "subtask_files": []},
    "state": {
        "schema_version": 1,
        "earlier_schemas": [],
        "namespace": [],
        "user_key": None,
        "time_to_live": None,
    },
    "schema": {"namespace": [], "user_key": None},
    "run": {"schema_version": 1, "deletion_vector": None, "directory": None},
    "handle": {"path": None, "inline": None},
}
"""What the tables say of fields that may be missing."""


def filled(what: str, part: Json) -> Json:
    return {**DEFAULTS[what], **part}


def own_checksum(data: bytes) -> None:
    match = re.search(rb'"document_xxh3_128"\s*:\s*"([0-9a-f]{32})"', data)
    must(match, "a document without its checksum")
    assert match is not None
    zeros = data[: match.start(1)] + b"0" * 32 + data[match.end(1) :]
    must(checksum(zeros).encode() == match[1], "a document does not match its checksum")


# --- manifests-and-log: types -----------------------------------------------------------------------------------


def type_of(form: str | Json) -> pa.DataType:
    if isinstance(form, dict):
        kind = form["type"]
        if kind == "struct":
            return pa.struct([field_of(item) for item in form["fields"]])
        if kind == "map":
            return pa.map_(field_of(form["key"]), field_of(form["item"]), keys_sorted=form["keys_sorted"])
        if kind == "fixed_size_list":
            return pa.list_(field_of(form["item"]), form["size"])
        return {"list": pa.list_, "large_list": pa.large_list}[kind](field_of(form["item"]))
    match = re.fullmatch(r"([a-z0-9_]+?)(?:\((\d+), (-?\d+)\)|\[([^,\]]+)(?:, tz=(.+))?\])?", form, re.DOTALL)
    must(match, f"type {form!r}")
    assert match is not None
    name, precision, scale, argument, zone = match.groups()
    if precision is not None:
        return getattr(pa, name)(int(precision), int(scale))
    if name == "fixed_size_binary":
        return pa.binary(int(argument))
    if zone is not None:
        return pa.timestamp(argument, zone)
    return getattr(pa, {"bool": "bool_"}.get(name, name))(*([argument] if argument else []))


def field_of(form: Json) -> pa.Field:
    return pa.field(form["name"], type_of(form["type"]), form["nullable"])


# --- key-hash ---------------------------------------------------------------------------------------------------


def key_hash(values: list[tuple[Any, pa.DataType]]) -> int:
    seed = 42
    for value, kind in values:
        seed = chained(value, kind, seed)
    return seed - (1 << 64) if seed >> 63 else seed


def chained(value: Any, kind: pa.DataType, seed: int) -> int:
    types = pa.types
    if value is None:
        return seed
    if types.is_struct(kind):
        for field in kind:
            seed = chained(value[field.name], field.type, seed)
        return seed
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        for item in value:
            seed = chained(item, kind.value_type, seed)
        return seed
    return xxhash.xxh64_intdigest(hashed_bytes(value, kind), seed=seed)


def hashed_bytes(value: Any, kind: pa.DataType) -> bytes:
    types = pa.types
    if types.is_boolean(kind):
        return struct.pack("<i", int(value))
    if types.is_integer(kind):
        wide = kind.bit_width == 64 or kind == pa.uint32()
        return (int(value) % (1 << 64)).to_bytes(8, "little") if wide else struct.pack("<i", value)
    if types.is_floating(kind):
        if kind == pa.float64():
            return bytes.fromhex("7ff8000000000000")[::-1] if math.isnan(value) else struct.pack("<d", value + 0.0)
        return bytes.fromhex("7fc00000")[::-1] if math.isnan(value) else struct.pack("<f", value + 0.0)
    if types.is_decimal(kind):
        unscaled = int(value.scaleb(kind.scale, decimal.Context(prec=100)))
        if kind.precision <= 18:
            return struct.pack("<q", unscaled)
        size = 1
        while not -(1 << 8 * size - 1) <= unscaled < 1 << 8 * size - 1:
            size += 1
        return unscaled.to_bytes(size, "big", signed=True)
    if types.is_date(kind):
        return struct.pack("<i", (value - datetime.date(1970, 1, 1)).days)
    if types.is_timestamp(kind):
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC if kind.tz else None)
        return struct.pack("<q", (value - epoch) // datetime.timedelta(microseconds=1))
    if types.is_duration(kind):
        return struct.pack("<q", value // datetime.timedelta(microseconds=1))
    if types.is_time(kind):
        parts = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        return struct.pack("<q", parts * 1000)
    return value.encode() if isinstance(value, str) else bytes(value)


# --- key-groups -------------------------------------------------------------------------------------------------


def key_group(hash: int, max_parallelism: int) -> int:
    return ((hash >> 32) + (1 << 31)) * max_parallelism >> 32


# --- run-files --------------------------------------------------------------------------------------------------


def roaring(data: bytes) -> set[int]:
    """The numbers of a 32-bit Roaring bitmap in its portable serialization; all parts are little-endian."""
    (cookie,) = struct.unpack_from("<I", data)
    place, found = 4, set()
    ranges = b""
    if cookie & 0xFFFF == 12347:
        count = (cookie >> 16) + 1
        ranges = data[place : place + (count + 7) // 8]
        place += len(ranges)
    else:
        must(cookie == 12346, "no Roaring bitmap")
        (count,) = struct.unpack_from("<I", data, place)
        place += 4
    described = [struct.unpack_from("<HH", data, place + 4 * number) for number in range(count)]
    place += 4 * count
    if not ranges or count >= 4:
        place += 4 * count
    for number, (key, less_one) in enumerate(described):
        first = key << 16
        if ranges and ranges[number // 8] >> number % 8 & 1:
            (runs,) = struct.unpack_from("<H", data, place)
            for start, length in struct.iter_unpack("<HH", data[place + 2 : place + 2 + 4 * runs]):
                found.update(range(first + start, first + start + length + 1))
            place += 2 + 4 * runs
        elif less_one + 1 > 4096:
            bits = int.from_bytes(data[place : place + 8192], "little")
            found.update(first + bit for bit in range(65536) if bits >> bit & 1)
            place += 8192
        else:
            found.update(first + low for (low,) in struct.iter_unpack("<H", data[place : place + 2 * (less_one + 1)]))
            place += 2 * (less_one + 1)
    must(place == len(data), "bytes after the last container")
    return found


def rows_of_file(run: Json, data: bytes, columns: list[Json]) -> list[Row]:
    must(len(data) == run["bytes"] and checksum(data) == run["xxh3_128"], "a run file does not match its checksum")
    frame, end = b"", 0
    for batch in run["batches"]:
        must(batch["offset"] >= end, "batches overlap")
        frame += data[end : batch["offset"]]
        end = batch["offset"] + batch["bytes"]
        must(checksum(data[batch["offset"] : end]) == batch["xxh3_128"], "a batch does not match its checksum")
    must(checksum(frame + data[end:]) == run["frame_xxh3_128"], "a frame does not match its checksum")
    read = {"arrow": arrow_batches, "parquet": parquet_batches, "lance": lance_batches}[run["format"]]
    names = [column["name"] for column in columns]
    rows: list[Row] = []
    for batch, found in zip(run["batches"], read(run, data, columns), strict=True):
        must(found.num_rows == batch["rows"], "another number of rows")
        # A struct has its fields by their names, in any format; columns go by their order.
        lists = [column.to_pylist() for column in found.columns]
        part = [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]
        check_batch(batch, part)
        rows += part
    must(len(rows) == run["rows"], "another number of rows")
    must(all(names.count(name) == 1 for name in names), "two columns of one name")
    return rows


def check_batch(batch: Json, rows: list[Row]) -> None:
    hashes = [row["_key_hash"] for row in rows]
    must([whole(batch["min_hash"]), whole(batch["max_hash"])] == [hashes[0], hashes[-1]], "hashes of a batch")
    if "_seq" in rows[0] and batch.get("max_seq") is not None:
        must(whole(batch["max_seq"]) == max(row["_seq"] for row in rows), "max_seq of a batch")


def arrow_batches(run: Json, data: bytes, columns: list[Json]) -> Iterator[pa.RecordBatch]:
    reader = pa.ipc.open_file(pa.py_buffer(data))
    must(reader.schema == pa.schema([field_of(column) for column in columns]), f"columns {reader.schema}")
    for batch in run["batches"]:
        message = data[batch["offset"] : batch["offset"] + batch["bytes"]]
        must(message[:4] == b"\xff\xff\xff\xff", "a batch is no encapsulated message")
        yield pa.ipc.read_record_batch(pa.py_buffer(message), reader.schema)


def parquet_batches(run: Json, data: bytes, columns: list[Json]) -> Iterator[pa.RecordBatch]:
    file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
    must(file.num_row_groups == len(run["batches"]), "another number of row groups")
    metadata = file.metadata.metadata
    declared = metadata.get(b"arrowstate:schema", metadata[b"ARROW:schema"])
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(declared)))
    must(schema == pa.schema([field_of(column) for column in columns]), f"columns {schema}")
    for field, column in zip(file.schema_arrow, columns, strict=True):
        check_ids(field, column)
    for number, batch in enumerate(run["batches"]):
        group = file.metadata.row_group(number)
        chunks = [group.column(place) for place in range(group.num_columns)]
        begin = min(chunk.data_page_offset for chunk in chunks)
        # Early writers counted the magic bytes to the first row group.
        must(batch["offset"] == begin or (number == 0 and batch["offset"] == 0), "a row group begins elsewhere")
        table = file.read_row_group(number)
        (found,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
        yield found


def check_ids(field: pa.Field, column: Json) -> None:
    """Files of early writers have no ids, and no field has another one than the documents say."""
    id = (field.metadata or {}).get(b"PARQUET:field_id")
    must(id is None or int(id) == column["id"], f"the id of {field}")
    kind = field.type
    if not column.get("fields"):
        return
    if pa.types.is_struct(kind):
        inner = list(kind)
    else:
        inner = [kind.key_field, kind.item_field] if pa.types.is_map(kind) else [kind.value_field]
    for child, item in zip(inner, column["fields"], strict=True):
        check_ids(child, item)


def lance_batches(run: Json, data: bytes, columns: list[Json]) -> Iterator[pa.RecordBatch]:
    import tempfile

    from lance.file import LanceFileReader

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.lance")
        path.write_bytes(data)
        reader = LanceFileReader(str(path))
        start = 0
        for batch in run["batches"]:
            table = reader.read_range(start, batch["rows"], batch_size=batch["rows"]).to_table()
            start += batch["rows"]
            must(len(table.columns) == len(columns), "columns")
            arrays = [column.combine_chunks() for column in table.columns]
            yield pa.RecordBatch.from_arrays(arrays, [str(number) for number in range(len(arrays))])


# --- schema-evolution -------------------------------------------------------------------------------------------


def inner_of(form: Any) -> list[Json]:
    if not isinstance(form, dict):
        return []
    if form["type"] == "struct":
        return list(form["fields"])
    return [form["key"], form["item"]] if form["type"] == "map" else [form["item"]]


def nodes_of(columns: list[Json]) -> list[Json]:
    """Columns as trees of id, name, type, default and the fields inside."""
    return [node(column, column["type"], column["name"]) for column in columns]


def node(known: Json, form: Any, name: str) -> Json:
    inner = inner_of(form)
    items = known.get("fields") or [{"id": ("place", number)} for number in range(len(inner))]
    must(len(items) == len(inner), f"the fields inside {name}")
    children = [node(item, child["type"], child["name"]) for item, child in zip(items, inner, strict=True)]
    return {"id": known["id"], "name": name, "type": form, "default": known.get("default"), "inner": children}


def default_of(target: Json) -> Any:
    if target["default"] is None:
        return None
    table = pa.ipc.open_stream(pa.py_buffer(base64.b64decode(target["default"]))).read_all()
    return table["default"][0].as_py()


def value_now(value: Any, was: Json | None, now: Json) -> Any:
    """A value of a field of an earlier version as one of the current version."""
    if was is None:
        return default_of(now)
    if value is None or not now["inner"]:
        is_date = isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
        if is_date and str(now["type"]).startswith("timestamp"):
            return datetime.datetime.combine(value, datetime.time())
        return value
    kind = now["type"]["type"]
    if kind == "struct":
        before = {item["id"]: item for item in was["inner"]}
        found = {}
        for item in now["inner"]:
            source = before.get(item["id"])
            found[item["name"]] = value_now(None if source is None else value[source["name"]], source, item)
        return found
    if kind == "map":
        (was_key, was_item), (key, item) = was["inner"], now["inner"]
        return [(value_now(k, was_key, key), value_now(v, was_item, item)) for k, v in value]
    return [value_now(element, was["inner"][0], now["inner"][0]) for element in value]


# --- the whole --------------------------------------------------------------------------------------------------


class Reader:
    """One checkpoint of a store in a local folder."""

    def __init__(self, folder: Path, checkpoint_id: int | None = None) -> None:
        self.folder = folder
        identity = self.read("arrowstate.json")
        own_checksum(identity)
        must(document(identity)["key_hash"] == {"name": "spark-xxhash64", "seed": 42}, "another key hash")
        self.entry = self.find(checkpoint_id)

    def read(self, path: str) -> bytes:
        parts = path.split("/")
        must(all(part and part not in (".", "..") and "\\" not in part for part in parts), f"path {path!r}")
        return Path(self.folder, *parts).read_bytes()

    def bytes_of(self, handle: Json) -> bytes:
        handle = filled("handle", handle)
        must((handle["path"] is None) != (handle["inline"] is None), "exactly one of path and inline")
        data = self.read(handle["path"]) if handle["path"] is not None else base64.b64decode(handle["inline"])
        must(len(data) == handle["bytes"] and checksum(data) == handle["xxh3_128"], "a checksum")
        return data

    def find(self, checkpoint_id: int | None) -> Json:
        """The newest checkpoint, or the newest entry of this id, with the chain of entries looked at."""
        numbers = sorted(int(path.stem) for path in (self.folder / "log").glob("*.json"))
        boundary = max([0, *(int(path.name.split("-")[1]) for path in (self.folder / "gc").glob("*-*.json"))])
        held = []
        followed = boundary
        for path in (*(self.folder / "tags").glob("*.json"), *(self.folder / "leases").glob("*.json")):
            own_checksum(path.read_bytes())
            pin = document(path.read_bytes(), ("lease.later",) if path.parent.name == "leases" else ())
            held.append(pin["entry"])
            if pin.get("features"):
                followed = min(followed, pin["entry"]["number"])
        must(not boundary or boundary in numbers, "the entry at the boundary")
        found, parent = None, None
        entries: dict[int, tuple[str, Json]] = {}
        for number in reversed(numbers):
            data = self.read(f"log/{number:020}.json")
            own_checksum(data)
            entry = document(data)
            must(entry["number"] == number, "the number of an entry")
            own = {"number": number, "xxh3_128": checksum(data)}
            if number < boundary:
                # Collected, unless something holds it.
                if number >= followed and own == parent:
                    parent = entry["parent"]
                elif own not in held and entry["kind"] != "savepoint":
                    continue
            else:
                must(parent is None or parent == own, "the chain of entries")
                parent = entry["parent"]
            entries[number] = (checksum(data), entry)
            fits = checkpoint_id is None or entry["checkpoint_id"] == checkpoint_id
            if found is None and entry["kind"] != "fence" and fits:
                found = entry
        must(found, f"no checkpoint {checkpoint_id}")
        for _, entry in entries.values():
            if entry["kind"] == "fence" and entry["content"] is not None:
                named = entry["content"]
                must(not entry["operators"], "a fence with operators")
                must(named["number"] not in entries or entries[named["number"]][0] == named["xxh3_128"], "a fence")
        assert found is not None
        return found

    def states(self) -> dict[str, list[Row]]:
        """Every live row of every state by `<uid>.<state>`: the columns of key, namespace, user key and value."""
        found: dict[str, list[Row]] = {}
        for operator in (filled("operator", item) for item in self.entry["operators"]):
            operator["subtasks"] = self.listed(operator, operator, "subtasks", "subtask_files")
            groups = [tuple(subtask["key_groups"]) for subtask in operator["subtasks"]]
            covered = [group for first, last in groups for group in range(first, last + 1)]
            must(not groups or covered == list(range(operator["max_parallelism"])), "key groups are not covered once")
            manifests = [self.manifest(operator, subtask) for subtask in operator["subtasks"]]
            for state in (filled("state", item) for item in operator["states"]):
                rows: list[Row] = []
                owned: list[tuple[str, int, int]] = []
                for subtask, manifest in zip(operator["subtasks"], manifests, strict=True):
                    live = 0
                    for run in manifest.get(state["name"], []):
                        own = self.live_rows(operator, subtask, state, run)
                        owned.append((run["id"], run["first_row"], run["last_row"]))
                        live += len(own)
                        rows += own
                    must(live == subtask["live_rows"].get(state["name"], 0), "live rows of a subtask")
                check_unique(operator, state, rows, owned)
                hidden = ("_key_hash", "_entry_hash", "_updated_at", "_seq")
                found[f"{operator['uid']}.{state['name']}"] = [
                    {name: value for name, value in row.items() if name not in hidden}
                    for row in sorted(rows, key=lambda row: row.get("_seq", 0))
                ]
            for state in operator["operator_states"]:
                found[f"{operator['uid']}.{state['name']}"] = [
                    row
                    for part in self.listed(operator, state, "parts", "part_files")
                    for row in self.part(state, part)
                ]
        return found

    def listed(self, operator: Json, holder: Json, name: str, files: str) -> list[Json]:
        """The subtasks of an operator, or the parts of a state, in the entry or in lists."""
        must(not holder[name] or not holder.get(files), f"{name} in the entry and in lists")
        found = list(holder[name])
        for file in holder.get(files, []):
            data = self.read(file["path"])
            must(len(data) == file["bytes"] and checksum(data) == file["xxh3_128"], "the checksum of a list")
            listed = document(data)
            must((listed["operator"], listed["first"]) == (operator["uid"], file["first"]), "another list")
            must(file["first"] == len(found) and len(listed[name]) == file["count"], "the numbers of a list")
            found += listed[name]
        return found

    def manifest(self, operator: Json, subtask: Json) -> dict[str, list[Json]]:
        handle = filled("handle", subtask["manifest"])
        if isinstance(handle["inline"], list):
            must(handle["path"] is None and handle["xxh3_128"] is None, "an inline manifest with a path or a checksum")
            return {state["name"]: [filled("run", run) for run in state["runs"]] for state in handle["inline"]}
        manifest = document(self.bytes_of(subtask["manifest"]))
        must(manifest["operator"] == operator["uid"], "the operator of a manifest")
        must(manifest["key_groups"] == subtask["key_groups"], "the key groups of a manifest")
        return {state["name"]: [filled("run", run) for run in state["runs"]] for state in manifest["states"]}

    def part(self, state: Json, part: Json) -> list[Row]:
        if not part["rows"]:
            must(filled("handle", part) == {**part, "path": None, "inline": None}, "a part without rows has a file")
            return []
        table = pa.ipc.open_file(pa.py_buffer(self.bytes_of(part))).read_all()
        names = [f"{state['name']}_key", state["name"]] if state["kind"] == "broadcast" else [state["name"]]
        must(table.column_names == names and table.num_rows == part["rows"], "the rows of a part")
        return table.to_pylist()

    def live_rows(self, operator: Json, subtask: Json, state: Json, run: Json) -> list[Row]:
        version = run["schema_version"]
        current = {**state, "key": operator["key"]}
        earlier = {schema["version"]: filled("schema", schema) for schema in state["earlier_schemas"]}
        must(version == state["schema_version"] or version in earlier, f"a run of version {version}")
        schema = current if version == state["schema_version"] else earlier[version]
        declared = declared_columns(schema)
        columns = [*sort_columns(state), *declared]
        if state["time_to_live"] is not None:
            columns.append(hidden_column("_updated_at"))
        rows = rows_of_file(run, self.bytes_of(run), columns)
        self.check_rows(schema, rows, time_name(schema, state), run)
        dead = set()
        if run["deletion_vector"] is not None:
            vector = run["deletion_vector"]
            dead = roaring(self.bytes_of(vector))
            dead = {row for row in dead if run["first_row"] <= row < run["last_row"]}
            must(len(dead) == vector["dead_rows"], "dead rows")
        live = [row for number, row in enumerate(rows) if run["first_row"] <= number < run["last_row"]]
        low, high = subtask["key_groups"]
        must(
            all(low <= key_group(row["_key_hash"], operator["max_parallelism"]) <= high for row in live),
            "rows of another subtask",
        )
        live = [row for number, row in enumerate(live, run["first_row"]) if number not in dead]
        must(len(live) == run["live_rows"], "live rows of a run")
        if schema is current:
            return live
        was = {item["id"]: item for item in nodes_of(declared)}
        now = nodes_of(declared_columns(current))
        converted = []
        for row in live:
            kept = {name: value for name, value in row.items() if name.startswith("_")}
            for item in now:
                source = was.get(item["id"])
                kept[item["name"]] = value_now(None if source is None else row[source["name"]], source, item)
            converted.append(kept)
        return converted

    def check_rows(self, schema: Json, rows: list[Row], time: str | None, run: Json) -> None:
        """The order of rows, their hashes, and what documents say of batches and columns."""
        key = [(item["name"], type_of(item["type"])) for item in schema["key"]]
        entry = [(item["name"], type_of(item["type"])) for item in entry_columns(schema)]
        second = next((name for name in ("_entry_hash", "_seq") if rows and name in rows[0]), None)
        for row in rows:
            must(row["_key_hash"] == key_hash([(row[name], kind) for name, kind in key]), "a key hash")
            if second == "_entry_hash":
                must(row[second] == key_hash([(row[name], kind) for name, kind in entry]), "an entry hash")
        order = [(row["_key_hash"], row[second] if second else 0) for row in rows]
        must(order == sorted(order), "the order of rows")
        start = 0
        for batch in run["batches"]:
            part = rows[start : start + batch["rows"]]
            start += batch["rows"]
            times = (optional(batch.get("min_time")), optional(batch.get("max_time")))
            if times != (None, None):
                assert time is not None
                found = [row[time] for row in part]
                must(times == (min(found), max(found)), "times of a batch")
        for item in run["statistics"]:
            values = [row[item["column"]] for row in rows]
            must(item["null_count"] == sum(value is None for value in values), f"nulls of {item['column']}")
            floats = [value for value in values if isinstance(value, float)]
            if item.get("has_nan") is not None and floats:
                must(item["has_nan"] == any(map(math.isnan, floats)), f"NaN of {item['column']}")
            if item["min"] is not None and all(isinstance(value, (str, type(None))) for value in values):
                texts = [value for value in values if value is not None]
                must((item["min"], item["max"]) == (min(texts), max(texts)), f"bounds of {item['column']}")


def hidden_column(name: str) -> Json:
    return {"id": HIDDEN_IDS[name], "name": name, "type": "int64", "nullable": False}


def sort_columns(state: Json) -> list[Json]:
    columns = [hidden_column("_key_hash")]
    if state["kind"] == "list":
        columns.append(hidden_column("_seq"))
    elif state["namespace"] or state["user_key"] is not None:
        columns.append(hidden_column("_entry_hash"))
    return columns


def entry_columns(schema: Json) -> list[Json]:
    user_key = [] if schema["user_key"] is None else [schema["user_key"]]
    return [*schema["namespace"], *user_key]


def declared_columns(schema: Json) -> list[Json]:
    return [*schema["key"], *entry_columns(schema), *schema["columns"]]


def time_name(schema: Json, state: Json) -> str | None:
    if state["kind"] == "timer":
        return str(schema["user_key"]["name"])
    ends = ("window_end", f"{state['name']}_window_end")
    return next((item["name"] for item in schema["namespace"] if item["name"] in ends), None)


def check_unique(operator: Json, state: Json, rows: list[Row], owned: list[tuple[str, int, int]]) -> None:
    names = [item["name"] for item in [*operator["key"], *entry_columns(state)]]
    names += ["_seq"] if state["kind"] == "list" else []
    seen = {repr([row[name] for name in names]) for row in rows}
    must(len(seen) == len(rows), f"a key of {state['name']} is live twice")
    for before, after in zip(sorted(owned), sorted(owned)[1:], strict=False):
        must(before[0] != after[0] or before[2] <= after[1], "owned ranges overlap")


def digest(states: dict[str, list[Row]]) -> str:
    """One text for all rows of all states, whatever their order."""
    rows = sorted(f"{name} {plain(row)}" for name, found in states.items() for row in found)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def plain(value: Any) -> str:
    """A value as a text that is the same for equal values."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {plain(item)}" for name, item in sorted(value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(plain(item) for item in value) + "]"
    if isinstance(value, decimal.Decimal):
        return f"decimal {value.normalize()}"
    return repr(value)


def read_store(folder: Path, checkpoint_id: int | None = None) -> dict[str, list[Row]]:
    """Return every row of every state of a checkpoint, the newest by default."""
    return Reader(folder, checkpoint_id).states()
