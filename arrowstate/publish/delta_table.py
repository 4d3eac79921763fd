"""One table of a publication in Delta: a version for each checkpoint, its files beside its log.

The rows are copies, in twins of all runs: readers of Delta take no file outside of the folder of a table, and a vacuum
by any engine deletes what stands inside and is not listed. So the folder is whole by itself and may be moved.

The next version follows from the one before and from a checkpoint of the store, and from nothing else. It is created
only if it is absent, so of two publishers that differ one wins, and the other goes on from there. Every tenth version
has a checkpoint of Delta, and the versions before such a one go together. Specification: formats/spec/publication.md.
"""

from __future__ import annotations

import base64
import io
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import xxhash
from msgspec import Struct

from arrowstate.errors import (
    CheckpointNotFoundError,
    CollectedError,
    CorruptDataError,
    InvalidInputError,
    MissingFileError,
    StorageError,
)
from arrowstate.log.entries import CommittedEntry
from arrowstate.publish.content import TableContent, TableFile, place_of, written
from arrowstate.publish.deletes import write_delta_vector
from arrowstate.publish.held import (
    ATTEMPTS,
    CHECKPOINT,
    ENTRY,
    NUMBER,
    OPERATOR,
    STATE,
    STORE,
    Brought,
    Checkpoints,
    Holding,
    PublishedCheckpoint,
    not_own,
)
from arrowstate.publish.table import Files
from arrowstate.publish.types import TableForm, delta_schema
from arrowstate.storage.base import Outcome
from arrowstate.storage.parallel import delete_all, in_parallel
from arrowstate_formats.state_columns import HASH_COLUMN

Json = dict[str, Any]

LOG_FOLDER = "_delta_log"
_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
_VERSIONS_BETWEEN = 10
"""From one checkpoint of Delta to the next."""

_CHECKSUM = "arrowstate.checksum"
_NO_CHECKSUM = "0" * 32
_PIECES = "arrowstate.pieces"
"""The tag of a file that says what its dead rows were made from."""
_FILES = "arrowstate.files"
_VECTORS = "deletionVectors"
_ENABLED = "delta.enableDeletionVectors"

_TEXTS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_ACTIONS = pa.schema(
    {
        "protocol": pa.struct(
            [
                ("minReaderVersion", pa.int32()),
                ("minWriterVersion", pa.int32()),
                ("readerFeatures", pa.list_(pa.string())),
                ("writerFeatures", pa.list_(pa.string())),
            ]
        ),
        "metaData": pa.struct(
            [
                ("id", pa.string()),
                ("name", pa.string()),
                ("description", pa.string()),
                ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                ("schemaString", pa.string()),
                ("partitionColumns", pa.list_(pa.string())),
                ("configuration", _TEXTS),
                ("createdTime", pa.int64()),
            ]
        ),
        "add": pa.struct(
            [
                ("path", pa.string()),
                ("partitionValues", _TEXTS),
                ("size", pa.int64()),
                ("modificationTime", pa.int64()),
                ("dataChange", pa.bool_()),
                ("stats", pa.string()),
                ("tags", _TEXTS),
                ("deletionVector", _VECTOR),
            ]
        ),
        "remove": pa.struct(
            [
                ("path", pa.string()),
                ("deletionTimestamp", pa.int64()),
                ("dataChange", pa.bool_()),
                ("extendedFileMetadata", pa.bool_()),
                ("partitionValues", _TEXTS),
                ("size", pa.int64()),
                ("deletionVector", _VECTOR),
            ]
        ),
    }
)
"""The columns of a checkpoint of Delta."""


def features_of(schema: Mapping[str, Any]) -> list[str]:
    """Return the features of Delta that a reader of a schema must know."""
    return ["timestampNtz"] if '"timestamp_ntz"' in json.dumps(schema) else []


def protocol_of(features: Sequence[str]) -> Json:
    """Return what a reader must know."""
    if not features:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    both = {"readerFeatures": [*features], "writerFeatures": [*features]}
    return {"minReaderVersion": 3, "minWriterVersion": 7, **both}


def uuid_of(text: str) -> str:
    """Return a UUID that is the same for the same text."""
    return str(uuid.UUID(xxhash.xxh3_128_hexdigest(text.encode())))


