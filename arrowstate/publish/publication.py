"""A store published as open tables, one for each keyed state and each output table.

A publication is derived from the log and never the truth: any process may make it, as often as it likes. It is made
after a commit and is no part of it. Each checkpoint that a table lists is held by a tag of the publication, which is
put before the table names the checkpoint and removed after the table names it no more; so what a table lists can be
read, whatever is collected. Specification: formats/spec/publication.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import xxhash
from msgspec import Struct

from arrowstate.clock import new_id, now_ms
from arrowstate.errors import (
    ArrowStateError,
    CheckpointNotFoundError,
    CollectedError,
    CorruptDataError,
    InvalidInputError,
    MissingFileError,
    NotFoundError,
    StorageError,
)
from arrowstate.files.references import ReferenceReader
from arrowstate.log.collected import reading_checkpoint
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.entries import CommittedEntry
from arrowstate.log.pins import TAG_FOLDER, put_tag, read_pins, read_tag
from arrowstate.publish.content import CheckpointTables, place_of
from arrowstate.publish.table import (
    CHECKPOINT,
    ENTRY,
    MAIN,
    NUMBER,
    Files,
    Json,
    PublishedCheckpoint,
    Table,
    Version,
    newest_version,
)
from arrowstate.publish.types import iceberg_schema
from arrowstate.storage.base import Storage, listed_level
from arrowstate.storage.registry import open_storage, options_beside
from arrowstate_formats.documents import ParentDocument

TableFormat: TypeAlias = Literal["iceberg"]

DEFAULT_HISTORY = 10
"""So many checkpoints a table lists beside those with a tag."""

OWN_TAGS = "published-"
"""How the names of tags begin that hold what a publication lists."""
PLACE_KEY = "arrowstate.publication"
"""The extension of such a tag that says where the tables are."""
_ATTEMPTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Where and how a store is published after each commit; `to` alone may be given in its place.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://publishing-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> with store.writer(publish=arrowstate.Publish(to="memory://its-tables", version=2)) as writer:
    ...     _ = writer.checkpoint({"people": [backend]})
    >>> store.publish("memory://its-tables", version=2).checkpoint_id
    1
    """

    to: str | Path
    """A folder or URL outside of the store."""
    format: TableFormat = "iceberg"
    """The format of the tables."""
    version: int = 3
    """Of Iceberg: 3, or 2 for engines that do not read deletion vectors."""
    states: Sequence[str | tuple[str, str]] | None = None
    """"operator.state", or (operator, state), of each table; None for all."""
    history: int = DEFAULT_HISTORY
    """So many checkpoints the tables list, beside those with a tag."""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    """As in `open_store`; None for those of the store, if the place is in the same object storage."""

    def __post_init__(self) -> None:
        if self.format not in get_args(TableFormat):
            known = " or ".join(map(repr, get_args(TableFormat)))
            raise InvalidInputError(f"the format of a publication is {known}, got {self.format!r}")
        if self.version not in (2, 3):
            raise InvalidInputError(f"Iceberg is published in version 2 or 3, got {self.version!r}")
        if type(self.history) is not int or self.history < 1:
            raise InvalidInputError(f"history is the number of checkpoints to list, at least 1, got {self.history!r}")
        for state in self.states or ():
            if isinstance(state, str) and "." not in state:
                raise InvalidInputError(f"a state to publish is named operator.state, got {state!r}")

    @property
    def names(self) -> list[tuple[str, str]] | None:
        """(operator uid, state) of each table, None for all."""
        if self.states is None:
            return None
        split = [
            state.rpartition(".") if isinstance(state, str) else (state[0], ".", state[1]) for state in self.states
        ]
        return [(uid, name) for uid, _, name in split]


