"""A store published as open tables, one for each keyed state and each output table.

A publication is derived from the log and never the truth: any process may make it, as often as it likes. It is made
after a commit and is no part of it. Each checkpoint that a table lists is held by a tag of the publication, which is
put before the table names the checkpoint and removed after the table names it no more; so what a table lists can be
read, whatever is collected. Specification: formats/spec/publication.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from arrowstate.clock import new_id, now_ms
from arrowstate.errors import ArrowStateError, CorruptDataError, InvalidInputError, NotFoundError
from arrowstate.log.commit_log import CommitLog
from arrowstate.log.pins import read_pins
from arrowstate.publish.content import place_of
from arrowstate.publish.delta_table import LOG_FOLDER, DeltaTable
from arrowstate.publish.held import Checkpoints, Holding, published_place
from arrowstate.publish.table import METADATA_FOLDER, Files, Table
from arrowstate.publish.types import TableForm, TableFormat
from arrowstate.storage.base import Storage, listed_level
from arrowstate.storage.registry import open_storage, options_beside

DEFAULT_HISTORY = 10
"""So many checkpoints a table lists."""
_FOLDERS: dict[TableFormat, str] = {"iceberg": METADATA_FOLDER, "delta": LOG_FOLDER}
"""By which folder in that of a table its format is known."""


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
    """3, or 2 for engines that do not read deletion vectors."""
    states: Sequence[str | tuple[str, str]] | None = None
    """"operator.state", or (operator, state), of each table; None for all."""
    history: int = DEFAULT_HISTORY
    """So many checkpoints the tables list; Iceberg those with a tag too, Delta up to nine more."""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    """As in `open_store`; None for those of the store, if the place is in the same object storage."""

    def __post_init__(self) -> None:
        if self.format not in get_args(TableFormat):
            known = " or ".join(map(repr, get_args(TableFormat)))
            raise InvalidInputError(f"the format of a publication is {known}, got {self.format!r}")
        if self.version not in (2, 3):
            raise InvalidInputError(f"the version of published tables is 2 or 3, got {self.version!r}")
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
    "The URL by which engines find the table: in Iceberg of the newest metadata, in Delta of the folder."
    version: int
    "The number of the table's newest version."
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
        self._form = TableForm(publish.format, publish.version)
        self._states, self._history = publish.names, publish.history
        self._clock_ms, self._new_id = clock_ms, new_id
        self._files = Files(target)

    def publish(self) -> Publication:
        """Bring all tables to the newest checkpoint; see `StateStore.publish`."""
        # The log anew each time: a backup may have taken the place of what was known of it.
        checkpoints = Checkpoints(self._storage, self._target, CommitLog(self._storage))
        written = self._files.bytes_written
        there = published_names(self._target)
        if self._is_erasing:
            # Who published some of the states keeps the others to himself.
            tables = [table for name in there for table in self._own(name)]
        else:
            tables = [self._table(name, self._form) for name in self._names(checkpoints, there)]
        for table in tables:
            # Where one is refused none is written.
            self._check(table, checkpoints)
            table.look(checkpoints)
        if not self._is_erasing:
            self._refuse_other_format(tables, checkpoints, there)
        holding = self._holding(tables, checkpoints)
        published: list[PublishedTable] = []
        listed: set[int] = set()
        try:
            for table in tables:
                made = table.brought_forward(checkpoints, holding)
                if made is not None:
                    listed |= made.listed
                    if table.name_in_store in checkpoints.newest_tables.names:
                        published.append(
                            PublishedTable(
                                *table.name_in_store, made.url, made.version, made.checkpoint_id, made.is_new
                            )
                        )
        except (InvalidInputError, CorruptDataError):
            # This comes again and again, and must not hold a checkpoint more each time. A slower publisher of the same
            # tables may lose one that it is about to list; it fails as this one does at the next.
            with suppress(ArrowStateError, OSError):
                there_now = set().union(*(table.listed() for table in tables))
                holding.release(there_now, up_to=checkpoints.newest.document.number)
            raise
        holding.release(listed, up_to=checkpoints.newest.document.number)
        checkpoint_id = checkpoints.newest.document.checkpoint_id
        assert checkpoint_id is not None, "a fence is no checkpoint"
        place = place_of(self._target)
        return Publication(place, checkpoint_id, tuple(published), self._files.bytes_written - written)

    def _holding(self, tables: Sequence[Table | DeltaTable], checkpoints: Checkpoints) -> Holding:
        """Return the tags of those who publish the same tables."""
        names = [
            table.name_in_store
            for table in tables
            if table.is_published or table.name_in_store in checkpoints.newest_tables.names
        ]
        return Holding(
            self._storage,
            self._target,
            names,
            is_of_all=self._states is None,
            clock_ms=self._clock_ms,
            new_id=self._new_id,
        )

    def _check(self, table: Table | DeltaTable, checkpoints: Checkpoints) -> None:
        """Refuse a column that the table cannot hold."""
        name, tables = table.name_in_store, checkpoints.newest_tables
        if name in tables.names:
            table.form.check(tables.columns(*name)[0], ".".join(name))

    def _refuse_other_format(
        self, tables: Sequence[Table | DeltaTable], checkpoints: Checkpoints, there: Collection[tuple[str, str]]
    ) -> None:
        """Refuse a place with a table of the other format, of this store or where a table is to be made."""
        found = {table.name_in_store for table in tables if table.is_published}
        new = {table.name_in_store for table in tables if table.name_in_store in checkpoints.newest_tables.names}
        for name in there:
            for table in self._lying(name) if name not in found else ():
                if table.form.format != self._form.format and (name in new or table.published_form() is not None):
                    raise InvalidInputError(
                        f"{place_of(self._target, table.folder)} has a table of another format; publish to another "
                        "place, or delete the folder"
                    )

    def _lying(self, name: tuple[str, str]) -> list[Table | DeltaTable]:
        """Return what lies in the folder of a table, of any store: a table of each format."""
        folders, _ = listed_level(self._target, "/".join(name))
        return [self._table(name, TableForm(format, 3)) for format, own in _FOLDERS.items() if own in folders]

    def _own(self, name: tuple[str, str]) -> list[Table | DeltaTable]:
        """Return the table of this store that lies in a folder, in the form that it has; none where there is none."""
        forms = [form for table in self._lying(name) if (form := table.published_form()) is not None]
        if len(forms) > 1 or any(form.version not in (2, 3) for form in forms):
            has = " and ".join(f"{form.format} version {form.version}" for form in forms)
            raise InvalidInputError(
                f"{place_of(self._target, '/'.join(name))} has a table of {has}; what can be erased is one table in "
                "version 2 or 3: delete the folder, and purge once more"
            )
        return [self._table(name, form) for form in forms]

    def _names(self, checkpoints: Checkpoints, published: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the tables to bring forward: those of the newest checkpoint, then those that it has no more."""
        tables = checkpoints.newest_tables
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
        own = published if self._states is None else self._states
        return [*wanted, *(name for name in own if name not in wanted)]

    def _table(self, name: tuple[str, str], form: TableForm) -> Table | DeltaTable:
        how: dict[str, Any] = {"history": self._history, "is_erasing": self._is_erasing}
        if form.format == "delta":
            return DeltaTable(self._files, self._store_id, name, form, **how)
        return Table(self._files, self._store_id, place_of(self._storage), name, form, **how)


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


def erase_published(
    storage: Storage, store_id: str, *, clock_ms: Callable[[], int], new_id: Callable[[], str]
) -> tuple[str, ...]:
    """Have all publications of a store show its newest checkpoint alone, and delete what the others had.

    Return the places where that failed, each with the reason. They are known by the tags of the store. Which tables are
    in a place is known by its folders alone: they may have been deleted and published again in another form.
    """
    failed = []
    places = {place for pin in read_pins(storage) if (place := published_place(pin)) is not None}
    for url in sorted(places):
        try:
            target = open_storage(url, storage_options=options_beside(storage, url))
            publish = Publish(to=url, history=1)
            Publisher(storage, store_id, target, publish, clock_ms=clock_ms, new_id=new_id, is_erasing=True).publish()
        except (ArrowStateError, OSError) as error:
            failed.append(f"{url}: {error}")
    return tuple(failed)
