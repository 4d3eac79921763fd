"""What s3fs, gcsfs and adlfs do not promise to keep: how each of them is made to ask for a thing once.

A budget of ours decides how often a request is made (`retries`), and only s3fs has a setting for a part of that. All
of it is here, and `tests/test_internals.py` fails by the name of what an upgrade has changed.
"""

from __future__ import annotations

from typing import Any


def asks_s3_once(client: Any) -> Any:
    """Return a client of s3fs that repeats no request; botocore, below it, is told so by its settings."""
    client.retries = 1
    return client


def asks_google_once(kind: Any) -> Any:
    """Return the class of clients of gcsfs that repeat no request.

    It has the function under the decorator that repeats it: there is no setting for the number of attempts.
    """
    return type("GCSFileSystem", (kind,), {"_request": kind._request.__wrapped__})


def asks_azure_once(client: Any) -> Any:
    """Return a client of adlfs whose requests are not repeated by the client of Azure that it made.

    adlfs passes no policy on to it.
    """
    client.service_client._config.retry_policy.total_retries = 0
    return client
