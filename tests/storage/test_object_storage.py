"""What only a remote storage can do wrong: lost answers, throttling, cut connections, stale listings, leaked secrets.

Every request goes through a proxy that fails the ones it is told to, from the services' own clients.
"""

import json
import math
import multiprocessing
import pickle
import random
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import boto3
import pytest

import arrowstate
from arrowstate.storage import (
    FileCache,
    ObjectStorage,
    Outcome,
    RetryBudget,
    RetryClock,
    open_storage,
    options_beside,
)
from arrowstate.storage import objects as objects_module
from arrowstate.storage.base import listed_level
from arrowstate.storage.clients import describe
from arrowstate.storage.clients import unfinished_uploads as list_uploads
from early_versions import is_before
from faulty_proxy import CUT_ANSWER, CUT_UPLOAD, DROP, FORBID, HANG, LOSE, REFUSE, faulty_proxy
from object_servers import AZURE_KEY, S3_OPTIONS, azure_options, google_options
from processes import python
from stores import write

PART = 8 << 20
LARGE = random.Random(7).randbytes(3 * PART - 5)


@dataclass
class Time:
    """A clock that is set by hand, and how long was waited."""

    now: float = 0.0
    waits: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def clock(self) -> RetryClock:
        return RetryClock(now=lambda: self.now, sleep=self.sleep, chance=lambda: 0.5)


@dataclass
class Remote:
    """A storage behind a proxy, and one of the same place that goes around it."""

    kind: str
    storage: ObjectStorage
    direct: ObjectStorage
    proxy: object
    time: Time

    @property
    def create(self):
        """The method of the request that creates an object."""
        return "POST" if self.kind == "gs" else "PUT"

    def fail(self, kind, method, part="", *, times=1, skip=0):
        """Make calls fail with such a request. aiohttp makes a second one at once where a connection breaks."""
        again = kind in (DROP, LOSE, CUT_UPLOAD) and method != "POST"
        self.proxy.fail(kind, method, part, times=times * (2 if again else 1), skip=skip)

    def put(self, text="one"):
        return self.storage.put_if_absent("log/1.json", text.encode(), text)

    def requests(self, method, part=""):
        return [request for request in self.proxy.requests if request.startswith(method) and part in request]


def make_remote(kind, endpoint, tmp_path, **limits):
    with faulty_proxy(endpoint) as proxy:
        if kind == "s3":
            options = {**S3_OPTIONS, "endpoint_url": proxy.endpoint, "config_kwargs": {"read_timeout": 2}}
            direct = {**S3_OPTIONS, "endpoint_url": endpoint}
        elif kind == "gs":
            options, direct = google_options(proxy.endpoint) | {"requests_timeout": 2}, google_options(endpoint)
        else:
            options, direct = azure_options(proxy.endpoint) | {"read_timeout": 2}, azure_options(endpoint)
        url = f"{kind}://bucket/{uuid.uuid4().hex}"
        time = Time()
        storage = ObjectStorage(
            url,
            options,
            retries=RetryBudget(attempts=4, seconds=60),
            cache=FileCache(tmp_path / "cache"),
            clock=time.clock(),
        )
        # The question whether the service keeps the condition is asked before the first commit, once.
        storage.put_if_absent("first", b"first", "first")
        proxy.requests.clear()
        yield Remote(kind, storage, ObjectStorage(url, direct, cache=FileCache(tmp_path / "direct")), proxy, time)


@pytest.fixture
def forget_services(monkeypatch):
    """As in a new process: nothing is known of any service."""
    monkeypatch.setattr(objects_module, "_KNOWN_TO_KEEP_CONDITIONS", set())


@pytest.fixture(params=["s3", "gs", "abfs"])
def remote(request, tmp_path):
    names = {"s3": "s3_endpoint", "gs": "google_endpoint", "abfs": "azure_endpoint"}
    yield from make_remote(request.param, request.getfixturevalue(names[request.param]), tmp_path)


@pytest.fixture
def s3(s3_endpoint, tmp_path):
    yield from make_remote("s3", s3_endpoint, tmp_path)


