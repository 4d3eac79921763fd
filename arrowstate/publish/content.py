"""What a checkpoint has of a table: its columns, and the files with its rows, which are run files or their twins."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from msgspec.structs import replace

from arrowstate.errors import CorruptDataError, MissingFileError, NameTakenError
from arrowstate.files.operator import read_part
from arrowstate.files.output_tables import is_output
from arrowstate.files.reading import subtask_runs
from arrowstate.files.subtasks import subtasks_of, whole_state
from arrowstate.publish.deletes import DeadRows
from arrowstate.publish.manifests import data_file
from arrowstate.publish.types import (
    ICEBERG,
    KnownTypes,
    TableForm,
    has_all_ids,
    is_read_as_it_is,
    plain_array,
    table_fields,
    twin_schema,
)
from arrowstate.query.files import QueriedRun, live_bits_in_file
from arrowstate.schema.fields import Field, documents_of, fresh_field
from arrowstate.schema.versions import RunSchemas
from arrowstate.storage.base import Storage
from arrowstate.storage.parallel import in_parallel
from arrowstate_formats.arrow_types import type_from_json
from arrowstate_formats.cached_properties import cached_property
from arrowstate_formats.documents import LogEntryDocument, OperatorDocument, OperatorStateDocument, RunDocument
from arrowstate_formats.integers import bit_counts
from arrowstate_formats.run_writing import write_run
from arrowstate_formats.schema_documents import FieldDocument, StateDocument
from arrowstate_formats.state_columns import FIELD_ID_KEY, HIDDEN_FIELD_IDS, fields_of_run, inner_fields
from arrowstate_formats.statistics import paths_with_nan

_FOOTER_BYTES = 64 << 10
"""Nearly every footer is smaller, and is read by one request."""


def place_of(storage: Storage, path: str = "") -> str:
    """Return the URL by which engines find a file of a storage, or the folder itself."""
    url = storage.url.removesuffix("/")
    return (f"file://{url}" if url.startswith("/") else url) + (f"/{path}" if path else "")


def written(target: Storage, path: str, data: bytes) -> int:
    """Write a file whose name says what rows or entries it holds, and return the size of the one that is there."""
    try:
        with target.write_file(path) as sink:
            sink.write(data)
        return len(data)
    except NameTakenError:
        return target.open_buffer(path).size


@dataclass(frozen=True)
class TableFile:
    """A file with rows of a table: a run file of the store, or a Parquet file that takes its place."""

    path: str
    "The URL."
    rows: int
    live_rows: int
    pieces: str = ""
    "What its dead rows are made from, in short; empty where no row is dead."
    runs: tuple[QueriedRun, ...] = ()

    def dead_rows(self) -> DeadRows:
        """Return the rows that no subtask has, or that are dead in its deletion vector."""
        live = live_bits_in_file(self.runs, self.rows)
        return DeadRows(live, self.rows, self.rows - int(bit_counts(live).sum()))

    def write(self) -> int:
        """Write the file where it is a twin, and return its size."""
        raise NotImplementedError  # Abstract: a run file is there, a twin is written.

    def described(self, version: int) -> dict[str, Any]:
        """Return what a manifest of Iceberg says of the file, which is written first where it is a twin."""
        raise NotImplementedError  # Abstract: of a run file more is known than of a twin.


@dataclass(frozen=True)
class RunTableFile(TableFile):
    """A run file of the store, as it is."""

    fields: Sequence[Field] = ()

    def write(self) -> int:
        return self.runs[0].document.bytes

    def described(self, version: int) -> dict[str, Any]:
        document = self.runs[0].document
        return data_file(
            self.path,
            size=self.write(),
            version=version,
            run=document,
            rows=self.rows,
            fields=self.fields,
            is_as_it_is=True,
        )


@dataclass(frozen=True)
class Twin(TableFile):
    """A run in types and columns that every reader knows, its rows under the numbers that they have in the run file."""

    target: Storage = field(kw_only=True)
    name: str = field(kw_only=True)
    "Its path in the target."
    fields: Sequence[Field] = field(kw_only=True)
    is_current: bool = field(kw_only=True)
    "Whether its columns are those of the current version of the state rather than those of the run."
    types: KnownTypes = ICEBERG
    is_alive_only: bool = False
    "Whether its dead rows are left out; then its rows have other numbers."

    def described(self, version: int) -> dict[str, Any]:
        size = self.write()
        document = self.runs[0].document
        # Of a converted run nothing is known but the hashes of its rows.
        known = replace(document, statistics=[]) if self.is_current else document
        return data_file(
            self.path, size=size, version=version, run=known, rows=self.rows, fields=self.fields, is_as_it_is=False
        )

    def write(self) -> int:
        try:
            with self.target.write_file(self.name) as sink:
                return write_run(self._batches(), "parquet", sink, fields=documents_of(self.fields)).bytes
        except NameTakenError:
            return self.target.open_buffer(self.name).size

    def _batches(self) -> list[pa.RecordBatch]:
        run = self.runs[0]
        schema = pa.schema([item.remove_metadata() for item in twin_schema(self.fields, self.types)])
        live = None
        if self.is_alive_only:
            bits = live_bits_in_file(self.runs, run.document.rows)
            live = np.unpackbits(bits, count=run.document.rows, bitorder="little").view(np.bool_)
        out, start = [], 0
        for number in range(len(run.document.batches)):
            batch = run.file.read([number])[0]
            rows, start = slice(start, start + batch.num_rows), start + batch.num_rows
            if self.is_current and run.conversion is not None:
                batch = run.conversion(batch)
            columns = [plain_array(batch.column(item.name), item.type, repr(item.name)) for item in schema]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            if live is not None:
                batch = batch.filter(pa.array(live[rows]))
            out += [batch] if batch.num_rows else []
        return out or [pa.RecordBatch.from_pylist([], schema=schema)]


@dataclass(frozen=True)
class OutputTwin(TableFile):
    """A part of an output table as a Parquet file."""

    storage: Storage = field(kw_only=True)
    target: Storage = field(kw_only=True)
    name: str = field(kw_only=True)
    fields: Sequence[Field] = field(kw_only=True)
    document: OperatorStateDocument = field(kw_only=True)
    number: int = field(kw_only=True)
    types: KnownTypes = ICEBERG

    def write(self) -> int:
        import pyarrow.parquet as pq

        schema = twin_schema(self.fields, self.types)
        structs = read_part(self.storage, self.document, self.number).column(0)
        columns = [
            plain_array(column, item.type, repr(item.name))
            for column, item in zip(structs.flatten(), schema, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        sink = io.BytesIO()
        has_nan = bool(paths_with_nan([batch]))
        pq.write_table(
            pa.Table.from_batches([batch]), sink, compression="zstd", store_schema=False, write_statistics=not has_nan
        )
        return written(self.target, self.name, sink.getvalue())

    def described(self, version: int) -> dict[str, Any]:
        return data_file(
            self.path,
            size=self.write(),
            version=version,
            run=None,
            rows=self.rows,
            fields=self.fields,
            is_as_it_is=False,
        )


@dataclass(frozen=True)
class TableContent:
    """A table as a checkpoint has it."""

    fields: Sequence[Field]
    files: Mapping[str, TableFile]
    "By URL; those without a live row are left out."
    is_sorted: bool
    "Whether its rows are in the order of `_key_hash`."


class _Names:
    """The names of twins: those of the snapshot before, and new ones."""

    def __init__(self, target: Storage, known: Iterable[str], sequence: int) -> None:
        start = f"{place_of(target)}/"
        self.known = set(known)
        own = [path.removeprefix(start) for path in self.known if path.startswith(start)]
        self._by_stem = {path.rpartition("-")[0]: path for path in own}
        self._sequence = sequence

    def of(self, stem: str) -> str:
        """Return the path in the target of the twin whose name begins so."""
        return self._by_stem.get(stem, f"{stem}-{self._sequence}.parquet")


class CheckpointTables:
    """The tables of a checkpoint: each keyed state, and each output table."""

    def __init__(self, storage: Storage, target: Storage, entry: LogEntryDocument) -> None:
        self.entry = entry
        self._storage = storage
        self._target = target
        self._operators = {operator.uid: operator for operator in entry.operators}
        self._runs: dict[str, dict[str, list[RunDocument]]] = {}

    @cached_property
    def names(self) -> list[tuple[str, str]]:
        """Return (operator uid, state name) of each, in the order of the log entry."""
        found = []
        for operator in self.entry.operators:
            found += [(operator.uid, state.name) for state in operator.states]
            found += [(operator.uid, state.name) for state in operator.operator_states if is_output(state)]
        return found

    def columns(self, uid: str, name: str) -> tuple[list[Field], bool]:
        """Return the columns of a table, and whether its rows have hashes."""
        operator = self._operators[uid]
        state = next((state for state in operator.states if state.name == name), None)
        if state is not None:
            return _fields_of(operator, state), True
        output = next(state for state in operator.operator_states if state.name == name)
        return _output_fields(output), False

    def content(self, uid: str, name: str, form: TableForm, known: Iterable[str], sequence: int) -> TableContent:
        """Return what the checkpoint has of a table.

        `known` are the files of the snapshot before, which stay where they are. The names of new twins have the
        `sequence` of the snapshot, so that the name of one that was deleted is never used again.
        """
        operator = self._operators[uid]
        fields, is_sorted = self.columns(uid, name)
        state = next((state for state in operator.states if state.name == name), None)
        if state is None:
            output = next(state for state in operator.operator_states if state.name == name)
            files = self._parts(operator, output, fields, form, _Names(self._target, known, sequence))
        else:
            files = self._files(operator, state, fields, form, _Names(self._target, known, sequence))
        return TableContent(fields, {file.path: file for file in files}, is_sorted)

    def _parts(
        self,
        operator: OperatorDocument,
        output: OperatorStateDocument,
        fields: Sequence[Field],
        form: TableForm,
        names: _Names,
    ) -> list[TableFile]:
        document = whole_state(self._storage, operator.uid, output)
        digest = form.digest_of(fields)
        files: list[TableFile] = []
        for number, part in enumerate(document.parts):
            # Equal parts are one file in the store, and as many in the table as there are.
            same = sum(other.xxh3_128 == part.xxh3_128 for other in document.parts[:number])
            stem = f"{operator.uid}/{output.name}/data/{part.xxh3_128}-{digest}" + (f"-{same}" if same else "")
            if part.rows:
                name = names.of(stem)
                files.append(
                    OutputTwin(
                        place_of(self._target, name),
                        part.rows,
                        part.rows,
                        storage=self._storage,
                        target=self._target,
                        name=name,
                        fields=fields,
                        document=document,
                        number=number,
                        types=form.types,
                    )
                )
        return files

    def _runs_of(self, operator: OperatorDocument) -> dict[str, list[RunDocument]]:
        if operator.uid not in self._runs:
            found: dict[str, list[RunDocument]] = {}
            subtasks = subtasks_of(self._storage, operator)
            for states in in_parallel(
                self._storage,
                lambda subtask: subtask_runs(self._storage, operator, subtask),
                subtasks,
                name="manifests",
                small=True,
            ):
                for name, runs in states.items():
                    found.setdefault(name, []).extend(runs)
            self._runs[operator.uid] = found
        return self._runs[operator.uid]

    def _files(
        self, operator: OperatorDocument, state: StateDocument, fields: Sequence[Field], form: TableForm, names: _Names
    ) -> list[TableFile]:
        schemas = RunSchemas(operator.key, state)
        by_id: dict[str, list[RunDocument]] = {}
        for run in self._runs_of(operator).get(state.name, []):
            by_id.setdefault(run.id, []).append(run)
        pieces = [sorted(runs, key=lambda run: run.first_row) for runs in by_id.values()]
        held = [runs for runs in pieces if sum(run.live_rows for run in runs)]
        return in_parallel(
            self._storage,
            lambda runs: self._file(operator, state, schemas, fields, form, names, runs),
            held,
            name="footers",
            small=True,
        )

    def _file(
        self,
        operator: OperatorDocument,
        state: StateDocument,
        schemas: RunSchemas,
        fields: Sequence[Field],
        form: TableForm,
        names: _Names,
        pieces: Sequence[RunDocument],
    ) -> TableFile:
        run = pieces[0]
        own = _columns_of(operator, state, run.schema_version)
        stored = table_fields(own, _hidden(schemas))
        # Without ids the columns of two versions cannot be told apart.
        is_current = run.schema_version != state.schema_version and not (
            has_all_ids(own) and form.can_read(stored, fields)
        )
        rows, live_rows = run.rows, sum(piece.live_rows for piece in pieces)
        dead = _pieces_text(pieces)
        runs = tuple(QueriedRun(self._storage, piece, schemas) for piece in pieces)
        if form.has_run_files and run.format == "parquet" and run.path is not None and not is_current:
            path = place_of(self._storage, run.path)
            if all(is_read_as_it_is(item.type) for item in stored) and (
                path in names.known or _file_ids(self._storage, run) == _ids_of(stored)
            ):
                return RunTableFile(path, rows, live_rows, dead, runs, fields=stored)
        columns = fields if is_current else stored
        stem = f"{operator.uid}/{state.name}/data/{run.id}-{form.digest_of(columns)}"
        is_alive_only = bool(dead) and not form.has_dead_rows
        name = names.of(f"{stem}-{dead}" if is_alive_only else stem)
        return Twin(
            place_of(self._target, name),
            live_rows if is_alive_only else rows,
            live_rows,
            "" if is_alive_only else dead,
            runs,
            target=self._target,
            name=name,
            fields=columns,
            is_current=is_current,
            types=form.types,
            is_alive_only=is_alive_only,
        )


def _hidden(schemas: RunSchemas) -> list[str]:
    return [name for name in schemas.schema.names if name in HIDDEN_FIELD_IDS]


def _fields_of(operator: OperatorDocument, state: StateDocument) -> list[Field]:
    return table_fields(fields_of_run(operator.key, state), _hidden(RunSchemas(operator.key, state)))


def _columns_of(operator: OperatorDocument, state: StateDocument, version: int) -> list[FieldDocument]:
    if version == state.schema_version:
        return fields_of_run(operator.key, state)
    schema = next((schema for schema in state.earlier_schemas if schema.version == version), None)
    if schema is None:
        raise CorruptDataError(f"state {state.name!r}", f"a run of schema version {version}, which is not there")
    user_key = [] if schema.user_key is None else [schema.user_key]
    return [*schema.key, *schema.namespace, *user_key, *schema.columns]


def _output_fields(output: OperatorStateDocument) -> list[Field]:
    """Return the columns of an output table, which have no ids in the store: each is numbered by its place."""
    ids = itertools.count(1)
    return [fresh_field(item, ids) for item in type_from_json(output.value_type)]


def _pieces_text(pieces: Sequence[RunDocument]) -> str:
    vectors = [piece.deletion_vector for piece in pieces]
    owned = sum(piece.last_row - piece.first_row for piece in pieces)
    if owned == pieces[0].rows and not any(vectors):
        return ""
    parts = [
        f"{piece.first_row}-{piece.last_row}-{'' if vector is None else vector.xxh3_128}"
        for piece, vector in zip(pieces, vectors, strict=True)
    ]
    return xxhash.xxh3_64_hexdigest(",".join(parts).encode())


def _file_ids(storage: Storage, run: RunDocument) -> list[int] | None:
    """Return the ids that a Parquet file has, from its footer alone; None where a field has none."""
    import pyarrow.parquet as pq

    assert run.path is not None
    try:
        tail = storage.read(run.path, max(0, run.bytes - _FOOTER_BYTES))
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length > len(tail):
            tail = storage.read(run.path, max(0, run.bytes - length))
    except MissingFileError:
        raise CorruptDataError(run.path, "the file is missing") from None
    try:
        schema = pq.read_metadata(io.BytesIO(b"PAR1" + tail[-length:])).schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        raise CorruptDataError(run.path, f"the footer cannot be read: {error}") from error
    found: list[int] = []
    for item in schema:
        if not _add_ids(item, found):
            return None
    return found


def _add_ids(item: pa.Field, found: list[int]) -> bool:
    number = (item.metadata or {}).get(FIELD_ID_KEY)
    if number is None:
        return False
    found.append(int(number))
    return all(_add_ids(child, found) for _, child in inner_fields(item.type))


def _ids_of(fields: Iterable[Field]) -> list[int]:
    return [number for item in fields for number in (item.id, *_ids_of(item.children))]