class DeltaVersion(Struct, frozen=True):
    """A version of a table: its files, and what was removed since the last checkpoint of Delta."""

    number: int
    said: Mapping[str, str]
    "What the commit says of the checkpoint of the store."
    protocol: Json
    metadata: Json
    files: Mapping[str, Json]
    "The action that added each, by its path in the folder of the table."
    removed: tuple[Json, ...]
    data: bytes
    "Of the commit."
    shown: dict[int, Mapping[str, str]]
    "What commits say, by their version, as far as they were read."

    @property
    def log_number(self) -> int:
        return int(self.said[NUMBER])

    def after(self, actions: Sequence[Json], data: bytes) -> DeltaVersion:
        """Return the version that follows by a commit."""
        by_kind: dict[str, list[Json]] = {}
        for action in actions:
            for kind, value in action.items():
                by_kind.setdefault(kind, []).append(value)
        files = dict(self.files)
        removed = tuple(by_kind.get("remove", ()))
        for item in removed:
            files.pop(item["path"], None)
        files |= {item["path"]: item for item in by_kind.get("add", ())}
        number, said = self.number + 1, by_kind["commitInfo"][0]["operationParameters"]
        return DeltaVersion(
            number,
            said,
            by_kind.get("protocol", [self.protocol])[-1],
            by_kind.get("metaData", [self.metadata])[-1],
            files,
            removed if self.number > 0 and self.number % _VERSIONS_BETWEEN == 0 else (*self.removed, *removed),
            data,
            {**self.shown, number: said},
        )

    def checkpoint(self) -> bytes:
        """Return the checkpoint of Delta that stands for the version."""
        import pyarrow.parquet as pq

        rows: list[Json] = [{"protocol": self.protocol}, {"metaData": self.metadata}]
        rows += [{"add": {**item, "dataChange": False}} for _, item in sorted(self.files.items())]
        rows += [{"remove": {**item, "dataChange": False}} for item in self.removed]
        columns = [
            pa.array([_stored(row.get(name), kind) for row in rows], kind)
            for name, kind in zip(_ACTIONS.names, _ACTIONS.types, strict=True)
        ]
        sink = io.BytesIO()
        pq.write_table(pa.table(columns, schema=_ACTIONS), sink, compression="zstd", store_schema=False)
        return sink.getvalue()