def unfinished_uploads(s3):
    client = boto3.client(
        "s3",
        endpoint_url=s3.proxy.target,
        aws_access_key_id="a",
        aws_secret_access_key="b",
        region_name="us-east-1",
    )
    prefix = s3.storage.url.removeprefix("s3://bucket/")
    return client.list_multipart_uploads(Bucket="bucket", Prefix=prefix).get("Uploads", [])


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", [REFUSE, DROP, LOSE, HANG, CUT_UPLOAD])
def test_a_commit_that_fails_for_a_moment_is_won(remote, kind):
    remote.fail(kind, remote.create)

    outcome = remote.put()

    assert outcome is Outcome.WON
    assert remote.direct.read("log/1.json") == b"one"
    assert remote.direct.list("log/") == ["log/1.json"]
    assert remote.time.waits == ([] if kind in (LOSE, HANG) else [0.05])


def test_a_commit_that_the_client_repeats_without_telling_has_won(s3):
    s3.proxy.fail(LOSE, "PUT")

    outcome = s3.put()

    assert outcome is Outcome.WON
    assert len(s3.requests("PUT")) == 2
    assert s3.time.waits == []


def test_a_file_that_the_client_uploads_twice_without_telling_is_written(s3):
    s3.proxy.fail(LOSE, "PUT")

    write(s3.storage, "data/a", b"abc")

    assert len(s3.requests("PUT")) == 2
    assert s3.direct.read("data/a") == b"abc"


def test_a_commit_that_finds_its_own_file_in_the_way_has_won(remote):
    # The answer is lost and the file cannot be read at first, so the request is made again.
    remote.fail(LOSE, remote.create)
    remote.fail(DROP, "GET")

    outcome = remote.put()

    assert outcome is Outcome.WON
    assert remote.time.waits == [0.05]


@pytest.mark.parametrize("kind", [DROP, REFUSE])
def test_a_commit_that_another_writer_overtakes_between_two_attempts_has_lost(remote, kind):
    remote.fail(kind, remote.create)
    wait = remote.time.sleep

    def another_wins(seconds):
        wait(seconds)
        remote.direct.put_if_absent("log/1.json", b"two", "two")

    object.__setattr__(remote.storage._clock, "sleep", another_wins)

    outcome = remote.put()

    assert outcome is Outcome.LOST
    assert remote.direct.read("log/1.json") == b"two"


def test_a_commit_that_never_gets_an_answer_is_unknown_and_a_retry_of_the_call_tells(remote):
    remote.fail(LOSE, remote.create, times=99)
    remote.fail(DROP, "GET", times=99)

    with pytest.raises(arrowstate.CommitUnknownError) as caught:
        remote.put()

    assert (caught.value.path, caught.value.commit_id) == ("log/1.json", "one")
    assert remote.time.waits == [0.05, 0.1, 0.2]
    remote.proxy.faults.clear()
    assert remote.put() is Outcome.WON
    assert remote.put("two") is Outcome.LOST


def test_a_commit_that_nobody_sees_is_unknown_because_it_may_still_arrive(remote):
    remote.fail(DROP, remote.create, times=99)

    with pytest.raises(arrowstate.CommitUnknownError):
        remote.put()

    assert not remote.direct.exists("log/1.json")


def test_a_refusal_after_a_lost_attempt_does_not_hide_that_the_commit_may_be_there(s3):
    # The client makes the second request without telling; only its answer is seen.
    s3.proxy.fail(LOSE, "PUT")
    s3.proxy.fail(FORBID, "PUT", times=99)
    s3.proxy.fail(REFUSE, "GET", times=99)

    with pytest.raises(arrowstate.CommitUnknownError):
        s3.put()

    s3.proxy.faults.clear()
    assert s3.put() is Outcome.WON


def test_who_may_not_write_is_told_before_the_first_commit(s3, forget_services):
    s3.fail(FORBID, "PUT", times=99)

    with pytest.raises(arrowstate.StorageError, match="Access Denied"):
        s3.put()

    assert s3.time.waits == []
    assert len(s3.requests("PUT")) == len(s3.requests("PUT", ".probe")) == 1


def test_the_clients_do_not_repeat_what_is_throttled(remote):
    once = ObjectStorage(
        remote.storage.url, remote.storage._options, retries=RetryBudget(attempts=1), cache=remote.storage._cache
    )
    remote.fail(REFUSE, "GET", times=99)
    remote.fail(REFUSE, remote.create, times=99)

    with pytest.raises(arrowstate.StorageError):
        once.read("first")
    with pytest.raises(arrowstate.StorageError):
        once.put_hint("_latest", b"1")

    assert len(remote.requests("GET")) == 1
    assert len(remote.requests(remote.create)) == 1


