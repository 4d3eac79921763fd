"""Sources of files in a folder: Parquet, CSV, JSON and Arrow.

A split is a file. Its position has the number of the next row, and the size and the version of the file when it was
begun: a file that is another one by then has no such row, and is an error. So files must be complete when they are
seen; a writer gives them their names last, or names that are left out until then.
"""

from __future__ import annotations

import datetime
import glob
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from arrowstate.errors import InvalidInputError, SourceError
from arrowstate.runtime.connectors import Reader, Source, Split
from arrowstate.runtime.sources.file_formats import FORMATS, TEXTS, Misfit, check_types
from arrowstate.runtime.sources.reading import ChunkedSplit, SplitsReader, checked_schema, row_number
from arrowstate.storage.registry import options_of
from arrowstate_formats.integers import check_integer

Format = Literal["parquet", "csv", "json", "arrow"]

_VERSION_KEYS = ("ETag", "etag", "generation", "mtime", "LastModified", "last_modified", "updated", "created")
"""What filesystems say of a file that is another value once it was written again, the surest first."""

_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "created")


class FileSource(Source):
    """The rows of the files in a folder and below it.

    Files are read in the order of their modification, then of their names. Files are left out if their name, or that
    of a folder above them, begins with `.` or `_`, or if their name ends with `.tmp` or `.inprogress`. A file must be
    complete when it gets its name, and must not change until it was read and a checkpoint was taken.

    Parameters
    ----------
    path : str or PathLike
        A folder, or a pattern such as `/data/2026-*/*.csv`; local, or a URL that fsspec opens.
    format : {"parquet", "csv", "json", "arrow"}, default "parquet"
        CSV has the names of its columns in the first line; an empty field without quotes is null, and a quote that is
        never closed is an error of the row with it. JSON has an object a line; a missing member is null. Lines of both
        have 4 MiB at most, and blank lines are passed over. Files of both may be compressed if their names say so
        (`.gz`, `.bz2`, `.zst`, `.lz4`). Arrow is the file format or the stream format of Arrow IPC.
    schema : pa.Schema, optional
        The columns to read, by their names; other columns of the files are left out. Numbers, texts, bytes and times
        of other widths are converted if nothing is lost, but a narrower float is rounded. By default it is the schema
        of the oldest file; for CSV and JSON it is required.
    is_bounded : bool, default True
        Whether it reads only the files that exist when the job starts; otherwise it looks for new files for ever.
    discovery_ms : int, default 10_000
        How often it looks for new files, in milliseconds.
    storage_options : mapping, optional
        Options of the fsspec filesystem.

    Raises
    ------
    InvalidInputError
        If there is no schema, or CSV or JSON cannot be read as a type in it. At the first start of a job with a bounded
        source: if no file matches the pattern, or there is no such folder; a folder may be empty.
    SourceError
        While reading: if a file is cut short, was changed after it was begun, or has rows that do not fit. It names
        the file, the position and, where it is known, the row.

    Notes
    -----
    A position is a struct: `row` int64, the number of the next row in the file; `size_bytes` int64 and `version`
    string, of the file when it was begun. To go on inside a file, Parquet reads from the row group of the row, Arrow
    from its record batch; CSV and JSON are parsed from the beginning. A look for files of a pattern in a bucket lists
    all that is below the part before its first `*`, `?` or `[`.

    Examples
    --------
    >>> import tempfile, pathlib, pyarrow as pa
    >>> from arrowstate.runtime import FileSource
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = pathlib.Path(folder.name, "one.csv").write_text("user,amount\\nann,3\\nbob,5\\n")
    >>> source = FileSource(folder.name, "csv", schema=pa.schema({"amount": pa.int64()}))
    >>> reader = source.reader()
    >>> reader.add(source.discover(known=()))
    >>> batch = reader.read(max_rows=100)
    >>> batch.split, batch.rows.to_pydict(), batch.position["row"]
    ('one.csv', {'amount': [3, 5]}, 2)
    >>> reader.close(); folder.cleanup()
    """

    is_sequential = True
    position_type = pa.struct({"row": pa.int64(), "size_bytes": pa.int64(), "version": pa.string()})

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: Format = "parquet",
        *,
        schema: pa.Schema | None = None,
        is_bounded: bool = True,
        discovery_ms: int = 10_000,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if format not in FORMATS:
            raise InvalidInputError(f"format must be one of {', '.join(get_args(Format))}, got {format!r}")
        self.path = os.fspath(path)
        if "://" not in self.path:
            self.path = str(os.path.abspath(os.path.expanduser(self.path)))  # noqa: PTH100, PTH111  # it may be a pattern
        self.format = format
        self.is_bounded = is_bounded
        self.discovery_ms = check_integer("discovery_ms", discovery_ms, 0, 2**40, unit="milliseconds")
        self.storage_options = options_of("storage_options", storage_options)
        self.schema = checked_schema(self._first_schema() if schema is None else schema)
        if format in TEXTS:
            check_types(format, self.schema)

    def discover(self, known: Collection[str]) -> Sequence[Split]:
        """Return the files that are not known, the one that was modified first before the others."""
        known = frozenset(known)
        names = self._names()
        if self.is_bounded and not names and not known and not _Folder(self.path, self.storage_options).is_there:
            raise InvalidInputError(
                f"there is no file for {self.path!r}, and a bounded source needs one when its job starts for the first "
                "time; mend the path, or wait for files with is_bounded=False"
            )
        return [Split(name) for name in names if name not in known]

    def reader(self) -> Reader:
        """Return a reader that reads one file after the other."""
        folder = _Folder(self.path, self.storage_options)
        return SplitsReader(lambda split: _FileSplit(self, folder, split), in_turn=False)

    def _names(self) -> list[str]:
        found = _Folder(self.path, self.storage_options).list()
        return sorted(found, key=lambda name: (_modified(found[name]), name))

    def _first_schema(self) -> pa.Schema:
        if self.format in TEXTS:
            raise InvalidInputError(f"a source of {self.format} files needs a schema: schema=pa.schema({{...}})")
        for name in self._names():
            with _Folder(self.path, self.storage_options).open(name) as file:
                try:
                    return FORMATS[self.format](file, name).schema
                except (pa.ArrowException, OSError, EOFError) as error:
                    raise SourceError(name, None, f"no whole {self.format} file: {error}") from error
        folder = _Folder(self.path, self.storage_options)
        problem = f"there is no file in {self.path} that has a schema; give one"
        if not folder.is_pattern and not folder.is_there:
            problem = f"there is no folder {self.path}; mend the path, or give a schema"
        raise InvalidInputError(f"{problem}: schema=pa.schema({{...}})")


