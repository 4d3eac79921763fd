"""One table of a publication: an Iceberg table that goes from version to version by files that are never changed.

The next version follows from the one before and from checkpoints of the log, and from nothing else: two publishers that
go on from one version write the same bytes. `v<N>.metadata.json` is created only if it is absent, so of two that differ
one wins, and the other goes on from there. Specification: formats/spec/publication.md.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import xxhash
from msgspec import Struct
from msgspec.structs import replace

from arrowstate.errors import (
    CheckpointNotFoundError,
    CollectedError,
    CorruptDataError,
    InvalidInputError,
    MissingFileError,
    StorageError,
)
from arrowstate.log.entries import CommittedEntry
from arrowstate.publish.content import TableFile, place_of, written
from arrowstate.publish.deletes import write_positions, write_puffin
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
from arrowstate.publish.manifests import (
    DATA,
    DELETED,
    DELETES,
    Entry,
    delete_file,
    list_bytes,
    manifest_bytes,
    manifest_file,
    new_entry,
    read_list,
    read_manifest,
)
from arrowstate.publish.types import TableForm, iceberg_schema
from arrowstate.schema.fields import Field
from arrowstate.storage.base import Outcome, Storage
from arrowstate.storage.parallel import delete_all, in_parallel
from arrowstate_formats.state_columns import HASH_COLUMN, HIDDEN_FIELD_IDS

METADATA_FOLDER = "metadata"
_VERSION = re.compile(r"v([0-9]+)\.metadata\.json")
_HINT = "version-hint.text"
_MOST_MANIFESTS = 8
"""With more manifests of data the smallest becomes part of the new one."""

_VERSIONS_KEPT = 100

_CHECKSUM = "arrowstate.checksum"
_NO_CHECKSUM = "0" * 32
_STORE_URL = "arrowstate.store-url"

MAIN = "main"
"""The branch of the newest checkpoint."""

Json = dict[str, Any]


class Version(Struct, frozen=True):
    """A version of a table as it is stored."""

    number: int
    metadata: Json

    @property
    def current(self) -> Json | None:
        """The newest snapshot."""
        wanted = self.metadata["current-snapshot-id"]
        return next((item for item in self.metadata["snapshots"] if item["snapshot-id"] == wanted), None)


@dataclass
class Files:
    """Reads and writes the files of publications, and keeps those that the next version needs again."""

    target: Storage
    bytes_written: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: dict[str, Any] = field(default_factory=dict)
    _versions: dict[str, Any] = field(default_factory=dict)

    def put(self, path: str, data: bytes) -> str:
        """Write a file and return its URL."""
        with self._lock:
            self.bytes_written += len(data)
        written(self.target, path, data)
        return place_of(self.target, path)

    def manifests(self, snapshot: Json) -> list[Json]:
        """Return what the manifest list of a snapshot says."""
        path = snapshot["manifest-list"]
        return self.once(path, lambda: read_list(self._read(path), path=path))

    def entries(self, manifest: Json) -> tuple[list[Entry], dict[str, str]]:
        """Return what `read_manifest` does."""
        path = manifest["manifest_path"]
        # A manifest has other row ids in a list that names it first.
        key = f"{path} {manifest.get('first_row_id')}"
        return self.once(key, lambda: read_manifest(self._read(path), manifest))

    def own(self, path: str) -> str | None:
        """Return the path of a file of the target from its URL, None for one elsewhere."""
        start = f"{place_of(self.target)}/"
        return path.removeprefix(start) if path.startswith(start) else None

    def keep(self, folder: str, version: Any) -> None:
        """Keep the newest version of a table, which the next one follows."""
        self._versions[folder] = version

    def kept(self, folder: str) -> Any:
        """Return what `keep` was given, None before."""
        return self._versions.get(folder)

    def once(self, key: str, read: Callable[[], Any]) -> Any:
        """Return what was read by a key, read where it is not known."""
        if key not in self._known:
            if len(self._known) > 512:
                self._known.clear()
            self._known[key] = read()
        return self._known[key]

    def _read(self, path: str) -> bytes:
        own = self.own(path)
        if own is None:
            raise CorruptDataError(path, f"it is not in {self.target.url}")
        return self.target.read(own)


class _Plan(Struct, frozen=True):
    """What the next version of a table lists."""

    base: Json | None
    "The snapshot that the first new one changes."
    kept: list[Json]
    new: list[CommittedEntry]
    "In the order of the log."
    tags: dict[str, int]
    "The number of the log entry of each tag of the store."

    @property
    def lists_again(self) -> bool:
        """Whether there is a checkpoint among the new ones that is older than the base, as of a tag that came late."""
        return self.base is not None and any(entry.document.number <= _number(self.base) for entry in self.new)

    def changes_nothing(self, before: Version) -> bool:
        """Whether a version lists all that already."""
        snapshots = before.metadata["snapshots"]
        ids = {_number(item): item["snapshot-id"] for item in self.kept}
        tags = {tag: ids[number] for tag, number in self.tags.items() if number in ids and tag != MAIN}
        have = {tag: ref["snapshot-id"] for tag, ref in before.metadata["refs"].items() if tag != MAIN}
        return not self.new and self.kept == snapshots and tags == have


class Table:
    """An Iceberg table in a folder of a storage."""

    def __init__(
        self,
        files: Files,
        store_id: str,
        store_url: str,
        name: tuple[str, str],
        form: TableForm,
        *,
        history: int,
        is_erasing: bool,
    ) -> None:
        self.uid, self.name = name
        self.folder = "/".join(name)
        self._files = files
        self._store_id, self._store_url = store_id, store_url
        self.form, self._format = form, form.version
        self._history, self._is_erasing = history, is_erasing
        self._before: Version | None = None
        "The newest version, when it was looked at."

    def newest(self) -> Version | None:
        """Return the newest version, None if there is none."""
        return newest_version(self._files.target, self.folder)

    @property
    def is_published(self) -> bool:
        """Whether this store had the table when it was looked at."""
        return self._before is not None and self.is_own(self._before)

    @property
    def name_in_store(self) -> tuple[str, str]:
        """The operator uid and the name of the state."""
        return self.uid, self.name

    def look(self, checkpoints: Checkpoints) -> None:
        """See what is there, and refuse what is no table that can be gone on from."""
        before = self.newest()
        is_there = self.name_in_store in checkpoints.newest_tables.names
        if before is not None and (is_there or self.is_own(before)):
            self.check(before)
        self._before = before

    def brought_forward(self, checkpoints: Checkpoints, holding: Holding) -> Brought | None:
        """Bring the table that was looked at to the newest checkpoint; return None where there is nothing to show."""
        made = self._made_forward(checkpoints, holding)
        if made is None:
            before = self.newest() if self._is_erasing else None
            if before is not None and self.is_own(before):
                delete_all(self._files.target, self._files.target.list(f"{self.folder}/"))
            return None
        version, is_new = made
        if self._is_erasing:
            self.erase_others(version)
        current = version.current
        assert current is not None, "a version that was made here has a snapshot"
        url = place_of(self._files.target, f"{self.folder}/metadata/v{version.number}.metadata.json")
        checkpoint_id = int(current["summary"][CHECKPOINT])
        return Brought(url, version.number, checkpoint_id, is_new, self._listed(version))

    def listed(self) -> frozenset[int]:
        """Return the numbers of the log entries whose checkpoints the table lists, none of a table of others."""
        version = self.newest()
        return self._listed(version) if version is not None and self.is_own(version) else frozenset()

    def published_form(self) -> TableForm | None:
        """Return the form of the table that this store has in the folder, None if it has none."""
        version = self.newest()
        if version is None or not self.is_own(version):
            return None
        return TableForm("iceberg", version.metadata["format-version"])

    def _listed(self, version: Version) -> frozenset[int]:
        return frozenset(map(_number, version.metadata["snapshots"]))

    def _made_forward(self, checkpoints: Checkpoints, holding: Holding) -> tuple[Version, bool] | None:
        """Return the version that has the newest checkpoint, and whether it was made here; None where there is none."""
        # A manifest that goes on from another has the bounds of the files that it dropped.
        is_damaged = self._is_erasing
        is_new = False
        for attempt in range(ATTEMPTS):
            if attempt:
                self.look(checkpoints)
            before = self._before
            if before is not None and not self.is_own(before):
                return None
            if before is not None and (
                _number(before.current) > checkpoints.newest.document.number
                or not all(_is_held(item, holding) for item in before.metadata["snapshots"])
            ):
                # Another publisher knows of a later checkpoint, or the log has lost it.
                checkpoints.look_again()
                holding.look_again()
            is_there = self.name_in_store in checkpoints.newest_tables.names
            if before is not None:
                self.delete_unneeded(before)
            plan = self._plan(before, checkpoints, holding, begins_anew=is_damaged)
            if not is_there and all(_is_empty(item) for item in plan.kept):
                # It was dropped, and no checkpoint that is listed has a row of it.
                return None
            try:
                new = [item for item in plan.new if holding.hold(item, is_needed=item is checkpoints.newest)]
            except (CheckpointNotFoundError, CollectedError, CorruptDataError):
                # It was collected as soon as a newer one was there.
                if not checkpoints.has_newer():
                    raise
                holding.look_again()
                continue
            plan = replace(plan, new=new)
            if before is not None and plan.changes_nothing(before):
                # Who made the version may have died before its hint.
                self._hint(before.number)
                return before, is_new
            added = [PublishedCheckpoint(entry, checkpoints.tables(entry)) for entry in new]
            try:
                metadata = self.metadata_after(before, base=plan.base, kept=plan.kept, new=added, refs=plan.tags)
            except MissingFileError:
                if plan.base is None:
                    raise
                # Somebody deleted a manifest; the log has all that is needed.
                is_damaged = True
                continue
            after = self.commit(before, metadata)
            is_new = is_new or after is not None
            if after is not None and not plan.lists_again:
                return after, True
            # Another publisher was first; or it lets go of a checkpoint that is listed again by a tag, if it knows that
            # the tag is gone.
            checkpoints.look_again()
            holding.look_again()
        raise StorageError(self.folder, f"other publishers were first {ATTEMPTS} times; let one publish at a time")

    def _plan(
        self,
        before: Version | None,
        checkpoints: Checkpoints,
        holding: Holding,
        *,
        begins_anew: bool,
    ) -> _Plan:
        """Return what the next version lists; it depends on the version before and on the store alone."""
        newest = checkpoints.newest.document.number
        listed = [] if before is None else [item for item in before.metadata["snapshots"] if _is_held(item, holding)]
        base = None if before is None else before.current
        is_moved = begins_anew or before is None or self.is_of_another_place(before)
        if base is None or base not in listed or is_moved or _number(base) > newest:
            # Nothing of the version can be gone on from: it was moved, or its checkpoints are gone.
            listed, base = [], None
        since = None if base is None else _number(base)
        tags = {tag: entry for tag, entry in holding.tags.items() if entry.number <= newest and not self._is_erasing}
        there = {_number(item) for item in listed}
        new = {entry.document.number: entry for entry in checkpoints.after(since, self._history)}
        for tagged in tags.values():
            if tagged.number not in there and tagged.number not in new:
                entry = checkpoints.at(tagged)
                if entry is not None and self.name_in_store in checkpoints.tables(entry).names:
                    new[tagged.number] = entry
        if base is None:
            new = {
                number: entry for number, entry in new.items() if self.name_in_store in checkpoints.tables(entry).names
            }
        stay = set(sorted({*there, *new})[-self._history :]) | {tagged.number for tagged in tags.values()}
        kept = [item for item in listed if _number(item) in stay]
        added = [new[number] for number in sorted(new) if number in stay]
        return _Plan(base, kept, added, {tag: entry.number for tag, entry in tags.items()})

    def is_own(self, version: Version) -> bool:
        """Whether this store has published the table."""
        return store_of(version) == self._store_id

    def check(self, version: Version) -> None:
        """Refuse a table that is not of this store, or in another version of Iceberg."""
        place = place_of(self._files.target, self.folder)
        if not self.is_own(version):
            raise not_own(place, store_of(version), self._store_id)
        if version.metadata["format-version"] != self._format:
            raise InvalidInputError(
                f"{place} is a table of Iceberg version {version.metadata['format-version']}, asked for was version "
                f"{self._format}; publish to another place"
            )

    def is_of_another_place(self, version: Version) -> bool:
        """Whether the store, or the table, has been moved since: then no file is where the version says."""
        metadata = version.metadata
        moved = metadata["location"] != place_of(self._files.target, self.folder)
        return moved or metadata["properties"].get(_STORE_URL) != self._store_url

    def _known_files(self, snapshot: Json | None) -> set[str]:
        """Return the data files of a snapshot."""
        if snapshot is None:
            return set()
        manifests = [item for item in self._files.manifests(snapshot) if item["content"] == DATA]
        return {entry["data_file"]["file_path"] for item in manifests for entry in self._files.entries(item)[0]}

    def metadata_after(
        self,
        before: Version | None,
        *,
        base: Json | None,
        kept: Sequence[Json],
        new: Sequence[PublishedCheckpoint],
        refs: Mapping[str, int],
    ) -> Json:
        """Write what new snapshots need, and return the metadata that follows.

        `base` is the snapshot that the first new one changes, `kept` are those that stay, and `refs` has the number of
        the log entry of each tag.
        """
        old = None if before is None else before.metadata
        metadata = _fresh(self._identity(), self._format) if old is None else json.loads(json.dumps(old))
        metadata["location"] = place_of(self._files.target, self.folder)
        metadata["properties"] |= self._properties()
        metadata["snapshots"] = list(kept)
        main = base
        for checkpoint in new:
            is_main = main is None or checkpoint.number > int(main["summary"][NUMBER])
            snapshot = self._add(metadata, main, checkpoint, is_main=is_main)
            metadata["snapshots"].append(snapshot)
            if is_main:
                main = snapshot
                metadata["current-snapshot-id"] = snapshot["snapshot-id"]
                metadata["current-schema-id"] = snapshot["schema-id"]
                stamp = max(metadata["last-updated-ms"], snapshot["timestamp-ms"])
                metadata["snapshot-log"].append({"timestamp-ms": stamp, "snapshot-id": snapshot["snapshot-id"]})
                metadata["last-updated-ms"] = stamp
        _tidy(metadata, {} if main is None else {MAIN: main["snapshot-id"]}, refs)
        if before is not None and old is not None:
            place = place_of(self._files.target, f"{self.folder}/metadata/v{before.number}.metadata.json")
            metadata["metadata-log"].append({"timestamp-ms": old["last-updated-ms"], "metadata-file": place})
            del metadata["metadata-log"][:-_VERSIONS_KEPT]
        return metadata

    def commit(self, before: Version | None, metadata: Json) -> Version | None:
        """Make metadata the version after one; None if another publisher was first."""
        target, number = self._files.target, 1 if before is None else before.number + 1
        metadata["properties"][_CHECKSUM] = _NO_CHECKSUM
        text = json.dumps(metadata, separators=(",", ":"), ensure_ascii=False)
        digest = xxhash.xxh3_128_hexdigest(text.encode())
        metadata["properties"][_CHECKSUM] = digest
        data = text.replace(f'"{_CHECKSUM}":"{_NO_CHECKSUM}"', f'"{_CHECKSUM}":"{digest}"', 1).encode()
        folder = f"{self.folder}/metadata"
        if target.put_if_absent(f"{folder}/v{number}.metadata.json", data, digest) is Outcome.LOST:
            return None
        self._files.bytes_written += len(data)
        self._hint(number)
        return Version(number, metadata)

    def _hint(self, number: int) -> None:
        """Have engines that know the folder alone find a version, or a later one."""
        hinted = hinted_version(self._files.target, self.folder)
        if hinted is None or hinted < number:
            self._files.target.put_hint(f"{self.folder}/metadata/{_HINT}", str(number).encode())

    def delete_unneeded(self, version: Version) -> None:
        """Delete what the version before names and this one does not.

        That is done before the next version is made, so that a reader has from one publication to the next to finish,
        and who is killed in the middle of it begins again.
        """
        target, folder = self._files.target, f"{self.folder}/metadata"
        before = _read_version(target, self.folder, version.number - 1)
        if before is None:
            return
        ids = {item["snapshot-id"] for item in version.metadata["snapshots"]}
        dropped = [item for item in before.metadata["snapshots"] if item["snapshot-id"] not in ids]
        if dropped:
            there = self._named_by(version.metadata["snapshots"], missing_ok=True)
            # Lists last: what is left after a kill is found by them.
            for gone, held in zip(self._named_by(dropped, missing_ok=True), there, strict=True):
                delete_all(target, sorted(gone - held))
        if version.number > _VERSIONS_KEPT:
            target.delete(f"{folder}/v{version.number - _VERSIONS_KEPT}.metadata.json")

    def erase_others(self, version: Version) -> None:
        """Delete every file of the table but those that a version names.

        A publisher that is at work beside finds files missing then, and begins the table anew.
        """
        target = self._files.target
        needed = set().union(*self._named_by(version.metadata["snapshots"]))
        needed |= {f"{self.folder}/metadata/{name}" for name in (_HINT, f"v{version.number}.metadata.json")}
        delete_all(target, sorted(set(target.list(f"{self.folder}/")) - needed))

    def _named_by(self, snapshots: Iterable[Json], *, missing_ok: bool = False) -> tuple[set[str], set[str], set[str]]:
        """Return the files of the target that snapshots need: of rows, manifests, lists of manifests."""
        own = self._files.own
        rows: set[str | None] = set()
        manifests: set[str | None] = set()
        lists: set[str | None] = set()
        for snapshot in snapshots:
            lists.add(own(snapshot["manifest-list"]))
            with suppress(MissingFileError) if missing_ok else nullcontext():
                for manifest in self._files.manifests(snapshot):
                    manifests.add(own(manifest["manifest_path"]))
                    rows.update(own(entry["data_file"]["file_path"]) for entry in self._files.entries(manifest)[0])
        found = [{path for path in paths if path is not None} for paths in (rows, manifests, lists)]
        return found[0], found[1], found[2]

    def _identity(self) -> str:
        text = f"{self._store_id} {self.uid} {self.name}"
        return str(uuid.UUID(xxhash.xxh3_128_hexdigest(text.encode())))

    def _properties(self) -> dict[str, str]:
        return {
            STORE: self._store_id,
            _STORE_URL: self._store_url,
            OPERATOR: self.uid,
            STATE: self.name,
            # The files belong to the store; an engine that expires snapshots must not delete them.
            "gc.enabled": "false",
            # Spark would count each row group of a file with dead rows as 8 MB, and make a task of it.
            "read.split.open-file-cost": "65536",
        }

    def _add(self, metadata: Json, base: Json | None, checkpoint: PublishedCheckpoint, *, is_main: bool) -> Json:
        """Write the manifests of a snapshot and return it; the counters of the metadata go on."""
        metadata["last-sequence-number"] += 1
        sequence, snapshot_id = metadata["last-sequence-number"], checkpoint.snapshot_id
        content = None
        if self.name_in_store in checkpoint.tables.names:
            content = checkpoint.tables.content(*self.name_in_store, self.form, self._known_files(base), sequence)
        if content is None:
            schema = next(item for item in metadata["schemas"] if item["schema-id"] == metadata["current-schema-id"])
        else:
            schema = _schema_in(metadata, content.fields, self._format, is_sorted=content.is_sorted)
        building = _Building(self._files, self.folder, self._format, snapshot_id, sequence, schema)
        before = [] if base is None else self._files.manifests(base)
        files = {} if content is None else content.files
        manifests = building.data([item for item in before if item["content"] == DATA], files)
        manifests += building.deletes([item for item in before if item["content"] == DELETES], files)
        first_row = metadata.get("next-row-id")
        if first_row is not None:
            for manifest in manifests:
                if manifest["content"] == DATA and manifest["first_row_id"] is None:
                    manifest["first_row_id"] = metadata["next-row-id"]
                    metadata["next-row-id"] += manifest["added_rows_count"] + manifest["existing_rows_count"]
        parent = None if base is None or not is_main else base["snapshot-id"]
        data = list_bytes(manifests, version=self._format, snapshot_id=snapshot_id, parent=parent, sequence=sequence)
        name = f"{self.folder}/metadata/snap-{snapshot_id}-{_digest(data)}.avro"
        out: Json = {
            "sequence-number": sequence,
            "snapshot-id": snapshot_id,
            "timestamp-ms": checkpoint.entry.document.committed_at_ms,
            "summary": _summary(checkpoint, building, files, {} if base is None else base["summary"]),
            "manifest-list": self._files.put(name, data),
            "schema-id": schema["schema-id"],
        }
        if parent is not None:
            out["parent-snapshot-id"] = parent
        if first_row is not None:
            out |= {"first-row-id": first_row, "added-rows": metadata["next-row-id"] - first_row}
        return out


@dataclass
class _Building:
    """The manifests of one snapshot, those of the snapshot before used again where they still hold."""

    files: Files
    folder: str
    version: int
    snapshot_id: int
    sequence: int
    schema: Json
    added: int = 0
    removed: int = 0

    def data(self, before: Sequence[Json], wanted: Mapping[str, TableFile]) -> list[Json]:
        """Return the manifests of data files."""
        kept, entries, have = [], [], set()
        for manifest in before:
            own = self.files.entries(manifest)[0]
            paths = {entry["data_file"]["file_path"] for entry in own}
            have |= paths
            if not paths:
                # All that it had was deleted before.
                continue
            if paths <= wanted.keys():
                kept.append((len(own), manifest))
            else:
                entries += own
        new = [wanted[path] for path in wanted if path not in have]
        if new or entries:
            kept.sort(key=lambda item: (-item[0], item[1]["manifest_path"]))
            while len(kept) >= _MOST_MANIFESTS:
                entries += self.files.entries(kept.pop()[1])[0]
        self.added, self.removed = len(new), len(have - wanted.keys())
        entries = [
            entry
            if entry["data_file"]["file_path"] in wanted
            else {**entry, "status": DELETED, "snapshot_id": self.snapshot_id}
            for entry in entries
        ]
        described = in_parallel(
            self.files.target, lambda file: file.described(self.version), new, name="twins", writes=True
        )
        entries += [new_entry(file, self.snapshot_id) for file in described]
        return [manifest for _, manifest in kept] + self._manifest(entries, DATA)

    def deletes(self, before: Sequence[Json], wanted: Mapping[str, TableFile]) -> list[Json]:
        """Return the manifest of dead rows, if there are any."""
        pieces = {path: file.pieces for path, file in wanted.items() if file.pieces}
        known: dict[str, Entry] = {}
        pieces_before: dict[str, str] = {}
        for manifest in before:
            entries, noted = self.files.entries(manifest)
            pieces_before |= noted
            known |= {entry["data_file"]["referenced_data_file"]: entry for entry in entries}
        if pieces == pieces_before:
            return list(before)
        same = {path for path, text in pieces.items() if pieces_before.get(path) == text}
        entries = [known[path] for path in pieces if path in same and path in known]
        changed = [path for path in pieces if path not in same]
        made = in_parallel(
            self.files.target, lambda path: self._dead_rows(path, wanted[path]), changed, name="deletes", writes=True
        )
        entries += [new_entry(file, self.snapshot_id) for file in made if file is not None]
        return self._manifest(entries, DELETES, pieces)

    def _dead_rows(self, path: str, file: TableFile) -> Json | None:
        """Write the dead rows of a data file, and return what a manifest says of them; None where there are none."""
        dead = file.dead_rows()
        if not dead.count:
            return None
        place: tuple[int, int] | None = None
        if self.version >= 3:
            data, place = write_puffin(path, dead)
        else:
            data = write_positions(path, dead)
        extension = "parquet" if place is None else "puffin"
        url = self.files.put(f"{self.folder}/data/{self.snapshot_id}-{_digest(data)}.{extension}", data)
        return delete_file(url, size=len(data), version=self.version, data_path=path, count=dead.count, place=place)

    def _manifest(self, entries: Sequence[Entry], content: int, pieces: Mapping[str, str] | None = None) -> list[Json]:
        if not entries:
            return []
        data = manifest_bytes(entries, content=content, version=self.version, schema=self.schema, pieces=pieces)
        # A checkpoint that is listed once more, as by a tag, has another sequence number, which its manifests inherit;
        # engines keep what they read of a manifest by its path.
        digest = _digest(f"{self.sequence} ".encode() + data)
        path = f"{self.folder}/metadata/{self.snapshot_id}-{digest}.avro"
        return [
            manifest_file(
                entries,
                path=self.files.put(path, data),
                length=len(data),
                content=content,
                version=self.version,
                snapshot_id=self.snapshot_id,
                sequence=self.sequence,
            )
        ]


def _number(snapshot: Json | None) -> int:
    return -1 if snapshot is None else int(snapshot["summary"][NUMBER])


def _is_held(snapshot: Json, holding: Holding) -> bool:
    return holding.has(_number(snapshot), snapshot["summary"][ENTRY])


def _is_empty(snapshot: Json) -> bool:
    return bool(snapshot["summary"]["total-data-files"] == "0")


def store_of(version: Version) -> str | None:
    """Return the id of the store that has published a table, None if none has."""
    store: str | None = version.metadata.get("properties", {}).get(STORE)
    return store


def newest_version(target: Storage, folder: str) -> Version | None:
    """Return the newest version of a table in a folder, None if there is none."""
    number = hinted_version(target, folder)
    found = None if number is None else _read_version(target, folder, number)
    if found is None:
        names = [path.rpartition("/")[2] for path in target.list(f"{folder}/metadata/v")]
        numbers = [int(match[1]) for match in map(_VERSION.fullmatch, names) if match]
        if not numbers:
            return None
        # A hint may be torn, or older than any version that is there.
        found = _read_version(target, folder, max(numbers))
    if found is None:
        raise CorruptDataError(f"{folder}/metadata/v{max(numbers)}.metadata.json", "it is listed and missing")
    # The hint is written after the version, or not at all.
    while (following := _read_version(target, folder, found.number + 1)) is not None:
        found = following
    return found


def hinted_version(target: Storage, folder: str) -> int | None:
    """Return the number that the hint names, None without one."""
    try:
        text = target.read(f"{folder}/metadata/{_HINT}")
    except MissingFileError:
        return None
    return int(text) if text.isdigit() else None


def _read_version(target: Storage, folder: str, number: int) -> Version | None:
    path = f"{folder}/metadata/v{number}.metadata.json"
    try:
        data = target.read(path)
    except MissingFileError:
        return None
    try:
        metadata = json.loads(data)
        found = Version(number, metadata)
        if store_of(found) is None:
            return found
        digest = metadata["properties"][_CHECKSUM]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError(path, f"it is no metadata of a publication: {error}") from error
    plain = data.replace(f'"{_CHECKSUM}":"{digest}"'.encode(), f'"{_CHECKSUM}":"{_NO_CHECKSUM}"'.encode(), 1)
    if xxhash.xxh3_128_hexdigest(plain) != digest:
        raise CorruptDataError(path, "it does not match its checksum")
    return found


def _digest(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def _fresh(identity: str, version: int) -> Json:
    out: Json = {
        "format-version": version,
        "table-uuid": identity,
        "location": "",
        "last-sequence-number": 0,
        "last-updated-ms": 0,
        "last-column-id": 0,
        "current-schema-id": 0,
        "schemas": [],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {},
        "current-snapshot-id": -1,
        "refs": {},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
    }
    return {**out, "next-row-id": 0} if version >= 3 else out


def _schema_in(metadata: Json, fields: Sequence[Field], version: int, *, is_sorted: bool) -> Json:
    """Return the schema with these columns, which is added where there is none."""
    wanted = iceberg_schema(fields, version)
    for schema in metadata["schemas"]:
        if schema["fields"] == wanted["fields"]:
            return schema
    schema = {**wanted, "schema-id": len(metadata["schemas"])}
    metadata["schemas"].append(schema)
    metadata["last-column-id"] = max(metadata["last-column-id"], _highest(fields))
    if is_sorted and len(metadata["sort-orders"]) == 1:
        by_hash = {
            "transform": "identity",
            "source-id": HIDDEN_FIELD_IDS[HASH_COLUMN],
            "direction": "asc",
            "null-order": "nulls-first",
        }
        metadata["sort-orders"].append({"order-id": 1, "fields": [by_hash]})
        metadata["default-sort-order-id"] = 1
    return schema


def _highest(fields: Iterable[Field]) -> int:
    return max((max(item.id, _highest(item.children)) for item in fields), default=0)


def _tidy(metadata: Json, main: Mapping[str, int], tags: Mapping[str, int]) -> None:
    """Set the refs, and leave out of the log what is no snapshot any more."""
    ids = {int(item["summary"][NUMBER]): item["snapshot-id"] for item in metadata["snapshots"]}
    refs = {name: {"snapshot-id": number, "type": "branch"} for name, number in main.items()}
    for name, number in sorted(tags.items()):
        if number in ids and name not in refs:
            refs[name] = {"snapshot-id": ids[number], "type": "tag"}
    metadata["refs"] = refs
    held = set(ids.values())
    metadata["snapshot-log"] = [item for item in metadata["snapshot-log"] if item["snapshot-id"] in held]
    for snapshot in metadata["snapshots"]:
        if snapshot.get("parent-snapshot-id") not in held:
            snapshot.pop("parent-snapshot-id", None)


def _summary(
    checkpoint: PublishedCheckpoint, building: _Building, files: Mapping[str, TableFile], before: Mapping[str, str]
) -> dict[str, str]:
    operation = "overwrite"
    if checkpoint.is_shown(before):
        operation = "replace"
    elif not building.removed and not any(file.pieces for file in files.values()):
        operation = "append"
    return {
        "operation": operation,
        **checkpoint.described(),
        "total-records": str(sum(file.rows for file in files.values())),
        "total-data-files": str(len(files)),
        "arrowstate.live-rows": str(sum(file.live_rows for file in files.values())),
    }