def test_attempts_end_when_the_time_is_over(s3):
    storage = ObjectStorage(
        s3.storage.url,
        s3.storage._options,
        retries=RetryBudget(attempts=100, seconds=1.0, first_delay_seconds=0.4, longest_delay_seconds=0.8),
        cache=s3.storage._cache,
        clock=s3.time.clock(),
    )
    s3.fail(REFUSE, "GET", times=99)

    with pytest.raises(arrowstate.StorageError, match="reduce your request rate"):
        storage.read("first")

    assert s3.time.waits == [0.2, 0.4, 0.4]
    assert len(s3.requests("GET")) == 4


@pytest.mark.parametrize("kind", [REFUSE, DROP, CUT_ANSWER])
def test_reads_lists_hints_and_deletes_are_repeated(s3, kind):
    for method in ("GET", "HEAD"):
        s3.fail(kind if method != "HEAD" or kind != CUT_ANSWER else DROP, method)
    s3.fail(DROP if kind == CUT_ANSWER else kind, "PUT")
    s3.fail(DROP if kind == CUT_ANSWER else kind, "DELETE")

    s3.storage.put_hint("_latest", b"1")

    assert s3.storage.read("_latest") == b"1"
    assert s3.storage.exists("_latest")
    s3.fail(kind, "GET", "list-type")
    assert s3.storage.list("") == ["_latest", "first"]
    s3.storage.delete("_latest")
    assert s3.direct.list("") == ["first"]
    assert not any(fault.times for fault in s3.proxy.faults)


@pytest.mark.turns(4)
@pytest.mark.parametrize("kind", [REFUSE, DROP, LOSE, HANG, CUT_UPLOAD])
@pytest.mark.parametrize("body", [b"", b"small"], ids=["empty", "small"])
def test_a_file_whose_upload_fails_for_a_moment_is_whole(remote, kind, body):
    if not body and kind == CUT_UPLOAD:
        pytest.skip("an empty body cannot be cut")  # Half of nothing: the case does not exist.
    remote.fail(kind, remote.create)

    write(remote.storage, "data/a", body)

    assert remote.direct.read("data/a") == body
    assert remote.direct.list("data/") == ["data/a"]


# S3: begin, three parts, complete. GCS: begin, three parts, of which the last completes.
@pytest.mark.turns(3)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [REFUSE, DROP, LOSE, CUT_UPLOAD])
@pytest.mark.parametrize(
    ("service", "method", "part"),
    [
        ("s3", "POST", "?uploads"),
        ("s3", "PUT", "partNumber=2"),
        ("s3", "POST", "uploadId="),
        ("gs", "POST", "resumable"),
        ("gs", "POST", "/session/"),
    ],
)
def test_a_large_file_survives_a_failure_in_the_middle_of_its_upload(request, tmp_path, service, method, part, kind):
    endpoint = request.getfixturevalue("s3_endpoint" if service == "s3" else "google_endpoint")
    for remote in make_remote(service, endpoint, tmp_path):
        remote.fail(kind, method, part)

        write(remote.storage, "data/a", LARGE)

        assert remote.direct.open_buffer("data/a").to_pybytes() == LARGE
        assert remote.direct.list("data/") == ["data/a"]
        # What a lost answer began nobody can name, so nobody can take it back.
        if service == "s3" and (kind, part) != (LOSE, "?uploads"):
            assert unfinished_uploads(remote) == []


def test_blocks_of_azure_survive_a_failure_in_the_middle(azure_endpoint, tmp_path):
    body = random.Random(8).randbytes(70 << 20)
    for remote in make_remote("abfs", azure_endpoint, tmp_path):
        remote.fail(DROP, "PUT", "comp=block&", skip=2)
        remote.fail(LOSE, "PUT", "comp=blocklist")

        write(remote.storage, "data/a", body)

        assert remote.direct.open_buffer("data/a").to_pybytes() == body


@pytest.mark.parametrize(("body", "part"), [(b"small", "data/a"), (LARGE, "partNumber=2")], ids=["small", "large"])
def test_an_upload_that_never_works_leaves_nothing(s3, body, part):
    s3.fail(CUT_UPLOAD, "PUT", part, times=99)

    with pytest.raises(arrowstate.StorageError):
        write(s3.storage, "data/a", body)

    assert s3.direct.list("data/") == []
    assert unfinished_uploads(s3) == []
    assert [path.name for path in (s3.storage._cache.folder).iterdir() if path.name != ".lock"] == []


