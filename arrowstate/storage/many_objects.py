"""Many objects of S3 with few requests: listed page by page, and deleted a thousand at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from arrowstate.errors import MissingFileError, StorageError

DELETED_TOGETHER = 1000
"""So many objects one request deletes at most."""


def listed_keys(call: Callable[[Callable[[], Any]], Any], client: Any, bucket: str, prefix: str) -> Iterator[list[str]]:
    """Yield the keys that begin with a prefix, a page at a time; nothing where there is no such bucket.

    `call` makes a request, and repeats it where that may help.
    """
    after: dict[str, str] = {}
    while True:
        try:
            answer = call(partial(client.call_s3, "list_objects_v2", Bucket=bucket, Prefix=prefix, **after))
        except MissingFileError:
            return
        yield [item["Key"] for item in answer.get("Contents", [])]
        if not answer.get("IsTruncated"):
            return
        after = {"ContinuationToken": answer["NextContinuationToken"]}


def delete_together(
    call: Callable[[Callable[[], Any]], Any], client: Any, bucket: str, keys: Sequence[str]
) -> Sequence[str]:
    """Delete at most 1,000 objects with one request; return those that are not known to be gone.

    That are all of them where the service does not know this request; asked for one of them, it says what is wrong.
    """
    objects = [{"Key": key} for key in keys]
    try:
        answer = call(partial(client.call_s3, "delete_objects", Bucket=bucket, Delete={"Objects": objects}))
    except (StorageError, MissingFileError):
        return keys
    gone = {item["Key"] for item in answer.get("Deleted", [])}
    return [key for key in keys if key not in gone]
