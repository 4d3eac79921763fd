"""Flipped bits of objects and of their local copies: a damaged copy is fetched again, a damaged object is an error."""

import random
from pathlib import Path

import boto3
import pytest

from arrowstate import CorruptDataError, FormatVersionError, open_store
from arrowstate.files.open_files import forget_open_files
from arrowstate.query.kept_reads import forget_checkpoints
from every_kind import FORMATS, UID, Job, small_files
from object_servers import S3_OPTIONS

KEYS = 60


@pytest.fixture
def store(place):
    """A store on S3 with files of every format, and the local copies of them."""
    url, options = place("s3")
    store = open_store(url, create=True, storage_options=options)
    job = Job.new(1, KEYS)
    # Large enough for few files, small enough for one of each kind.
    with small_files(inline_bytes=300, directory_rows=40), store.writer() as writer:
        for number, format in enumerate(FORMATS):
            job.step(number)
            writer.checkpoint({UID: job.keyed}, operator_states={UID: job.operator}, format=format)
    return store


def content(store):
    forget_open_files()
    forget_checkpoints()
    return Job.restored(store.latest(), 2, KEYS).checksum()


def flip(data, dice):
    flipped = bytearray(data)
    bit = dice.randrange(8 * len(flipped))
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


def test_flipped_bits_in_local_copies_change_nothing(store):
    expected = content(store)
    dice = random.Random(1)
    copies = [path for path in Path(store.storage.options["cache_dir"]).iterdir() if not path.name.startswith(".")]
    before = {path: path.read_bytes() for path in copies}
    for path, data in before.items():
        # A new file: the old one is mapped.
        path.unlink()
        path.write_bytes(flip(data, dice))

    assert content(store) == expected
    opened = [path for path in copies if path.read_bytes() == before[path]]
    assert len(opened) >= len(store.latest().entry.operators[0].states)


def test_a_flipped_bit_in_any_object_is_an_error_and_never_another_answer(store):
    expected = content(store)
    dice = random.Random(2)
    endpoint = store.storage.options["endpoint_url"]
    keys = {"aws_access_key_id": S3_OPTIONS["key"], "aws_secret_access_key": S3_OPTIONS["secret"]}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    prefix = store.url.removeprefix("s3://bucket/")
    needed = [path for path in store.storage.list("") if path != "_latest"]
    by_kind = {path.rsplit(".", 1)[-1] + path.split("/")[0]: path for path in needed}
    found = 0

    for path in by_kind.values():
        data = store.storage.read(path)
        client.put_object(Bucket="bucket", Key=f"{prefix}/{path}", Body=flip(data, dice))
        try:
            assert content(open_store(store.url, storage_options=store.storage.options)) == expected, path
        except (CorruptDataError, FormatVersionError):
            found += 1
        client.put_object(Bucket="bucket", Key=f"{prefix}/{path}", Body=data)

    # What an older checkpoint alone needs is not read.
    assert found >= len(by_kind) - 2
    assert content(store) == expected