@pytest.mark.parametrize("body", [b"small", LARGE], ids=["small", "large"])
def test_nothing_is_sent_of_a_file_whose_block_fails(s3, body):
    with pytest.raises(RuntimeError), s3.storage.write_file("data/a") as file:
        file.write(body)
        raise RuntimeError

    assert s3.proxy.requests == []


@pytest.mark.parametrize("kind", [DROP, LOSE])
def test_a_file_of_another_writer_is_not_taken_for_ones_own_after_a_failure(s3, kind):
    s3.direct.put_hint("data/a", b"other")
    s3.fail(kind, "PUT")

    with pytest.raises(arrowstate.StorageError, match="already"):
        write(s3.storage, "data/a", b"small")

    assert s3.direct.read("data/a") == b"other"


def test_a_large_file_does_not_replace_another(s3):
    write(s3.direct, "data/a", b"first")

    with pytest.raises(arrowstate.StorageError, match="already"):
        write(s3.storage, "data/a", LARGE)

    assert s3.direct.read("data/a") == b"first"
    assert unfinished_uploads(s3) == []


@pytest.mark.parametrize("kind", [REFUSE, DROP, CUT_ANSWER])
def test_a_download_that_is_cut_goes_on_where_it_was(s3, kind):
    write(s3.direct, "data/a", LARGE)
    s3.fail(kind, "GET", "data/a", skip=1)

    buffer = s3.storage.open_buffer("data/a")

    assert buffer.to_pybytes() == LARGE
    assert len(s3.requests("GET")) == (5 if kind == DROP else 4)


def test_a_range_that_comes_back_short_is_an_error_and_no_hole_in_the_copy(s3, monkeypatch):
    write(s3.direct, "data/a", LARGE)
    get = s3.storage._get
    monkeypatch.setattr(
        s3.storage, "_get", lambda key, start, length: get(key, start, length - 1 if start == PART else length)
    )

    with pytest.raises(arrowstate.StorageError, match=f"got {PART - 1} bytes from byte {PART} on, expected {PART}"):
        s3.storage.open_buffer("data/a")

    monkeypatch.undo()
    assert s3.storage.open_buffer("data/a").to_pybytes() == LARGE


def test_a_copy_is_made_once_and_by_whoever_wrote_the_file(s3):
    write(s3.direct, "data/a", LARGE)
    write(s3.storage, "data/b", LARGE)

    first = [s3.storage.open_buffer(path).to_pybytes() for path in ("data/a", "data/b")]
    fetched = len(s3.requests("GET"))
    again = pickle.loads(pickle.dumps(s3.storage)).open_buffer("data/a").to_pybytes()

    assert first == [LARGE, LARGE]
    assert again == LARGE
    assert fetched == len(s3.requests("GET")) == 3
    assert not s3.requests("GET", "data/b")


def test_a_file_that_was_made_anew_is_not_served_from_the_old_copy(remote):
    write(remote.storage, "data/a", b"old")
    before = remote.storage.open_buffer("data/a")
    remote.direct.delete("data/a")
    write(remote.direct, "data/a", b"new")

    after = remote.storage.open_buffer("data/a")

    assert (before.to_pybytes(), after.to_pybytes()) == (b"old", b"new")


def test_reading_asks_the_service_even_if_there_is_a_copy(s3):
    write(s3.storage, "data/a", b"abc")
    s3.proxy.requests.clear()

    s3.storage.read("data/a")

    assert len(s3.requests("GET")) == 1


@pytest.mark.parametrize("path", ["log/1", "second"])
def test_what_another_client_wrote_is_seen_at_once(remote, path):
    before = remote.storage.list(""), remote.storage.exists(path)

    write(remote.direct, path, b"abc")
    between = remote.storage.list(""), remote.storage.exists(path), remote.storage.open_buffer(path).to_pybytes()
    remote.direct.delete(path)
    write(remote.direct, path, b"abcdef")
    replaced = remote.storage.open_buffer(path).to_pybytes()
    remote.direct.delete(path)

    assert before == (["first"], False)
    assert between == (["first", path], True, b"abc")
    assert replaced == b"abcdef"
    assert (remote.storage.exists(path), remote.storage.list("")) == (False, ["first"])


def test_markers_of_folders_and_hidden_objects_are_no_files(s3):
    for key in ("data/", "data/.part", ".probe-1", "data/a"):
        s3.storage._fs.pipe_file(s3.storage._root + key, b"")

    assert s3.storage.list("") == ["data/a", "first"]
    assert s3.storage.list("data/") == ["data/a"]