def check_publish(publish: Publish | str | Path | None) -> Publish | None:
    """Return where and how to publish, or None for not at all; refuse what is neither."""
    if publish is None or isinstance(publish, Publish):
        return publish
    if not isinstance(publish, str | Path):
        raise InvalidInputError(
            f"publish must be a folder, a URL, or an arrowstate.Publish(to=...) with more to say; got {publish!r}"
        )
    return Publish(to=publish)


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as it was published.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://published-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
    >>> with store.writer() as writer:
    ...     _ = writer.checkpoint({"people": [backend]})
    >>> (table,) = store.publish("memory://published-tables").tables
    >>> table.operator, table.state, table.version, table.checkpoint_id, table.is_new
    ('people', 'city', 1, 1, True)
    """

    operator: str
    state: str
    metadata: str
    "The URL of the newest metadata, by which engines and catalogs find the table."
    version: int
    "The number of this metadata."
    checkpoint_id: int
    "The newest checkpoint that the table has."
    is_new: bool
    "Whether this call made the version; otherwise there was nothing to do."


@dataclass(frozen=True, slots=True, repr=False)
class Publication:
    """What a call of `StateStore.publish` published.

    Examples
    --------
    >>> import arrowstate, pyarrow as pa
    >>> store = arrowstate.open_store("memory://publication-example", create=True)
    >>> backend = arrowstate.KeyedStateBackend(key=pa.schema([("user", pa.string())]), max_parallelism=128)
    >>> backend.state(arrowstate.ValueStateDescriptor("city", pa.string())).update_batch(["ann"], ["Rome"])
    >>> with store.writer() as writer:
    ...     _ = writer.checkpoint({"people": [backend]})
    >>> store.publish("memory://publication-tables")
    <Publication of checkpoint 1 to memory://publication-tables: people.city>
    """

    url: str
    "The place, as engines find it."
    checkpoint_id: int
    "The checkpoint that the tables have now."
    tables: tuple[PublishedTable, ...]
    "Those of the checkpoint."
    bytes_written: int = 0
    "Of metadata, manifests and deleted rows; twins of run files are not counted."

    def __repr__(self) -> str:
        names = ", ".join(f"{table.operator}.{table.state}" for table in self.tables)
        return f"<Publication of checkpoint {self.checkpoint_id} to {self.url}: {names}>"

    def __getitem__(self, state: str) -> PublishedTable:
        """Return a table by `operator.state`."""
        for table in self.tables:
            if f"{table.operator}.{table.state}" == state:
                return table
        there = ", ".join(f"{table.operator}.{table.state}" for table in self.tables)
        raise NotFoundError(f"no table {state!r} was published; there are {there or 'none'}")


class Publisher:
    """Publishes a store to a place; one that is kept reads less than a new one."""

    def __init__(
        self,
        storage: Storage,
        store_id: str,
        target: Storage,
        publish: Publish,
        *,
        clock_ms: Callable[[], int] = now_ms,
        new_id: Callable[[], str] = new_id,
        is_erasing: bool = False,
    ) -> None:
        check_place(storage, target)
        self._is_erasing = is_erasing
        self._storage, self._store_id, self._target = storage, store_id, target
        self._version, self._states, self._history = publish.version, publish.names, publish.history
        self._clock_ms, self._new_id = clock_ms, new_id
        self._files = Files(target)
        self._log = CommitLog(storage)

    def publish(self) -> Publication:
        """Bring all tables to the newest checkpoint; see `StateStore.publish`."""
        checkpoints = _Checkpoints(self._storage, self._target, self._log)
        written = self._files.bytes_written
        names = self._names(checkpoints)
        holding = _Holding(self._storage, self._target, self._version, self._clock_ms, self._new_id)
        tables, listed = [], set()
        for name in names:
            made = self._brought_forward(self._table(name), checkpoints, holding)
            if made is not None:
                version, is_new = made
                if self._is_erasing:
                    self._table(name).erase_others(version)
                listed |= _numbers(version.metadata["snapshots"])
                if name in checkpoints.newest_tables.names:
                    tables.append(self._described(name, version, is_new=is_new))
        for name in published_names(self._target) if self._states is not None else ():
            other = None if name in names else newest_version(self._target, "/".join(name))
            listed |= set() if other is None else _numbers(other.metadata["snapshots"])
        holding.release(listed)
        checkpoint_id = checkpoints.newest.document.checkpoint_id
        assert checkpoint_id is not None, "a fence is no checkpoint"
        place = place_of(self._target)
        return Publication(place, checkpoint_id, tuple(tables), self._files.bytes_written - written)

    def _names(self, checkpoints: _Checkpoints) -> list[tuple[str, str]]:
        """Return the tables to bring forward: those of the newest checkpoint, then those that it has no more."""
        tables = checkpoints.newest_tables
        published = published_names(self._target)
        if self._states is None:
            wanted = tables.names
        else:
            wanted = [name for name in tables.names if name in self._states]
            for name in self._states:
                if name not in wanted and name not in published:
                    have = ", ".join(".".join(each) for each in tables.names) or "none"
                    raise NotFoundError(
                        f"no state {'.'.join(name)!r} to publish; checkpoint "
                        f"{checkpoints.newest.document.checkpoint_id} has {have}"
                    )
        for name in wanted:
            # A column that no table can hold is refused before anything is written.
            iceberg_schema(tables.columns(*name)[0], self._version)
        own = published if self._states is None else self._states
        return [*wanted, *(name for name in own if name not in wanted)]

    def _table(self, name: tuple[str, str]) -> Table:
        return Table(self._files, self._store_id, place_of(self._storage), *name, self._version)

    def _described(self, name: tuple[str, str], version: Version, *, is_new: bool) -> PublishedTable:
        current = version.current
        assert current is not None, "a version that was made here has a snapshot"
        path = f"{'/'.join(name)}/metadata/v{version.number}.metadata.json"
        checkpoint_id = int(current["summary"][CHECKPOINT])
        return PublishedTable(*name, place_of(self._target, path), version.number, checkpoint_id, is_new)

    def _brought_forward(
        self, table: Table, checkpoints: _Checkpoints, holding: _Holding
    ) -> tuple[Version, bool] | None:
        """Return the version that has the newest checkpoint, and whether it was made here; None where there is none."""
        # A manifest that goes on from another has the bounds of the files that it dropped.
        is_damaged = self._is_erasing
        for _ in range(_ATTEMPTS):
            before = table.newest()
            if before is not None and (
                _number(before.current) > checkpoints.newest.document.number
                or not all(map(holding.has, before.metadata["snapshots"]))
            ):
                # Another publisher knows of a later checkpoint, or the log has lost it.
                checkpoints.look_again()
                holding.look_again()
            is_there = table.name_in_store in checkpoints.newest_tables.names
            if before is not None:
                if not is_there and not table.is_own(before):
                    return None
                table.check(before)
                table.delete_unneeded(before)
            plan = self._plan(table, before, checkpoints, holding, begins_anew=is_damaged)
            if not is_there and all(_is_empty(item) for item in plan.kept):
                # It was dropped, and no checkpoint that is listed has a row of it.
                return None
            if before is not None and plan.changes_nothing(before):
                return before, False
            new = [item for item in plan.new if holding.hold(item, is_needed=item is checkpoints.newest)]
            added = [PublishedCheckpoint(entry, checkpoints.tables(entry)) for entry in new]
            try:
                metadata = table.metadata_after(before, base=plan.base, kept=plan.kept, new=added, refs=plan.tags)
            except MissingFileError:
                if plan.base is None:
                    raise
                # Somebody deleted a manifest; the log has all that is needed.
                is_damaged = True
                continue
            after = table.commit(before, metadata)
            if after is not None:
                return after, True
        raise StorageError(table.folder, f"other publishers were first {_ATTEMPTS} times; let one publish at a time")

    def _plan(
        self,
        table: Table,
        before: Version | None,
        checkpoints: _Checkpoints,
        holding: _Holding,
        *,
        begins_anew: bool,
    ) -> _Plan:
        """Return what the next version lists; it depends on the version before and on the store alone."""
        newest = checkpoints.newest.document.number
        listed = [] if before is None else [item for item in before.metadata["snapshots"] if holding.has(item)]
        base = None if before is None else before.current
        is_moved = begins_anew or before is None or table.is_of_another_place(before)
        if base is None or base not in listed or is_moved or _number(base) > newest:
            # Nothing of the version can be gone on from: it was moved, or its checkpoints are gone.
            listed, base = [], None
        since = None if base is None else _number(base)
        tags = {tag: entry for tag, entry in holding.tags.items() if entry.number <= newest and not self._is_erasing}
        there = _numbers(listed)
        new = {entry.document.number: entry for entry in checkpoints.after(since, self._history)}
        for tagged in tags.values():
            if tagged.number not in there and tagged.number not in new:
                entry = checkpoints.at(tagged)
                if entry is not None and table.name_in_store in checkpoints.tables(entry).names:
                    new[tagged.number] = entry
        if base is None:
            new = {
                number: entry for number, entry in new.items() if table.name_in_store in checkpoints.tables(entry).names
            }
        stay = set(sorted({*there, *new})[-self._history :]) | {tagged.number for tagged in tags.values()}
        kept = [item for item in listed if _number(item) in stay]
        added = [new[number] for number in sorted(new) if number in stay]
        return _Plan(base, kept, added, {tag: entry.number for tag, entry in tags.items()})


class _Plan(Struct, frozen=True):
    """What the next version of a table lists."""

    base: Json | None
    "The snapshot that the first new one changes."
    kept: list[Json]
    new: list[CommittedEntry]
    "In the order of the log."
    tags: dict[str, int]
    "The number of the log entry of each tag of the store."

    def changes_nothing(self, before: Version) -> bool:
        """Whether a version lists all that already."""
        snapshots = before.metadata["snapshots"]
        ids = {_number(item): item["snapshot-id"] for item in self.kept}
        tags = {tag: ids[number] for tag, number in self.tags.items() if number in ids and tag != MAIN}
        have = {tag: ref["snapshot-id"] for tag, ref in before.metadata["refs"].items() if tag != MAIN}
        return not self.new and self.kept == snapshots and tags == have


def open_publisher(
    storage: Storage,
    store_id: str,
    publish: Publish,
    *,
    clock_ms: Callable[[], int] = now_ms,
    new_id: Callable[[], str] = new_id,
) -> Publisher:
    """Return what publishes a store as it is asked for."""
    options = publish.storage_options
    if options is None:
        options = options_beside(storage, publish.to)
    target = open_storage(publish.to, create=True, storage_options=options)
    return Publisher(storage, store_id, target, publish, clock_ms=clock_ms, new_id=new_id)


class _Checkpoints:
    """The checkpoints of a store as tables; each is read once."""

    def __init__(self, storage: Storage, target: Storage, log: CommitLog) -> None:
        self._storage, self._target, self._log = storage, target, log
        self.look_again()

    def look_again(self) -> None:
        """Take the log as it is now."""
        self._walk = self._log.history().checkpoints()
        newest = next(self._walk, None)
        if newest is None:
            raise CheckpointNotFoundError(None, [])
        self.newest = newest
        self._walked = [newest]
        self._tables: dict[int, CheckpointTables] = {}

    @property
    def newest_tables(self) -> CheckpointTables:
        return self.tables(self.newest)

    def tables(self, entry: CommittedEntry) -> CheckpointTables:
        """Return the tables of a checkpoint."""
        number = entry.document.number
        if number not in self._tables:
            self._tables[number] = CheckpointTables(self._storage, self._target, entry.document)
        return self._tables[number]

    def after(self, number: int | None, most: int) -> list[CommittedEntry]:
        """Return the newest checkpoints after an entry, at most so many; after none the newest alone."""
        if number is None:
            return [self.newest]
        while len(self._walked) < most and self._walked[-1].document.number > number:
            following = next(self._walk, None)
            if following is None:
                break
            self._walked.append(following)
        return [entry for entry in self._walked[:most] if entry.document.number > number]

    def at(self, place: ParentDocument) -> CommittedEntry | None:
        """Return an entry, None if it is gone."""
        entry = self._log.get(place.number)
        return None if entry is None or entry.as_parent != place else entry


class _Holding:
    """The tags by which a publication holds the checkpoints that it lists, and those of everybody else."""

    def __init__(
        self,
        storage: Storage,
        target: Storage,
        version: int,
        clock_ms: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._storage, self._clock_ms, self._new_id = storage, clock_ms, new_id
        self._says = {PLACE_KEY: {"url": place_of(target), "version": version}}
        self._start = f"{OWN_TAGS}{xxhash.xxh3_64_hexdigest(place_of(target).encode())[:8]}-"
        self.look_again()

    def look_again(self) -> None:
        """Take the tags as they are now."""
        pins = {pin.tag: pin.entry for pin in read_pins(self._storage) if pin.tag is not None}
        self._held = {tag: entry for tag, entry in pins.items() if tag.startswith(self._start)}
        self.tags = {tag: entry for tag, entry in pins.items() if not tag.startswith(OWN_TAGS)}

    def has(self, snapshot: Json) -> bool:
        """Whether the checkpoint of a snapshot is held."""
        found = self._held.get(f"{self._start}{_number(snapshot)}")
        return found is not None and found.xxh3_128 == snapshot["summary"][ENTRY]

    def hold(self, entry: CommittedEntry, *, is_needed: bool) -> bool:
        """Hold a checkpoint; return whether it is held, or raise if one that is needed is gone."""
        tag, document = f"{self._start}{entry.document.number}", entry.document
        if self._held.get(tag) == entry.as_parent:
            return True
        assert document.checkpoint_id is not None, "a fence is no checkpoint"
        try:
            with reading_checkpoint(self._storage, document):
                files = ReferenceReader(self._storage).files(document.operators)
                is_held = self._put(tag, entry, files)
        except (CorruptDataError, CollectedError):
            if is_needed:
                raise
            is_held = False
        if is_held:
            self._held[tag] = entry.as_parent
        elif is_needed:
            raise CheckpointNotFoundError(document.checkpoint_id, [])
        return is_held

    def _put(self, tag: str, entry: CommittedEntry, files: Collection[str]) -> bool:
        there = read_tag(self._storage, tag)
        if there is not None:
            # Another publisher to the same place has put it.
            return there.entry == entry.as_parent
        checkpoint_id = entry.document.checkpoint_id
        assert checkpoint_id is not None, "a fence is no checkpoint"
        try:
            return put_tag(
                self._storage,
                tag,
                checkpoint_id,
                entry.as_parent,
                files=files,
                tag_id=self._new_id(),
                now_ms=self._clock_ms(),
                extensions=self._says,
            )
        except InvalidInputError:
            there = read_tag(self._storage, tag)
            return there is not None and there.entry == entry.as_parent

    def release(self, listed: Collection[int]) -> None:
        """Hold no more what no table lists."""
        for tag in sorted(self._held):
            if int(tag.removeprefix(self._start)) not in listed:
                self._storage.delete(f"{TAG_FOLDER}{tag}.json")
                del self._held[tag]


def published_names(target: Storage) -> list[tuple[str, str]]:
    """Return (operator uid, state) of each table in a place."""
    folders, _ = listed_level(target, "")
    return [(uid, name) for uid in folders for name in listed_level(target, uid)[0]]


def check_place(storage: Storage, target: Storage) -> None:
    """Refuse a place inside the store, whose collections would stop, and one by which engines find no files."""
    store, place = (f"{place_of(each)}/" for each in (storage, target))
    if place.startswith(store) or store.startswith(place):
        raise InvalidInputError(
            "a store and its publication must be in two folders, neither inside the other; the store is "
            f"{store}, asked for was {place}"
        )
    if store.startswith("memory:") and not place.startswith("memory:"):
        raise InvalidInputError(
            f"tables in {place} would name files in the memory of this process, {store}, which no engine reads; "
            "keep the store in a folder or a bucket"
        )
    for url in (store, place):
        if any(sign in url for sign in "?#%"):
            raise InvalidInputError(f"engines take ?, # and % in a path for something else; rename the folder {url}")


def _number(snapshot: Json | None) -> int:
    return -1 if snapshot is None else int(snapshot["summary"][NUMBER])


def _numbers(snapshots: Iterable[Json]) -> set[int]:
    return {_number(item) for item in snapshots}


def _is_empty(snapshot: Json) -> bool:
    return bool(snapshot["summary"]["total-data-files"] == "0")


def erase_published(
    storage: Storage, store_id: str, *, clock_ms: Callable[[], int], new_id: Callable[[], str]
) -> tuple[str, ...]:
    """Have all publications of a store show its newest checkpoint alone, and delete what the others had.

    Return the places where that failed, each with the reason. They are known by the tags of the store.
    """
    found = [pin.extensions[PLACE_KEY] for pin in read_pins(storage) if PLACE_KEY in pin.extensions]
    failed = []
    for url, version in sorted({(str(said["url"]), int(said["version"])) for said in found}):
        try:
            target = open_storage(url, storage_options=options_beside(storage, url))
            publish = Publish(to=url, version=version, history=1)
            Publisher(storage, store_id, target, publish, clock_ms=clock_ms, new_id=new_id, is_erasing=True).publish()
        except (ArrowStateError, OSError) as error:
            failed.append(f"{url}: {error}")
    return tuple(failed)