class _Folder:
    """The files below a folder, or of a pattern, by their paths in it."""

    def __init__(self, path: str, storage_options: Mapping[str, Any]) -> None:
        self._files, self._path = fsspec.core.url_to_fs(path, **storage_options)
        self.is_local = "file" in self._files.protocol
        # A folder may have the name of a pattern.
        self.is_pattern = glob.has_magic(self._path) and not self._files.exists(self._path)
        parts = self._path.split("/")
        plain = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts))
        self._root = "/".join(parts[:plain] if self.is_pattern else parts).rstrip("/")
        if self.is_local:
            self._files = _LocalFiles(self._root)

    def list(self) -> dict[str, dict[str, Any]]:
        """Return what the filesystem says of each file that is not left out."""
        self._files.invalidate_cache()
        try:
            if self.is_pattern and self.is_local:
                found = self._files.glob(self._path, detail=True)
            else:
                found = self._files.find(self._root, detail=True)
        except _NotListedError as error:
            raise error.error from None
        if self.is_pattern and not self.is_local:
            # The `glob` of a bucket passes over a folder that it may not list, or not now; `find` raises.
            fits = re.compile(glob_translate(self._path)).match
            found = {path: info for path, info in found.items() if fits(path)}
        # The name of an object that marks a folder ends with a slash.
        names = {self._name(path): info for path, info in found.items() if not path.endswith("/")}
        # A file that is the path itself is not hidden by its name.
        is_one = list(found) == [self._root] and not self.is_pattern
        shown = {name: info for name, info in names.items() if name and (is_one or not _is_hidden(name))}
        if self.is_local:
            shown = {name: info for name in shown if (info := _local_info(self._path_of(name))) is not None}
        files = {name: info for name, info in shown.items() if info["type"] == "file"}
        for name in files:
            _check_name(name)
        return files

    @property
    def is_there(self) -> bool:
        """Whether it is a folder that exists."""
        return not self.is_pattern and bool(self._files.exists(self._path))

    def _name(self, path: str) -> str:
        # The path may be that of one file.
        return path[len(self._root) + 1 :] if path != self._root else path.rpartition("/")[2]

    def _path_of(self, name: str) -> str:
        path = f"{self._root}/{name}"
        return self._root if self._root.endswith(f"/{name}") and self._files.isfile(self._root) else path

    def info(self, name: str) -> dict[str, Any]:
        """Return what the filesystem says of a file now."""
        path = self._path_of(name)
        if self.is_local:
            info = _local_info(path)
            if info is None:
                raise FileNotFoundError(path)
            return info
        self._files.invalidate_cache()
        return self._files.info(path)

    def open(self, name: str) -> pa.NativeFile:
        """Return a file; a local one is read, not mapped, for a file that is cut then would end the process."""
        path = self._path_of(name)
        if self.is_local:
            return pa.OSFile(path)
        return pa.PythonFile(self._files.open(path, "rb"), mode="r")