@pytest.mark.skipif(is_before("s3fs", (2026, 9)), reason="pages of an earlier s3fs cannot be made small")
def test_a_long_listing_has_every_page(s3, monkeypatch):
    pages = []
    call = s3.storage._fs._call_s3

    async def small_pages(method, *arguments, **named):
        if method == "list_objects_v2":
            named["MaxKeys"] = 7
            pages.append(method)
        return await call(method, *arguments, **named)

    for number in range(20):
        s3.storage.put_hint(f"log/{number:03}", b"")
    monkeypatch.setattr(s3.storage._fs, "_call_s3", small_pages)
    s3.fail(REFUSE, "GET", "continuation", times=2)

    assert s3.storage.list("log/") == [f"log/{number:03}" for number in range(20)]
    assert len(pages) > 3


def test_pages_of_a_listing_have_every_file_once(s3, monkeypatch):
    call = s3.storage._fs.call_s3
    for number in range(20):
        s3.storage.put_hint(f"log/{number:03}", b"")
    monkeypatch.setattr(s3.storage._fs, "call_s3", lambda *what, **named: call(*what, **named, MaxKeys=7))
    s3.fail(REFUSE, "GET", "continuation", times=2)

    pages = list(s3.storage.list_pages("log/"))

    assert [len(page) for page in pages] == [7, 7, 6]
    assert sorted(path for page in pages for path in page) == [f"log/{number:03}" for number in range(20)]


def test_pages_of_a_listing_are_what_a_listing_is(remote):
    for path in ("data/a/b", "data/c", "log/1", "_latest"):
        remote.storage.put_hint(path, b"")

    for prefix in ("", "data/", "data/a/b", "nothing/"):
        pages = remote.storage.list_pages(prefix)
        assert sorted(path for page in pages for path in page) == remote.storage.list(prefix)
    assert listed_level(remote.storage, "") == (["data", "log"], ["_latest", "first"])
    assert listed_level(remote.storage, "data") == (["a"], ["c"])
    assert listed_level(remote.storage, "nothing") == ([], [])


def test_many_files_are_deleted_and_of_those_that_are_gone_nothing_is_said(remote):
    for number in range(5):
        remote.storage.put_hint(f"data/{number}", b"")
    remote.proxy.requests.clear()

    remote.storage.delete_many(["data/0", "data/1", "data/gone", "data/3"])

    assert remote.direct.list("data/") == ["data/2", "data/4"]
    if remote.kind == "s3":
        assert len(remote.requests("POST")) == len(remote.proxy.requests) == 1
    remote.storage.delete_many([])


@pytest.mark.parametrize("kind", [REFUSE, DROP, LOSE])
def test_a_request_that_deletes_many_files_is_repeated(s3, kind):
    s3.storage.put_hint("data/a", b"")
    s3.fail(kind, "POST")

    s3.storage.delete_many(["data/a", "data/b"])

    assert s3.direct.list("data/") == []
    assert len(s3.requests("POST")) == 2


def test_a_service_that_does_not_delete_many_files_at_once_deletes_one_by_one(s3):
    for name in "ab":
        s3.storage.put_hint(f"data/{name}", b"")
    s3.fail(FORBID, "POST")

    s3.storage.delete_many(["data/a", "data/b"])

    assert s3.direct.list("data/") == []
    s3.storage.put_hint("data/c", b"")
    s3.fail(FORBID, "POST")
    s3.fail(FORBID, "DELETE")
    with pytest.raises(arrowstate.StorageError, match="data/c"):
        s3.storage.delete_many(["data/c"])


@pytest.mark.parametrize("path", ["a?versionId=1", "a#1"])
def test_names_that_clients_take_for_versions_are_refused(s3, path):
    with pytest.raises(arrowstate.CorruptDataError):
        s3.storage.read(path)
    assert s3.proxy.requests == []


def test_a_service_that_replaces_objects_is_refused_before_the_first_commit(s3, forget_services, monkeypatch):
    pipe = s3.storage._fs.pipe_file
    monkeypatch.setattr(s3.storage._fs, "pipe_file", lambda path, body, mode="overwrite": pipe(path, body))

    with pytest.raises(arrowstate.UnsupportedStorageError, match="overwrite each other"):
        s3.put()

    monkeypatch.undo()
    assert s3.direct.list("") == ["first"]
    assert s3.direct._fs.find(s3.direct._root) == [f"{s3.direct._root}first"]


