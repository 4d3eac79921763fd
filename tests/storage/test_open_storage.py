"""Which storage a path or URL means, and which are refused."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from arrowstate.errors import InvalidInputError, StorageError, StoreNotFoundError, UnsupportedStorageError
from arrowstate.storage import SUPPORTED, LocalStorage, MemoryStorage, clear_memory_storage, open_storage, registry
from processes import python


def test_every_spelling_of_a_local_path_is_one_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "a store"
    spellings = [folder, str(folder), "a store", "./a store/", f"file://{tmp_path}/a%20store", folder.as_uri()]
    spellings += [
        f"file:{tmp_path}/a%20store",
        f"file://localhost{tmp_path}/a%20store",
        "~/a store",
        "FILE://" + f"{folder}",
    ]

    opened = [open_storage(spelling, create=True) for spelling in spellings]

    assert {storage.url for storage in opened} == {str(folder)}
    assert all(isinstance(storage, LocalStorage) for storage in opened)


def test_a_path_object_is_never_taken_for_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    storage = open_storage(Path("s3:") / "bucket", create=True)

    assert storage.url == str(tmp_path / "s3:" / "bucket")


def test_every_spelling_of_a_memory_url_is_one_storage():
    first = open_storage("memory://spellings/clicks", create=True)
    first.put_hint("a", b"abc")

    second = open_storage("memory://spellings//clicks/")

    assert isinstance(second, MemoryStorage)
    assert (second.url, second.read("a")) == ("memory://spellings/clicks", b"abc")
    assert open_storage("memory://spellings").list("") == ["clicks/a"]
    clear_memory_storage("memory://spellings")
    with pytest.raises(StoreNotFoundError):
        open_storage("memory://spellings/clicks")


def test_memory_is_of_one_process():
    open_storage("memory://process", create=True)

    ran = python("-c", "from arrowstate.storage import open_storage; open_storage('memory://process')")

    assert ran.returncode == 1
    assert "StoreNotFoundError: no store at memory://process" in ran.stderr


@pytest.mark.parametrize("make", [lambda path: str(path), lambda path: path.as_uri(), lambda path: path])
def test_a_folder_is_made_only_when_asked_for(tmp_path, make):
    folder = tmp_path / "deep" / "store"

    with pytest.raises(StoreNotFoundError) as caught:
        open_storage(make(folder))

    assert caught.value.url == str(folder)
    assert not folder.parent.exists()
    assert open_storage(make(folder), create=True).list("") == []


@pytest.mark.parametrize("create", [True, False])
def test_a_file_is_no_folder(tmp_path, create):
    (tmp_path / "file").write_bytes(b"abc")

    with pytest.raises(StorageError):
        open_storage(tmp_path / "file", create=create)

    assert (tmp_path / "file").read_bytes() == b"abc"


@pytest.mark.parametrize("given", ["", "a\0b", "s3://bucket/one\ttwo", "gs://bucket/one\ntwo", "s3://buc\rket/x"])
def test_a_path_that_is_none_is_refused(given):
    with pytest.raises(InvalidInputError):
        open_storage(given, create=True)


@pytest.mark.parametrize(
    ("url", "protocol", "reason"),
    [
        ("oss://bucket/x", "oss", ""),
        ("dir::s3://bucket/x", "dir", "two writers would overwrite"),
        ("hdfs://host/x", "hdfs", "two writers would overwrite"),
        ("sftp://host/x", "sftp", "two writers would overwrite"),
        ("SSH://host/x", "ssh", "two writers would overwrite"),
        ("dir::file:///x", "dir", "two writers would overwrite"),
        ("simplecache::s3://bucket/x", "simplecache", "hides the files"),
        ("memory::memory://x", "memory", ""),
        ("file://host/x", "file on host host", ""),
        ("nonsense://x", "nonsense", ""),
    ],
)
def test_another_storage_is_refused_by_name_with_what_is_supported(url, protocol, reason):
    with pytest.raises(UnsupportedStorageError) as caught:
        open_storage(url, create=True)

    assert caught.value.protocol == protocol
    assert caught.value.supported == SUPPORTED
    assert reason in str(caught.value)
    assert "a local path, file:///path, s3://bucket/prefix, gs://bucket/prefix" in str(caught.value)


_SECRETS = [
    "very/secret+p",
    "se/cr/et",
    "/secret",
    "sec@ret",
    "sec/ret@x",
    "se?cret",
    "se#cret",
    "%2Fsecret",
    "[secret",
]


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "S3"])
@pytest.mark.parametrize("secret", _SECRETS)
@pytest.mark.parametrize("user", ["user", "", "us/er", "user%3A"])
def test_a_password_in_a_url_is_refused_and_not_shown(scheme, secret, user):
    url = f"{scheme}://{user}{'' if user.endswith('%3A') else ':'}{secret}@bucket/x"

    with pytest.raises(InvalidInputError, match="must not hold a user, a password or a query") as caught:
        open_storage(url, create=True)

    assert secret not in f"{caught.value} {vars(caught.value)}"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "url", ["oss://user:very/se@cret@bucket/x", "file://user:very/se@cret@host/x", "ftp://u:a/b@h"]
)
def test_a_password_in_a_url_that_is_not_supported_is_not_shown(url):
    with pytest.raises(UnsupportedStorageError) as caught:
        open_storage(url, create=True)

    assert not any(part in str(caught.value) for part in ("very", "cret", "a/b"))


def test_a_password_is_not_shown_where_options_are_refused():
    with pytest.raises(InvalidInputError) as caught:
        open_storage("oss://user:very/secret@bucket/x", storage_options={"key": 1})

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/team@example.com/x",
        "s3://bucket/12:00/x",
        "gs://bucket/a/12:00/b@c",
        "abfs://container@account.dfs.core.windows.net/x",
        "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/mine/x",
    ],
)
def test_a_url_without_a_password_is_taken(url):
    assert not registry._may_hold_a_secret(url.partition("://")[0], urlsplit(url))


@pytest.mark.parametrize("end", ["#1", "?x=3", "#", "?"])
def test_a_url_of_a_folder_has_no_query_and_no_fragment(tmp_path, end):
    with pytest.raises(InvalidInputError, match=r"no query and no fragment, got file://.*write %3F and %23"):
        open_storage(f"file://{tmp_path}/jobs{end}", create=True)

    assert list(tmp_path.iterdir()) == []
    assert open_storage(f"file://{tmp_path}/jobs%231", create=True).url == f"{tmp_path}/jobs#1"
