"""What the JSON documents of a store have in common: how a struct, a number and an extension may look.

Specification: formats/spec/documents.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from arrowstate_formats.errors import InvalidInputError
from arrowstate_formats.integers import INT64_MIN, LARGEST_EXACT, check_integer
from arrowstate_formats.key_groups import MAX_PARALLELISM
from arrowstate_formats.names import NAME_PATTERN, PATH_PATTERN

FORMAT_VERSION = 1
"""The version that this package writes and reads."""

MAX_NESTING = 64
"""How many objects and lists may stand in each other in what is free-form: properties, extensions, types."""

MAX_PROPERTIES_BYTES = 1 << 20
"""The largest text of `properties`, and of `extensions`, without white space between its parts."""

if TYPE_CHECKING:
    Int64 = int
else:

    class Int64(int):
        """An integer that may be any of 64 bits; documents have its decimal digits as text."""


Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_EXACT)]
FieldId = Annotated[int, msgspec.Meta(ge=0, lt=2147480000)]
Version = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_EXACT)]
Milliseconds = Annotated[int, msgspec.Meta(ge=-LARGEST_EXACT, le=LARGEST_EXACT)]
Checksum = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$", description="xxh3_128, 32 hexadecimal digits")]
Feature = Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_.-]{0,63}$")]
KeyGroup = Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARALLELISM)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
StoredPath = Annotated[str, msgspec.Meta(pattern=PATH_PATTERN, description="a path inside the store")]
TypeForm = str | dict[str, Any]
Statistic = str | float | bool | None

NO_CHECKSUM = "0" * 32
"""What stands for the checksum of a document while that checksum is computed."""

HOLDS_LATER = "lease.later"
"""The feature of a lease that holds the entries after its checkpoint, too."""


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=False, kw_only=True):
    """What every document and every part of one has in common: frozen, strict, keyword-only.

    Its members are looked at where it is read, and nowhere else: each by its type, and then all together by `check`.
    """

    what: ClassVar[str] = "document"
    """Its name, for messages."""
    max_bytes: ClassVar[int | None] = None
    """The longest text of a document of this kind; None for a part of one."""
    free_form: ClassVar[tuple[str, ...]] = ()
    """Members that hold JSON of any shape."""
    is_read_again: ClassVar[bool] = False
    """Whether a process reads the same documents of this kind again and again, so that they are kept by their text."""
    known_features: ClassVar[frozenset[str]] = frozenset()
    """The features that a document of this kind may need."""

    def check(self) -> None:
        """Refuse members that contradict each other, here and in the parts of the document, with a `ValueError`."""


class VersionedDocument(Document, frozen=True, kw_only=True):
    """A document that is an object of its own, pinned by the checksum in what refers to it.

    `features` are what a reader must know to read it rightly, `extensions` what a reader may pass over.
    """

    max_bytes: ClassVar[int | None] = 64 << 20
    free_form: ClassVar[tuple[str, ...]] = ("extensions",)

    format_version: Version = FORMAT_VERSION
    features: list[Feature] = []
    extensions: dict[str, Any] = {}


class PinnedDocument(Document, frozen=True, kw_only=True):
    """A document that nothing else pins, so it carries the checksum of its own bytes.

    `encode` fills `document_xxh3_128` in and `decode` compares it; in memory it is always zeros. The fields before it
    hold no free text, so the first place in the file that looks like it is the field.
    """

    max_bytes: ClassVar[int | None] = 1 << 20
    free_form: ClassVar[tuple[str, ...]] = ("extensions",)

    format_version: Version = FORMAT_VERSION
    document_xxh3_128: Checksum = NO_CHECKSUM
    features: list[Feature] = []
    extensions: dict[str, Any] = {}


def wide(value: int | None) -> Int64 | None:
    """Return an integer as one that documents have as text; None stays."""
    return None if value is None else Int64(value)


def check_place(path: str | None, inline: object) -> None:
    """Refuse a handle with both a path and the object, or with neither."""
    if (path is None) == (inline is None):
        raise ValueError("exactly one of path and inline must be given")


def check_key_groups(key_groups: tuple[int, int]) -> None:
    """Refuse a range of key groups that is empty."""
    if key_groups[0] > key_groups[1]:
        raise ValueError(f"key groups {key_groups[0]} to {key_groups[1]} are empty")


def check_nesting(where: str, value: object) -> None:
    """Refuse free-form JSON whose objects and lists stand deeper in each other than any reader must bear."""
    level = [value]
    for _ in range(MAX_NESTING + 1):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, (list, tuple)):
                inner.extend(item)
        if not inner:
            return
        level = inner
    raise InvalidInputError(f"{where} is nested more than {MAX_NESTING} levels deep; keep it flatter")


def plain_json(where: str, value: Any) -> Any:
    """Return JSON of a caller as plain values, and refuse what the encoder would quietly change.

    Integers of NumPy become those of Python, tuples become lists.
    """
    try:
        plain = msgspec.json.decode(msgspec.json.encode(value))
        # JSON has integers of any length, and this has none beyond 64 bits.
        msgspec.msgpack.encode(plain)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return _plain_json(where, value, 0)
    if plain != value:
        return _plain_json(where, value, 0)
    check_nesting(where, plain)
    return plain


def _plain_json(where: str, value: Any, depth: int) -> Any:
    """Do the same part by part, so that a message says which is refused."""
    if value is None or type(value) in (str, bool):
        return value
    if depth > MAX_NESTING:
        raise InvalidInputError(f"{where} is nested more than {MAX_NESTING} levels deep; keep it flatter")
    if isinstance(value, (list, tuple)):
        return [_plain_json(f"{where}[{index}]", item, depth + 1) for index, item in enumerate(value)]
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise InvalidInputError(f"{where} must have text as names, got {name!r}")
        return {name: _plain_json(f"{where}.{name}", item, depth + 1) for name, item in value.items()}
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, str):
        return str(value)
    try:
        if getattr(value, "ndim", 0) == 0:
            return check_integer(where, value, INT64_MIN, (1 << 64) - 1)
    except InvalidInputError:
        pass
    raise InvalidInputError(
        f"{where} must be null, a boolean, a text, a 64-bit integer, a finite number, a list or an object, "
        f"got {value!r} ({type(value).__name__})"
    )
