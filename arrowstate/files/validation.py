"""Which storages are read with full validation of their bytes."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast, get_args

from arrowstate.errors import (
    InvalidInputError,
)
from arrowstate.storage.base import Storage
from arrowstate_formats.documents import (
    LogEntryDocument,
)


class Validated:
    """A storage whose files somebody else may have written: what is read from them is validated in full."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._storage,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


Validation: TypeAlias = Literal["checksums", "full"]
"""What is compared when rows are read."""


def check_validation(validate: str) -> None:
    """Refuse what is no `Validation`."""
    if validate not in get_args(Validation):
        raise InvalidInputError(f"validate is 'checksums' or 'full', got {validate!r}")


def readable(storage: Storage, validate: Validation) -> Storage:
    """Return the storage to read from at this degree of trust."""
    check_validation(validate)
    return validated(storage) if validate == "full" else storage


def validated(storage: Storage) -> Storage:
    """Return the storage, from which the functions of this module take nothing on trust; see `read_run`."""
    return storage if isinstance(storage, Validated) else cast("Storage", Validated(storage))


def validated_savepoint(storage: Storage, entry: LogEntryDocument) -> Storage:
    """Return the storage to read a checkpoint from: `validated` for a savepoint, which goes from hand to hand."""
    return validated(storage) if entry.kind == "savepoint" else storage