@pytest.mark.turns(3)
@pytest.mark.parametrize("kind", [DROP, LOSE, REFUSE])
@pytest.mark.parametrize("skip", [0, 1])
def test_the_question_whether_a_service_replaces_objects_survives_failures(remote, forget_services, kind, skip):
    remote.fail(kind, remote.create, "" if remote.kind == "gs" else ".probe", skip=skip)

    outcome = remote.put()

    assert outcome is Outcome.WON
    assert not any(fault.times for fault in remote.proxy.faults)
    assert remote.direct._fs.find(remote.direct._root) == [
        f"{remote.direct._root}{name}" for name in ("first", "log/1.json")
    ]


def test_a_service_is_tried_out_once_in_a_process(s3, forget_services):
    s3.put()
    another = open_storage(s3.storage.url + "/other", storage_options=s3.storage.options)
    s3.proxy.requests.clear()

    another.put_if_absent("log/1.json", b"one", "one")

    assert len(s3.proxy.requests) == 1


def test_each_service_is_tried_out_however_its_endpoint_is_given(s3, s3_endpoint, forget_services, tmp_path):
    def of(endpoint):
        options = {**S3_OPTIONS, "client_kwargs": {**S3_OPTIONS["client_kwargs"], "endpoint_url": endpoint}}
        return ObjectStorage(s3.storage.url, options, cache=FileCache(tmp_path / "cache"))

    of(s3_endpoint).put_if_absent("log/1.json", b"one", "one")
    of(s3.proxy.endpoint).put_if_absent("log/2.json", b"two", "two")

    assert len(s3.requests("PUT", ".probe")) == 2


def test_a_bucket_that_is_missing_has_no_store_and_takes_none(s3_endpoint, tmp_path):
    options = {**S3_OPTIONS, "endpoint_url": s3_endpoint, "cache_dir": str(tmp_path), "retry_attempts": 1}
    storage = open_storage("s3://nowhere/store", create=True, storage_options=options)

    with pytest.raises(arrowstate.StoreNotFoundError):
        arrowstate.open_store("s3://nowhere/store", storage_options=options)
    with pytest.raises(arrowstate.StorageError, match="there is no such bucket .in s3://nowhere/store"):
        storage.put_if_absent("log/1.json", b"one", "one")
    with pytest.raises(arrowstate.StorageError, match="no such bucket"):
        write(storage, "a", b"abc")


def in_another_process(storage, path):
    return storage.read(path), storage.url


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_storage_works_in_a_process_that_was_forked_or_got_it_pickled(s3, method):
    write(s3.storage, "a", b"abc")
    before = s3.storage.read("a")

    if method == "fork":
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=lambda: queue.put(in_another_process(s3.storage, "a")))
        child.start()
        child.join(60)
        found = queue.get() if child.exitcode == 0 else child.exitcode
    else:
        script = "import pickle, sys; s = pickle.load(sys.stdin.buffer); print(s.read('a'), s.url)"
        pickled = pickle.dumps(s3.storage)
        ran = subprocess.run([sys.executable, "-c", script], input=pickled, capture_output=True, check=True)
        found = ran.stdout.decode().split()

    assert before == b"abc"
    assert list(found) == ([before, s3.storage.url] if method == "fork" else [str(before), s3.storage.url])


def test_secrets_are_shown_nowhere(s3):
    s3.fail(FORBID, "GET", times=99)
    azure = ObjectStorage(
        "abfs://container/x",
        {"account_name": "account", "account_key": AZURE_KEY, "account_host": f"127.0.0.1:1/{AZURE_KEY}"},
        retries=RetryBudget(attempts=1),
    )
    texts = [s3.storage.url, repr(s3.storage), repr(azure), azure.url]

    for storage in (s3.storage, azure):
        with pytest.raises(arrowstate.StorageError) as caught:
            storage.read("a")
        texts.append(str(caught.value))

    for secret in (S3_OPTIONS["secret"], S3_OPTIONS["key"], AZURE_KEY):
        assert not any(secret in text for text in texts), texts