def _stored(value: Any, kind: pa.DataType) -> Any:
    """Return a value of JSON as Arrow takes it."""
    if value is None or pa.types.is_map(kind):
        return None if value is None else sorted(value.items())
    if pa.types.is_struct(kind):
        return {field.name: _stored(value.get(field.name), field.type) for field in kind}
    return value


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value of Arrow as JSON has it, without what is null."""
    if pa.types.is_map(kind):
        return dict(value)
    if pa.types.is_struct(kind):
        known = {field.name: (value[field.name], field.type) for field in kind}
        return {name: _plain(item, own) for name, (item, own) in known.items() if item is not None}
    return value


_NOTHING = DeltaVersion(-1, {}, {}, {}, {}, (), b"", {})
"""Before the first version."""
_OF_OTHERS = DeltaVersion(-1, {}, {}, {"configuration": {}}, {}, (), b"", {})
"""Some version of a table that no publication made."""


class DeltaTable:
    """A Delta table in a folder of a storage."""

    def __init__(
        self,
        files: Files,
        store_id: str,
        name: tuple[str, str],
        form: TableForm,
        *,
        history: int,
        is_erasing: bool,
    ) -> None:
        self.name_in_store = name
        self.folder = "/".join(name)
        self._log = f"{self.folder}/{LOG_FOLDER}"
        self._files, self._target = files, files.target
        self._store_id, self.form = store_id, form
        self._history, self._is_erasing = history, is_erasing
        self._before: DeltaVersion | None = None
        "The newest version, when it was looked at."

    @property
    def is_published(self) -> bool:
        """Whether this store had the table when it was looked at."""
        return self._before is not None and self._is_own(self._before)

    def look(self, checkpoints: Checkpoints) -> None:
        """See what is there, and refuse what is no table that can be gone on from."""
        before = self._newest()
        is_there = self.name_in_store in checkpoints.newest_tables.names
        if before is not None and (is_there or self._is_own(before)):
            self._check(before)
        self._before = before

    def brought_forward(self, checkpoints: Checkpoints, holding: Holding) -> Brought | None:
        """Give the table that was looked at a version for each new checkpoint; return None where there is none."""
        for attempt in range(ATTEMPTS):
            if attempt:
                self.look(checkpoints)
            before = self._before
            is_there = self.name_in_store in checkpoints.newest_tables.names
            if not is_there and (before is None or not self._is_own(before)):
                return None
            if before is not None and before.log_number > checkpoints.newest.document.number:
                # Another publisher knows of a later checkpoint, or the log has lost it.
                checkpoints.look_again()
                holding.look_again()
            if before is not None and self.name_in_store not in checkpoints.newest_tables.names:
                if self._is_erasing:
                    delete_all(self._target, self._target.list(f"{self.folder}/"))
                    return None
                if self._is_long_empty(before):
                    # It was dropped, and nothing of it is left.
                    return None
            new = self._new(before, checkpoints)
            try:
                after = self._committed(before, new, checkpoints, holding)
            except (CheckpointNotFoundError, CollectedError, CorruptDataError):
                # The newest was collected as soon as a newer one was there.
                if not checkpoints.has_newer():
                    raise
                continue
            if after is not None:
                if self._is_erasing:
                    self._checkpointed(after, is_last=True)
                self._trim(after.number)
                if self._is_erasing:
                    self._erase_others(after)
                checkpoint_id = int(after.said[CHECKPOINT])
                url = place_of(self._target, self.folder)
                return Brought(url, after.number, checkpoint_id, bool(new), self._listed(after))
        raise StorageError(self.folder, f"other publishers were first {ATTEMPTS} times; let one publish at a time")

    def listed(self) -> frozenset[int]:
        """Return the numbers of the log entries whose checkpoints can be read, none of a table of others."""
        version = self._newest()
        return self._listed(version) if version is not None and self._is_own(version) else frozenset()

    def published_form(self) -> TableForm | None:
        """Return the form of the table that this store has in the folder, None if it has none."""
        version = self._newest()
        if version is None or not self._is_own(version):
            return None
        return TableForm("delta", 3 if _has_vectors(version) else 2)

    def _new(self, before: DeltaVersion | None, checkpoints: Checkpoints) -> list[CommittedEntry]:
        """Return the checkpoints to publish, in the order of the log."""
        since = None if before is None else before.log_number
        if before is not None and since is not None:
            there = checkpoints.checksum_at(since)
            if since > checkpoints.newest.document.number or (there is not None and there != before.said[ENTRY]):
                # The log has another past now: what is newest is shown next.
                since = None
        return sorted(checkpoints.after(since, self._history), key=lambda entry: entry.document.number)

    def _committed(
        self,
        before: DeltaVersion | None,
        new: Sequence[CommittedEntry],
        checkpoints: Checkpoints,
        holding: Holding,
    ) -> DeltaVersion | None:
        """Commit a version for each checkpoint, and return the last; None if another publisher was first."""
        version = before
        for entry in new:
            if holding.hold(entry, is_needed=entry is checkpoints.newest):
                version = self._commit(version, PublishedCheckpoint(entry, checkpoints.tables(entry)))
                if version is None:
                    return None
        return version

    def _commit(self, before: DeltaVersion | None, checkpoint: PublishedCheckpoint) -> DeltaVersion | None:
        """Make a checkpoint the version after one; None if another publisher was first."""
        base = before or _NOTHING
        number = base.number + 1
        content = None
        if self.name_in_store in checkpoint.tables.names:
            known = [place_of(self._target, f"{self.folder}/{path}") for path in base.files]
            content = checkpoint.tables.content(*self.name_in_store, self.form, known, number)
        actions = self._actions(base, checkpoint, content)
        plain = "".join(json.dumps(action, separators=(",", ":"), ensure_ascii=False) + "\n" for action in actions)
        digest = xxhash.xxh3_128_hexdigest(plain.encode())
        data = plain.replace(f'"{_CHECKSUM}":"{_NO_CHECKSUM}"', f'"{_CHECKSUM}":"{digest}"', 1).encode()
        if self._target.put_if_absent(f"{self._log}/{number:020d}.json", data, digest) is Outcome.LOST:
            return None
        self._files.bytes_written += len(data)
        version = base.after(actions, data)
        self._checkpointed(version)
        self._files.keep(self.folder, version)
        return version

    def _actions(self, base: DeltaVersion, checkpoint: PublishedCheckpoint, content: TableContent | None) -> list[Json]:
        document = checkpoint.entry.document
        is_change = not checkpoint.is_shown(base.said)
        files = {} if content is None else self._added(base, content, document.committed_at_ms, is_change=is_change)
        said = {
            **checkpoint.described(),
            "arrowstate.live-rows": str(0 if content is None else sum(f.live_rows for f in content.files.values())),
            _FILES: str(len(files)),
            _CHECKSUM: _NO_CHECKSUM,
        }
        actions: list[Json] = [
            {
                "commitInfo": {
                    "timestamp": document.committed_at_ms,
                    "operation": f"arrowstate {document.kind}",
                    "operationParameters": said,
                    "engineInfo": "arrowstate",
                }
            }
        ]
        metadata = self._metadata(base, content, document.committed_at_ms)
        features = [
            *features_of(json.loads(metadata["schemaString"])),
            *([_VECTORS] if self.form.has_dead_rows else []),
        ]
        protocol = protocol_of(sorted({*base.protocol.get("readerFeatures", ()), *features}))
        actions += [{"protocol": protocol}] if protocol != base.protocol else []
        actions += [{"metaData": metadata}] if metadata != base.metadata else []
        for path, item in sorted(base.files.items()):
            if files.get(path) is not item:
                kept = {"path", "partitionValues", "size", "deletionVector"}
                gone = {name: value for name, value in item.items() if name in kept}
                stamps = {"deletionTimestamp": document.committed_at_ms, "dataChange": is_change}
                actions.append({"remove": {**gone, **stamps, "extendedFileMetadata": True}})
        actions += [{"add": item} for path, item in sorted(files.items()) if base.files.get(path) is not item]
        return actions

    def _metadata(self, base: DeltaVersion, content: TableContent | None, now_ms: int) -> Json:
        if content is None:
            return base.metadata
        uid, name = self.name_in_store
        configuration = {STORE: self._store_id, OPERATOR: uid, STATE: name}
        return {
            "id": uuid_of(f"{self._store_id} {uid} {name}"),
            "name": f"{uid}.{name}",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(delta_schema(content.fields, f"{uid}.{name}"), separators=(",", ":")),
            "partitionColumns": [],
            "configuration": configuration | ({_ENABLED: "true"} if self.form.has_dead_rows else {}),
            "createdTime": base.metadata.get("createdTime", now_ms),
        }

    def _added(self, base: DeltaVersion, content: TableContent, now_ms: int, *, is_change: bool) -> dict[str, Json]:
        """Return the action of each file, that of the version before where nothing has changed."""
        start = f"{place_of(self._target, self.folder)}/"

        def added(file: TableFile) -> Json:
            path = file.path.removeprefix(start)
            old = base.files.get(path)
            if old is not None and old.get("tags", {}).get(_PIECES, "") == file.pieces:
                return old
            out: Json = {
                "path": path,
                "partitionValues": {},
                "size": file.write() if old is None else old["size"],
                "modificationTime": now_ms if old is None else old["modificationTime"],
                "dataChange": is_change,
            }
            dead = file.dead_rows() if file.pieces else None
            out["stats"] = json.dumps(_stats(file, is_tight=dead is None or not dead.count), separators=(",", ":"))
            if dead is not None:
                out["tags"] = {_PIECES: file.pieces}
            if dead is not None and dead.count:
                data, size = write_delta_vector(dead)
                # No other file, and no other version, has a vector of this name.
                name = xxhash.xxh3_128_digest(f"{path} {base.number + 1} ".encode() + data)
                self._files.put(f"{self.folder}/{_vector_name(name)}", data)
                known = {"pathOrInlineDv": _z85(name), "offset": 1, "sizeInBytes": size, "cardinality": dead.count}
                out["deletionVector"] = {"storageType": "u", **known}
            return out

        made = in_parallel(self._target, added, [*content.files.values()], name="twins", writes=True)
        return {item["path"]: item for item in made}

    def _newest(self) -> DeltaVersion | None:
        """Return the newest version, None if there is none."""
        kept: DeltaVersion | None = self._files.kept(self.folder)
        if kept is None or self._read(kept.number) != kept.data:
            # Nothing was kept, or the table is another one now.
            commits, checkpoints = self._numbers()
            if not commits:
                return None
            if self._is_by_others(commits[0]):
                return _OF_OTHERS
            kept = _NOTHING if not checkpoints else self._at_checkpoint(checkpoints[-1])
        while (data := self._read(kept.number + 1)) is not None:
            kept = kept.after(self._actions_in(kept.number + 1, data), data)
            self._checkpointed(kept)
        if kept is _NOTHING:
            raise CorruptDataError(self._log, "it has later versions, and the first is missing")
        self._files.keep(self.folder, kept)
        return kept

    def _is_by_others(self, first: int) -> bool:
        """Whether no publication made the first version that is there; a later one is refused when it is read."""
        data = self._read(first)
        try:
            return data is not None and not self._actions_in(first, data)
        except InvalidInputError:
            return True

    def _numbers(self) -> tuple[list[int], list[int]]:
        """Return the versions that have a commit, and those that have a checkpoint of Delta."""
        names = [path.rpartition("/")[2] for path in self._target.list(f"{self._log}/")]
        found = [[int(match[1]) for match in map(kind.fullmatch, names) if match] for kind in (_COMMIT, _CHECKPOINT)]
        return found[0], found[1]

    def _read(self, number: int) -> bytes | None:
        try:
            return self._target.read(f"{self._log}/{number:020d}.json")
        except MissingFileError:
            return None

    def _actions_in(self, number: int, data: bytes) -> list[Json]:
        """Return what a commit says."""
        path = f"{self._log}/{number:020d}.json"
        try:
            actions = [json.loads(line) for line in data.splitlines()]
            digest = actions[0]["commitInfo"]["operationParameters"][_CHECKSUM]
        except (ValueError, KeyError, TypeError, IndexError):
            raise InvalidInputError(
                f"version {number} of {place_of(self._target, self.folder)} was written by somebody else, and a table "
                "that is published can only be read; publish to another place, or delete the folder"
            ) from None
        plain = data.replace(f'"{_CHECKSUM}":"{digest}"'.encode(), f'"{_CHECKSUM}":"{_NO_CHECKSUM}"'.encode(), 1)
        if xxhash.xxh3_128_hexdigest(plain) != digest:
            raise CorruptDataError(path, "it does not match its checksum")
        return actions

    def _at_checkpoint(self, number: int) -> DeltaVersion:
        data = self._read(number)
        if data is None:
            raise CorruptDataError(f"{self._log}/{number:020d}.json", "it is missing, and its checkpoint is there")
        found = self._in_checkpoint(number)
        files = {item["path"]: item for item in found["add"]}
        said = self._actions_in(number, data)[0]["commitInfo"]["operationParameters"]
        return DeltaVersion(
            number,
            said,
            found["protocol"][0],
            found["metaData"][0],
            files,
            tuple(found["remove"]),
            data,
            {number: said},
        )

    def _in_checkpoint(self, number: int) -> dict[str, list[Json]]:
        """Return the actions of a checkpoint of Delta by their kind."""
        import pyarrow.parquet as pq

        path = f"{self._log}/{number:020d}.checkpoint.parquet"
        try:
            table = pq.read_table(pa.BufferReader(self._target.read(path)))
        except pa.ArrowException as error:
            raise CorruptDataError(path, f"it is no checkpoint of a publication: {error}") from error
        return {
            name: [_plain(row, kind) for row in table[name].to_pylist() if row is not None]
            for name, kind in zip(_ACTIONS.names, _ACTIONS.types, strict=True)
        }

    def _checkpointed(self, version: DeltaVersion, *, is_last: bool = False) -> None:
        """Write the checkpoint of Delta of every tenth version."""
        number = version.number
        path = f"{self._log}/{number:020d}.checkpoint.parquet"
        is_tenth = number > 0 and number % _VERSIONS_BETWEEN == 0
        if not (is_tenth or is_last) or self._target.exists(path):
            return
        data = version.checkpoint()
        self._files.bytes_written += len(data)
        written(self._target, path, data)

    def _hint(self, number: int) -> None:
        """Have engines begin with a checkpoint of Delta."""
        path = f"{self._log}/_last_checkpoint"
        with suppress(MissingFileError, ValueError, KeyError, TypeError):
            if json.loads(self._target.read(path))["version"] == number:
                return
        size = sum(len(actions) for actions in self._in_checkpoint(number).values())
        self._target.put_hint(path, json.dumps({"version": number, "size": size}).encode())

    def _trim(self, newest: int) -> None:
        """Let versions go that are listed no more, and files that went with the versions before them.

        Files go when the next versions do, so that a reader has ten versions to finish. What a publisher leaves undone
        that is killed in the middle, the next does.
        """
        commits, checkpoints = self._numbers()
        if checkpoints:
            self._hint(checkpoints[-1])
        for before, floor in zip([None, *checkpoints], checkpoints, strict=False):
            if newest - floor + 1 < self._history:
                break
            if before is not None:
                files = self._in_checkpoint(before)
                gone = {path for item in files["remove"] for path in self._files_of(item)}
                there = {path for item in files["add"] for path in self._files_of(item)}
                delete_all(self._target, sorted(gone - there))
                self._target.delete(f"{self._log}/{before:020d}.checkpoint.parquet")
            delete_all(self._target, [f"{self._log}/{number:020d}.json" for number in commits if number < floor])

    def _files_of(self, action: Json) -> list[str]:
        """Return the files of the target that an action names: of rows, and of dead rows."""
        vector = action.get("deletionVector")
        own = [f"{self.folder}/{action['path']}"]
        return own if vector is None else [*own, f"{self.folder}/{_vector_name(_from_z85(vector['pathOrInlineDv']))}"]

    def _erase_others(self, version: DeltaVersion) -> None:
        """Delete every file of the table but those that a version names."""
        needed = {path for item in version.files.values() for path in self._files_of(item)}
        number = f"{version.number:020d}"
        names = ("_last_checkpoint", f"{number}.json", f"{number}.checkpoint.parquet")
        needed |= {f"{self._log}/{name}" for name in names}
        delete_all(self._target, sorted(set(self._target.list(f"{self.folder}/")) - needed))

    def _listed(self, version: DeltaVersion) -> frozenset[int]:
        return frozenset(int(said[NUMBER]) for said in self._listed_versions(version))

    def _listed_versions(self, version: DeltaVersion) -> list[Mapping[str, str]]:
        """Return what the commits say whose versions can be read."""
        commits, checkpoints = self._numbers()
        # Without the first commit, versions before the first checkpoint of Delta are gone already.
        first = 0 if 0 in commits else min(checkpoints, default=version.number)
        out = []
        for number in commits:
            if number not in version.shown and (data := self._read(number)) is not None:
                actions = self._actions_in(number, data)
                version.shown[number] = actions[0]["commitInfo"]["operationParameters"]
            if first <= number <= version.number and number in version.shown:
                out.append(version.shown[number])
        for number in version.shown.keys() - set(commits):
            del version.shown[number]
        return out

    def _is_long_empty(self, version: DeltaVersion) -> bool:
        """Whether no version that is listed has a file, and those of the versions before are deleted."""
        if any(said[_FILES] != "0" for said in self._listed_versions(version)):
            return False
        _, checkpoints = self._numbers()
        # The first one has the files that go with the next versions: until then empty versions are made.
        return not checkpoints or not self._in_checkpoint(checkpoints[0])["remove"]

    def _is_own(self, version: DeltaVersion) -> bool:
        return bool(version.metadata["configuration"].get(STORE) == self._store_id)

    def _check(self, version: DeltaVersion) -> None:
        """Refuse a table that is not of this store, or with deletion vectors where none are asked for."""
        place, configuration = place_of(self._target, self.folder), version.metadata["configuration"]
        if not self._is_own(version):
            raise not_own(place, configuration.get(STORE), self._store_id)
        has_vectors = _has_vectors(version)
        if has_vectors != self.form.has_dead_rows:
            raise InvalidInputError(
                f"{place} is a table {'with' if has_vectors else 'without'} deletion vectors, asked for was version "
                f"{self.form.version}; publish to another place"
            )


def _has_vectors(version: DeltaVersion) -> bool:
    return _ENABLED in version.metadata["configuration"]


def _stats(file: TableFile, *, is_tight: bool) -> Json:
    out: Json = {"numRecords": file.rows}
    if file.runs:
        batches = file.runs[0].document.batches
        out["minValues"] = {HASH_COLUMN: batches[0].min_hash}
        out["maxValues"] = {HASH_COLUMN: batches[-1].max_hash}
        out["nullCount"] = {HASH_COLUMN: 0}
    return {**out, "tightBounds": is_tight}


def _vector_name(name: bytes) -> str:
    return f"deletion_vector_{uuid.UUID(bytes=name)}.bin"


_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_Z85, _TO_B85 = str.maketrans(_B85, _Z85), str.maketrans(_Z85, _B85)


def _z85(data: bytes) -> str:
    """Return bytes as Delta writes them in text."""
    return base64.b85encode(data).decode().translate(_TO_Z85)


def _from_z85(text: str) -> bytes:
    return base64.b85decode(text.translate(_TO_B85))
