"""What the streams of a snapshot promise, on any storage."""

from __future__ import annotations

import gc
import itertools
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest

from arrowstate.errors import CheckpointCancelledError, InvalidInputError, NameTakenError, StorageError
from arrowstate.files.streams import CheckpointOutputStream, CheckpointStreamFactory
from arrowstate.storage import LocalStorage, ObjectStorage, Storage
from arrowstate_formats.run_files import checksum

FOLDER = "data/counter/clicks"
LIMIT = 1000


class _Observed:
    """A storage that tells what it was given and what it has, and fails where it is told to."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._before = _everything(storage)
        self.given = 0
        self.unfinished = 0
        self.deleted: list[str] = []
        self.fails_after_bytes: int | None = None
        self.loses_answers = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def write_file(self, path: str) -> Any:
        return _Block(self, path, self._storage.write_file(path))

    def delete(self, path: str) -> None:
        self.deleted.append(path)
        self._storage.delete(path)

    def left(self) -> set[str]:
        """Return what there is now and was not before, unfinished files too; all that was there before must be."""
        assert self.unfinished == 0
        now = _everything(self._storage)
        assert now >= self._before
        return now - self._before


class _Block:
    """A new file whose writes are observed, and whose end must be told: dropping it is not enough."""

    def __init__(self, observed: _Observed, path: str, block: AbstractContextManager[BinaryIO]) -> None:
        self._observed = observed
        self._path = path
        self._block = block

    def __enter__(self) -> _Block:
        self._sink = self._block.__enter__()
        self._observed.unfinished += 1
        return self

    def __exit__(self, *error: Any) -> None:
        self._observed.unfinished -= 1
        self._block.__exit__(*error)
        if self._observed.loses_answers:
            raise StorageError(self._path, "the answer was lost")

    def write(self, data: Any) -> int:
        self._observed.given += len(data)
        limit = self._observed.fails_after_bytes
        if limit is not None and self._observed.given > limit:
            raise StorageError(self._path, "the device is gone")
        return self._sink.write(data)

    def flush(self) -> None:
        self._sink.flush()


def _everything(storage: Storage) -> set[str]:
    folder = None
    if isinstance(storage, LocalStorage):
        folder = Path(storage.url)
    elif isinstance(storage, ObjectStorage):
        # Where files are before they are uploaded.
        folder = Path(storage.options["cache_dir"])
    on_disk = [] if folder is None else folder.rglob("*")
    return {*storage.list(""), *(str(path) for path in on_disk if path.is_file())}


def _make(storage: Any, **named: Any) -> CheckpointStreamFactory:
    names = (f"f{number}" for number in itertools.count())
    return CheckpointStreamFactory(
        storage, inline_bytes=LIMIT, new_id=named.pop("new_id", lambda: next(names)), **named
    )


def _create(storage: Any, **named: Any) -> CheckpointOutputStream:
    return _make(storage, **named).create(FOLDER, "bin")


class CheckpointStreamSuite:
    """The contract of `CheckpointOutputStream`; needs a fixture `storage`, empty at the start.

    Examples
    --------
    A file of tests with this class tries all of it:

    >>> import pytest
    >>> from arrowstate.storage import open_storage
    >>> class TestStreams(CheckpointStreamSuite):
    ...     @pytest.fixture
    ...     def storage(self, tmp_path):
    ...         return open_storage(tmp_path, create=True)
    """

    @pytest.fixture
    def observed(self, storage: Storage) -> _Observed:
        """The storage, observed, with a file in the folder that is nobody's business."""
        with storage.write_file(f"{FOLDER}/other.bin") as file:
            file.write(b"other")
        return _Observed(storage)

    @pytest.mark.parametrize("size", [1, LIMIT - 1])
    def test_bytes_below_the_threshold_are_in_the_handle(self, observed: _Observed, size: int) -> None:
        body = bytes(range(256)) * 4
        factory = _make(observed)

        handle = factory.put(FOLDER, "bin", body[:size])

        assert (handle.data, handle.path, handle.size_bytes) == (body[:size], None, size)
        assert handle.xxh3_128 == checksum(body[:size])
        assert factory.paths == []
        assert observed.left() == set()

    @pytest.mark.parametrize("size", [LIMIT, LIMIT + 1, 40 * LIMIT])
    def test_bytes_from_the_threshold_on_are_in_a_file(self, storage: Storage, observed: _Observed, size: int) -> None:
        body = bytes(range(250)) * (size // 250 + 1)
        factory = _make(observed)

        handle = factory.put(FOLDER, "bin", body[:size])

        assert (handle.data, handle.inline, handle.size_bytes) == (None, None, size)
        assert handle.path == f"{FOLDER}/f0.bin"
        assert handle.xxh3_128 == checksum(body[:size])
        assert factory.paths == [handle.path]
        assert storage.read(handle.path) == body[:size]

    @pytest.mark.parametrize("pieces", [[0, 1, 0], [LIMIT - 1, 0, 1], [400, 400, 400, 0, 9], [3 * LIMIT, 1]])
    def test_pieces_of_any_kind_are_put_together_in_order(self, storage: Storage, pieces: list[int]) -> None:
        body = bytes(range(250)) * 20
        ends = list(itertools.accumulate(pieces))
        stream = _create(storage)

        for size, end, kind in zip(pieces, ends, itertools.cycle([bytes, pa.py_buffer, memoryview]), strict=False):
            assert stream.write(kind(body[end - size : end])) == size
            assert stream.tell() == end
            stream.flush()
        handle = stream.close_and_get_handle()

        assert handle is not None
        written = handle.data if handle.path is None else storage.read(handle.path)
        assert written == body[: ends[-1]]
        assert (handle.path is None) == (ends[-1] < LIMIT)
        assert handle.xxh3_128 == checksum(body[: ends[-1]])

    def test_no_more_than_the_threshold_is_held_back(self, observed: _Observed) -> None:
        with _create(observed) as stream:
            for _ in range(20):
                stream.write(b"x" * 300)

                assert observed.given == (stream.tell() if stream.tell() >= LIMIT else 0)

    def test_a_file_has_no_name_before_its_handle_is_asked_for(self, storage: Storage) -> None:
        stream = _create(storage)
        stream.write(b"x" * LIMIT)
        stream.flush()

        before = storage.list("")
        handle = stream.close_and_get_handle()

        assert before == []
        assert handle is not None
        assert storage.list("") == [handle.path]

    @pytest.mark.parametrize("pieces", [[], [b""]])
    def test_what_nothing_was_written_to_has_no_handle(self, observed: _Observed, pieces: list[bytes]) -> None:
        stream = CheckpointStreamFactory(observed, inline_bytes=0, new_id=str).create(FOLDER, "bin")
        for piece in pieces:
            stream.write(piece)

        assert stream.close_and_get_handle() is None

        assert stream.closed
        assert observed.left() == set()
        with pytest.raises(InvalidInputError):
            stream.close_and_get_handle()

    @pytest.mark.parametrize("size", [1, LIMIT])
    def test_a_handle_is_given_once_and_the_file_stays(self, storage: Storage, size: int) -> None:
        with _create(storage) as stream:
            stream.write(b"x" * size)
            assert not stream.closed
            handle = stream.close_and_get_handle()

            assert stream.closed
            with pytest.raises(InvalidInputError, match="was taken"):
                stream.close_and_get_handle()
            with pytest.raises(InvalidInputError, match="was taken"):
                stream.write(b"more")
        stream.close()

        with pytest.raises(InvalidInputError, match="was taken"):
            stream.close_and_get_handle()
        assert handle is not None
        assert (handle.data or storage.read(str(handle.path))) == b"x" * size

    @pytest.mark.parametrize("size", [0, 1, LIMIT, 40 * LIMIT])
    @pytest.mark.parametrize("how", ["close", "block", "error", "dropped"])
    def test_a_stream_without_its_handle_leaves_nothing_but_the_folder(
        self, storage: Storage, observed: _Observed, size: int, how: str
    ) -> None:
        stream = _create(observed)
        stream.write(b"x" * size)

        if how == "close":
            stream.close()
            stream.close()
        elif how == "block":
            with stream:
                pass
        elif how == "error":
            with pytest.raises(ZeroDivisionError), stream:
                raise ZeroDivisionError
        else:
            del stream
            gc.collect()

        assert observed.left() == set()
        if how != "dropped":
            assert stream.closed
            with pytest.raises(InvalidInputError, match="closed without its handle"):
                stream.close_and_get_handle()
        if isinstance(storage, LocalStorage):
            assert (Path(storage.url) / FOLDER).is_dir()

    def test_a_write_that_fails_is_what_the_stream_raises_from_then_on(self, observed: _Observed) -> None:
        observed.fails_after_bytes = 2 * LIMIT
        factory = _make(observed)
        stream = factory.create(FOLDER, "bin")
        stream.write(b"x" * 2 * LIMIT)

        with pytest.raises(StorageError, match="the device is gone") as caught:
            stream.write(b"y")
        observed.fails_after_bytes = None

        assert observed.left() == set()
        assert stream.closed
        for call in (lambda: stream.write(b"z"), stream.close_and_get_handle):
            with pytest.raises(StorageError) as again:
                call()
            assert again.value is caught.value
        assert factory.paths == []
        assert observed.left() == set()

    def test_a_file_that_was_made_by_a_close_that_failed_is_deleted(self, observed: _Observed) -> None:
        observed.loses_answers = True
        factory = _make(observed)
        stream = factory.create(FOLDER, "bin")
        stream.write(b"x" * LIMIT)

        with pytest.raises(StorageError, match="the answer was lost"):
            stream.close_and_get_handle()

        assert observed.deleted == [f"{FOLDER}/f0.bin"]
        assert {path for path in observed.left() if path.startswith(FOLDER)} == set()
        assert (stream.closed, factory.paths) == (True, [])

    def test_a_file_under_a_name_that_is_taken_is_left_as_it_was(self, storage: Storage, observed: _Observed) -> None:
        stream = _create(observed, new_id=lambda: "other")
        stream.write(b"x" * LIMIT)

        with pytest.raises(NameTakenError, match="already"):
            stream.close_and_get_handle()

        assert observed.deleted == []
        assert storage.read(f"{FOLDER}/other.bin") == b"other"

    def test_a_cancelled_checkpoint_makes_no_stream_and_leaves_nothing_of_those_it_had(
        self, observed: _Observed
    ) -> None:
        answers = [False] * 4
        factory = _make(observed, cancelled=lambda: not answers or answers.pop())
        early, late = factory.create(FOLDER, "bin"), factory.create(FOLDER, "bin")
        early.write(b"x" * LIMIT)
        late.write(b"x" * LIMIT)

        with pytest.raises(CheckpointCancelledError):
            early.write(b"y")
        with pytest.raises(CheckpointCancelledError):
            late.close_and_get_handle()
        with pytest.raises(CheckpointCancelledError):
            factory.create(FOLDER, "bin")

        assert (early.closed, late.closed) == (True, True)
        assert observed.left() == set()

    def test_a_checksum_is_computed_by_the_stream_or_given_to_it(self, storage: Storage) -> None:
        factory = _make(storage)
        given = factory.create(FOLDER, "bin", hashing=False)
        computed = factory.create(FOLDER, "bin")
        given.write(b"abc")
        computed.write(b"abc")

        for stream, digest in ((given, None), (computed, checksum(b"abc"))):
            with pytest.raises(InvalidInputError, match="checksum"):
                stream.close_and_get_handle(digest)

        assert given.close_and_get_handle(checksum(b"abc")) == computed.close_and_get_handle()