def test_a_message_of_a_client_is_shown_without_secrets_and_signatures():
    url = "https://host/x?sv=1&sig=hidden-signature&X-Amz-Signature=hidden-too&part=2"
    options = {
        "key": "hidden-key",
        "client_kwargs": {"aws_session_token": "hidden-token"},
        "endpoint_url": "https://host",
    }

    text = describe(OSError(f"{url} refused hidden-key with hidden-token"), options)

    assert text == "OSError: https://host/x?sv=1&sig=...&X-Amz-Signature=...&part=2 refused ... with ..."


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hidden@bucket/x",
        "s3://hidden@bucket/x",
        "gs://bucket/x?access_token=hidden",
        "abfs://container:hidden@account.dfs.core.windows.net/x",
        "abfs://container/x?sv=1&sig=hidden",
        "s3://bucket/x#hidden",
    ],
)
def test_a_url_with_a_secret_is_refused_without_showing_it(url):
    with pytest.raises(arrowstate.InvalidInputError) as caught:
        open_storage(url)

    assert "hidden" not in str(caught.value)
    assert "storage_options" in str(caught.value)


def test_a_password_in_another_url_is_not_shown():
    with pytest.raises(arrowstate.UnsupportedStorageError) as caught:
        open_storage("sftp://user:hidden@host/x")

    assert "hidden" not in f"{caught.value} {caught.value.url}"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("s3://bucket", "s3://bucket"),
        ("S3://bucket//a/b/", "s3://bucket/a/b"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("gcs://bucket/a", "gs://bucket/a"),
        ("az://container/a", "abfs://container/a"),
        ("abfss://container@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/a"),
    ],
)
def test_every_spelling_of_a_url_is_one_storage(given, url):
    options = {"gs": {"token": "anon"}, "abfs": {"account_name": "account", "anon": True}}.get(url.partition(":")[0])

    storage = open_storage(given, storage_options=options)

    assert storage.url == url
    assert storage._root.startswith("bucket/" if "bucket" in url else "container/")


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "gs://"])
def test_a_url_without_a_bucket_is_refused(url):
    with pytest.raises(arrowstate.InvalidInputError, match="bucket"):
        open_storage(url, storage_options={"token": "anon"} if url.startswith("gs") else None)