class _NotListedError(Exception):  # it becomes the error that it has
    """A folder could not be listed."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class _LocalFiles(LocalFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """The files below a folder, where one that cannot be listed is an error, and those that are hidden are empty."""

    cachable = False

    def __init__(self, root: str) -> None:
        super().__init__()
        self._top = root

    def ls(self, path: str, detail: bool = False, **options: Any) -> list[Any]:
        """Return what is in a folder."""
        if path != self._top and path.rpartition("/")[2][:1] in (".", "_"):
            return []
        try:
            found: list[Any] = super().ls(path, detail=detail, **options)
        except FileNotFoundError:
            # It is gone meanwhile.
            raise
        except OSError as error:
            # fsspec's search passes over a folder with an error of the system.
            raise _NotListedError(error) from None
        return found


class _FileSplit(ChunkedSplit):
    """A file while it is read: its size and version are compared before and after."""

    def __init__(self, source: FileSource, folder: _Folder, split: Split) -> None:
        position = split.position
        if position is not None and not (isinstance(position, dict) and position.keys() == _POSITION_NAMES):
            detail = f"a position must have {', '.join(sorted(_POSITION_NAMES))}, got {position!r}"
            raise SourceError(split.id, position, detail)
        row = row_number(split, None if position is None else position["row"])
        self._source = source
        self._folder = folder
        self._file: pa.NativeFile | None = None
        self._begun = (None, None) if position is None else (position["size_bytes"], position["version"])
        self._position_given = position
        super().__init__(split, self._rows(row), source.schema, row)

    @property
    def position(self) -> Any:
        """The number of the next row, and what file it is of."""
        if self._begun == (None, None):
            return None
        size_bytes, version = self._begun
        return {"row": self.row, "size_bytes": size_bytes, "version": version}

    def close(self) -> None:
        """Close the file."""
        super().close()
        if self._file is not None:
            self._file.close()

    def _rows(self, row: int) -> Iterator[pa.RecordBatch]:
        name = self._split.id
        self._check_unchanged()
        self._file = self._folder.open(name)
        try:
            rows = FORMATS[self._source.format](self._file, name)
        except (pa.ArrowException, OSError, EOFError) as error:
            self._check_unchanged()
            detail = f"no whole {self._source.format} file: {error}"
            raise SourceError(name, self.position, detail) from self._of_arrow(error)
        try:
            yield from rows.batches(self._source.schema, row)
            if self.row > rows.count:
                raise Misfit(f"the file has only {rows.count} rows")
        except Misfit as error:
            self._check_unchanged()
            raise SourceError(name, self.position, error.detail, error.row) from error.__cause__
        except (pa.ArrowException, OSError, EOFError) as error:
            # What was changed while it was read is no cut file.
            self._check_unchanged()
            found = rows.row_of(error)
            detail = f"{type(error).__name__}: {error}"
            raise SourceError(name, self.position, detail, found) from self._of_arrow(error)
        self._check_unchanged()

    def _of_arrow(self, error: Exception) -> Exception:
        """Return an error as the cause of one that another attempt would find again, or would not.

        Arrow tells bytes that cannot be decompressed as it tells a disk that does not answer, but without a number.
        """
        if not self._folder.is_local or type(error) is not OSError or error.errno is not None:
            return error
        told = pa.ArrowInvalid(str(error))
        told.__cause__ = error
        return told

    def _check_unchanged(self) -> None:
        name = self._split.id
        try:
            info = self._folder.info(name)
        except FileNotFoundError as error:
            raise SourceError(name, self.position, "the file is gone") from error
        now = (info["size"], _version(info))
        if self._begun == (None, None):
            self._begun = now
        elif now != self._begun:
            before, after = (f"{size} bytes, version {version}" for size, version in (self._begun, now))
            detail = f"the file was changed after it was begun: it had {before}, and has {after}"
            raise SourceError(name, self.position, detail)


_POSITION_NAMES = {field.name for field in FileSource.position_type}


def _local_info(path: str) -> dict[str, Any] | None:
    """Return what is known of a local file, that at the end of a link; None if there is nothing."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return None
    kind = "file" if stat.S_ISREG(status.st_mode) else "other"
    return {"type": kind, "size": status.st_size, "mtime": status.st_mtime, "generation": status.st_mtime_ns}


def _is_hidden(name: str) -> bool:
    return any(part[:1] in (".", "_") for part in name.split("/")) or name.endswith((".tmp", ".inprogress"))


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        problem = f"the name of the file {name!a} is not UTF-8, so no checkpoint can have it; give it another"
        raise InvalidInputError(problem) from None


def _version(info: Mapping[str, Any]) -> str:
    return next((str(info[key]) for key in _VERSION_KEYS if info.get(key) is not None), "")


def _modified(info: Mapping[str, Any]) -> float:
    found = next((info[key] for key in _TIME_KEYS if info.get(key) is not None), 0.0)
    if isinstance(found, str):
        found = datetime.datetime.fromisoformat(found)
    return found.timestamp() if isinstance(found, datetime.datetime) else float(found)
