"""Where a store is and how it is reached: its URL, and storage options that no text shows.

Spark hands the options of a reader or writer on as text, to tasks and to the process that commits; its plans, logs and
its user interface do not print them. What is made of them here does not print them either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from arrowstate.errors import InvalidInputError
from arrowstate.storage.base import Storage
from arrowstate.storage.registry import open_storage

__all__ = ["STORAGE_OPTIONS", "StorePlace", "storage_options_of", "storage_options_text"]

STORAGE_OPTIONS = "storageOptions"
"""The option of a reader or writer with storage options, a JSON object."""


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where a store is."""

    url: str
    options: Mapping[str, Any] | None = field(default=None, repr=False)
    """As for `open_store`; None for what the environment has."""

    @classmethod
    def of(cls, storage: Storage, options: Mapping[str, str]) -> StorePlace:
        """Return the place of a storage that was opened with the options of a reader."""
        return cls(storage.url, storage_options_of(options))

    def open(self) -> Storage:
        """Open its storage."""
        return open_storage(self.url, storage_options=self.options)


def storage_options_text(options: Mapping[str, Any] | None) -> str | None:
    """Return storage options as the text that Spark hands on, None for none.

    Raises
    ------
    InvalidInputError
        If one is nothing that JSON has; the message names it and does not show it.
    """
    if not options:
        return None
    for name, value in options.items():
        try:
            is_same = msgspec.json.decode(msgspec.json.encode({name: value})) == {name: value}
        except (TypeError, ValueError, msgspec.MsgspecError):
            is_same = False
        if not is_same:
            raise InvalidInputError(
                f"the storage option {name!r} is a {type(value).__name__}, and options go to Spark's workers as JSON: "
                "texts, numbers, true, false, null, and lists and objects of these"
            )
    return msgspec.json.encode(dict(options)).decode()


def storage_options_of(options: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the storage options among the options of a reader or writer, None if there are none.

    Raises
    ------
    InvalidInputError
        If they are no JSON object; the message does not show them.
    """
    text = options.get(STORAGE_OPTIONS)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        raise InvalidInputError(
            f"the option {STORAGE_OPTIONS!r} must be a JSON object, such as "
            '\'{"key": "...", "secret": "...", "endpoint_url": "..."}\''
        ) from None