@pytest.mark.parametrize(("url", "package"), [("s3://b/x", "s3fs"), ("gs://b/x", "gcsfs"), ("abfs://b/x", "adlfs")])
def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch, url, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(arrowstate.MissingDependencyError) as caught:
        open_storage(url)

    assert caught.value.package == package
    assert f"arrowstate[{caught.value.extra}]" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("/tmp/x", {"key": "hidden"}, "only memory and object storages take storage options, got key for /tmp/x"),
        ("file:///tmp/x", {"max_file_bytes": 5}, "only memory and object storages .*, got max_file_bytes for"),
        ("memory://x", {"max_file_bytes": 5, "key": "hidden"}, "memory takes only max_file_bytes, got key for memory"),
        ("s3://bucket/x", {"max_file_bytes": 5}, "only a storage in memory takes max_file_bytes, got max_file_bytes"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(url, options, message):
    with pytest.raises(arrowstate.InvalidInputError, match=message):
        open_storage(url, create=True, storage_options=options)


@pytest.mark.parametrize(
    "options",
    [
        {"retry_attempts": 0},
        {"retry_attempts": "many"},
        {"retry_seconds": -1},
        {"cache_bytes": -1},
        {"cache_bytes": math.inf},
        {"client_kwargs": "x"},
        {"config_kwargs": 5},
    ],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(arrowstate.InvalidInputError):
        open_storage("s3://bucket/x", storage_options=options)


def test_a_storage_gives_its_options_to_others_of_its_kind_only(s3, tmp_path):
    options = options_beside(s3.storage, "s3a://other/x")

    assert options is not None
    again = open_storage(s3.storage.url, storage_options=options)
    assert (again.options, again.read("first")) == (s3.storage.options, b"first")
    assert options_beside(s3.storage, "gs://other/x") is None
    assert options_beside(s3.storage, str(tmp_path)) is None
    assert options_beside(open_storage(tmp_path), "s3://other/x") is None


def test_opening_a_local_store_loads_no_client():
    script = (
        "import sys, arrowstate; arrowstate.open_store('memory://x', create=True);"
        "print([name for name in ('fsspec', 's3fs', 'gcsfs', 'adlfs', 'botocore', 'aiohttp') if name in sys.modules])"
    )

    ran = python("-c", script, check=True)

    assert ran.stdout == "[]\n"


MEMORY = """
import json, resource, sys
from arrowstate.storage import open_storage

storage = open_storage(sys.argv[1], storage_options=json.loads(sys.argv[2]))
size = 160 << 20
storage.put_hint("warm-up", b"x" * (16 << 20))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with storage.write_file("data/a") as file:
    for number in range(size >> 20):
        file.write(number.to_bytes(4, "big") * (1 << 18))
written = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((written - before) >> 10)
"""


@pytest.mark.slow
def test_an_upload_takes_little_memory(s3_endpoint, tmp_path):
    options = json.dumps({**S3_OPTIONS, "endpoint_url": s3_endpoint, "cache_dir": str(tmp_path), "cache_bytes": 0})

    ran = python("-c", MEMORY, f"s3://bucket/{uuid.uuid4().hex}", options, check=True)

    assert int(ran.stdout) < 100, "MiB more for a file of 160 MiB"


@pytest.mark.long
def test_of_processes_that_race_on_s3_one_wins_each_number():
    script = Path(__file__).with_name("commit_racers.py")
    shape = ["--rounds", "25", "--processes", "2", "--threads", "4"]

    ran = python(script, "moto", *shape)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert "25 won, 175 lost, 0 problems" in ran.stdout


def test_an_upload_whose_beginning_nobody_was_told_of_is_named_and_can_be_deleted(s3):
    s3.fail(LOSE, "POST", "?uploads")
    write(s3.storage, "data/a", LARGE)
    assert len(unfinished_uploads(s3)) == 1

    (name,) = s3.direct.list_unfinished()
    s3.direct.delete_unfinished(name)
    s3.direct.delete_unfinished(name)

    assert name.startswith("data/a?uploadId=")
    assert unfinished_uploads(s3) == s3.direct.list_unfinished() == []
    assert s3.direct.open_buffer("data/a").to_pybytes() == LARGE


def test_a_slow_upload_that_was_deleted_meanwhile_begins_again(s3, monkeypatch):
    take = s3.proxy.take
    deleted = []

    def take_and_delete(method, path):
        if method == "PUT" and "partNumber=3" in path and not deleted:
            deleted.extend(s3.direct.list_unfinished())
            s3.direct.delete_unfinished(deleted[0])
        return take(method, path)

    monkeypatch.setattr(s3.proxy, "take", take_and_delete)

    write(s3.storage, "data/a", LARGE)

    assert len(deleted) == 1
    assert s3.direct.open_buffer("data/a").to_pybytes() == LARGE
    assert s3.direct.list_unfinished() == []


def test_what_a_process_left_that_died_while_it_tried_out_a_service_can_be_deleted(remote):
    name = f".probe-{uuid.uuid4().hex}"
    for hidden in (name, ".probe-of-mine", ".hidden"):
        remote.direct._fs.pipe_file(remote.direct._root + hidden, b"first")

    assert remote.storage.list_unfinished() == [name]
    for other in (".probe-of-mine", ".hidden", "first", "first?uploadId="):
        with pytest.raises(arrowstate.CorruptDataError):
            remote.storage.delete_unfinished(other)
    remote.storage.delete_unfinished(name)

    assert remote.storage.list_unfinished() == []
    assert not remote.direct._fs.exists(remote.direct._root + name)
    assert remote.direct._fs.exists(remote.direct._root + ".hidden")


def test_every_page_of_unfinished_uploads_is_read():
    asked = []

    class Paged:
        def call_s3(self, verb, **arguments):
            asked.append((verb, arguments))
            if len(asked) == 1:
                upload = {"Key": "p/a", "UploadId": "1"}
                return {"Uploads": [upload], "IsTruncated": True, "NextKeyMarker": "p/a", "NextUploadIdMarker": "1"}
            return {"Uploads": [{"Key": "p/b", "UploadId": "2"}], "IsTruncated": False}

    assert list_uploads(Paged(), "s3", "bucket", "p/") == [("p/a", "1"), ("p/b", "2")]
    first = {"Bucket": "bucket", "Prefix": "p/"}
    assert [arguments for _, arguments in asked] == [first, {**first, "KeyMarker": "p/a", "UploadIdMarker": "1"}]


@pytest.mark.parametrize(("status", "raised"), [(501, False), (405, False), (403, True)])
def test_a_service_without_a_list_of_uploads_has_none_and_one_that_forbids_it_is_an_error(status, raised):
    class Refused(Exception):
        response = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": "x"}}  # noqa: RUF012

    class Refusing:
        def call_s3(self, verb, **arguments):
            raise Refused

    if raised:
        with pytest.raises(Refused):
            list_uploads(Refusing(), "s3", "bucket", "p/")
    else:
        assert list_uploads(Refusing(), "s3", "bucket", "p/") == []
