"""Documents as text: written in one stable form, and read strictly.

Every document is read back by the rules of the reader before it is written, so that nothing is committed that no reader
takes. Specification: formats/spec/documents.md.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import xxhash

from arrowstate_formats import system
from arrowstate_formats.document_base import (
    FORMAT_VERSION,
    HOLDS_LATER,
    MAX_PROPERTIES_BYTES,
    NO_CHECKSUM,
    Document,
    Int64,
    PinnedDocument,
    Version,
    VersionedDocument,
    check_nesting,
    plain_json,
)
from arrowstate_formats.errors import (
    CorruptDataError,
    FormatVersionError,
    InvalidInputError,
    UnknownFeatureError,
)
from arrowstate_formats.integers import INT64_MAX, INT64_MIN
from arrowstate_formats.kept_texts import KeptTexts

FEATURES: frozenset[str] = frozenset({HOLDS_LATER})
"""The features that this package knows, each in the kinds of documents that may need it."""

_INDENTED_BYTES = 64 << 10
"""A longer text is for programs alone: indented it would be several times as long."""

_OWN_CHECKSUM = re.compile(rb'"document_xxh3_128"[ \t\n\r]*:[ \t\n\r]*"([0-9a-f]{32})"')
_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,18}")

D = TypeVar("D")
V = TypeVar("V", bound=Document)


class _Head(msgspec.Struct):
    """What is looked at before the shape of a document."""

    format_version: Version
    features: list[str] = []


_HEAD = msgspec.json.Decoder(_Head)


def _to_text(value: Any) -> str:
    if type(value) is Int64:
        return str(int(value))
    raise TypeError(f"{value!r} ({type(value).__name__}) has no form in JSON")


def _from_text(kind: type[Any], value: Any) -> Any:
    if kind is not Int64:
        raise TypeError(f"no {kind.__name__} is read from JSON")
    if type(value) is not str or _DECIMAL.fullmatch(value) is None:
        raise ValueError(f"an integer of 64 bits is a text of decimal digits, got {value!r}")
    number = Int64(value)
    if not INT64_MIN <= number <= INT64_MAX:
        raise ValueError(f"{value} is outside 64 bits")
    return number


_KEPT: KeptTexts[Document] = KeptTexts(24 << 20)
"""Of documents that are read again and again, those of late."""

_ENCODER = msgspec.json.Encoder(enc_hook=_to_text, order="deterministic")
_DECODERS: dict[type[Any], msgspec.json.Decoder[Any]] = {}
_making_a_decoder = system.forks_wait_for(threading.RLock())


pack: Callable[[msgspec.Struct | list[Any]], bytes] = _ENCODER.encode
"""Returns the JSON text of a struct that holds documents, or of a list of them, without looking at what is in it."""


def unpack(data: bytes | str, struct_type: type[D]) -> D:
    """Return what `pack` was given."""
    decoded: D = _decoder(struct_type).decode(data)
    return decoded


def _decoder(struct_type: type[Any]) -> msgspec.json.Decoder[Any]:
    found = _DECODERS.get(struct_type)
    if found is None:
        # msgspec runs Python code while it learns the fields of a struct. A thread that made a decoder of the same
        # struct meanwhile, or of one that holds it, would follow a null pointer of what is half known.
        with _making_a_decoder:
            found = _DECODERS.get(struct_type)
            if found is None:
                found = _DECODERS[struct_type] = msgspec.json.Decoder(struct_type, dec_hook=_from_text)
    return found


def encode(document: Document) -> bytes:
    """Return the UTF-8 JSON text of a document: fields in declared order, a newline at the end.

    Up to 64 KiB it is indented by two spaces, a longer one has no white space. Equal documents give equal bytes;
    members of free-form objects are sorted by name.
    """
    kind = type(document)
    free_form = {name: value for name in kind.free_form if (value := getattr(document, name))}
    if free_form:
        plain = {name: plain_json(name, value) for name, value in free_form.items()}
        document = msgspec.structs.replace(document, **plain)
    try:
        text = pack(document)
        # By the rules of the reader: what it would refuse must never be committed.
        read = _read(text, kind)
        _check_limits(text, read)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInputError(f"the {kind.what} cannot be written, no reader would take it: {error}") from error
    data = _laid_out(text)
    if isinstance(document, PinnedDocument):
        start, end = _own_checksum(data)
        digest = xxhash.xxh3_128_hexdigest(data[:start] + NO_CHECKSUM.encode() + data[end:])
        data = data[:start] + digest.encode() + data[end:]
    if kind.is_read_again:
        _KEPT.put(data, read)
    return data


def is_laid_out(data: bytes, document: msgspec.Struct) -> bool:
    """Whether a text is that of a document as `encode` writes it, with white space or without."""
    text = pack(document)
    # Parts of the document may be texts that were taken over as they are.
    return data == text + b"\n" or data == msgspec.json.format(text, indent=2) + b"\n"


def _laid_out(text: bytes) -> bytes:
    return (msgspec.json.format(text, indent=2) if len(text) <= _INDENTED_BYTES else text) + b"\n"


def decode(data: bytes, document_type: type[V], *, path: str = "") -> V:
    """Return the document that `encode` wrote, or an implementation of another hand."""
    kept = _KEPT.get(data) if document_type.is_read_again else None
    if isinstance(kept, document_type):
        return _own_copy(kept)
    try:
        if issubclass(document_type, (VersionedDocument, PinnedDocument)):
            head = _HEAD.decode(data)
            if head.format_version != FORMAT_VERSION:
                raise FormatVersionError(path, head.format_version, FORMAT_VERSION)
            unknown = [feature for feature in head.features if feature not in document_type.known_features]
            if unknown:
                raise UnknownFeatureError(path, unknown[0], FORMAT_VERSION, FORMAT_VERSION)
        document = _read(data, document_type)
        if issubclass(document_type, PinnedDocument):
            _check_own(data, path)
        _check_limits(data, document)
        _check_members(data, document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, CorruptDataError):
            raise
        if _is_draft(data):
            raise FormatVersionError(path, FORMAT_VERSION, FORMAT_VERSION) from error
        raise CorruptDataError(path, str(error)) from error
    if isinstance(document, PinnedDocument):
        document = msgspec.structs.replace(document, document_xxh3_128=NO_CHECKSUM)
    if document_type.is_read_again:
        _KEPT.put(data, document)
        return _own_copy(document)
    return document


def _own_copy(document: V) -> V:
    """Return a document with free-form parts of its own, which a caller may change."""
    free_form = {name: value for name in document.free_form if (value := getattr(document, name))}
    return msgspec.structs.replace(document, **{name: _json_copy(value) for name, value in free_form.items()})


def _json_copy(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _is_draft(data: bytes) -> bool:
    """Whether a log entry has the form of the drafts: its watermark is a number, or its statistics are by subtask."""
    try:
        entry = json.loads(data)
        return type(entry["watermark"]) is int or any("subtask" in item for item in entry["statistics"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return False


def _read(data: bytes, document_type: type[V]) -> V:
    """Return a document, every member of which is what it must be and fits the others."""
    document = unpack(data, document_type)
    document.check()
    return document


def _check_limits(data: bytes, document: Document) -> None:
    """Refuse a document that is too long, or whose free-form parts are too large or too deep."""
    most = document.max_bytes
    if most is not None and len(data) > most:
        raise ValueError(f"it has {len(data):,} bytes, a {document.what} has at most {most:,}")
    for name in document.free_form:
        value = getattr(document, name)
        if value:
            check_nesting(name, value)
            size = len(_ENCODER.encode(value))
            if size > MAX_PROPERTIES_BYTES:
                raise ValueError(f"{name} take {size:,} bytes, at most {MAX_PROPERTIES_BYTES:,} are allowed")


def _check_members(data: bytes, document: Document) -> None:
    """Refuse an object with two members of one name; what this package wrote has none."""
    if data != _laid_out(pack(document)):
        _members(data)


def _members(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data, object_pairs_hook=_unique)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the member {twice!r} occurs twice in one object")
    return members


def _check_own(data: bytes, path: str) -> None:
    """Compare the checksum that a pinned document carries with that of its bytes."""
    try:
        start, end = _own_checksum(data)
    except LookupError:
        raise CorruptDataError(path, "the document has no document_xxh3_128") from None
    if xxhash.xxh3_128_hexdigest(data[:start] + NO_CHECKSUM.encode() + data[end:]) != data[start:end].decode():
        raise CorruptDataError(path, "the document does not match its checksum")


def _own_checksum(data: bytes) -> tuple[int, int]:
    """Return where in a pinned document the digits of its checksum begin and end."""
    match = _OWN_CHECKSUM.search(data)
    if match is None:
        raise LookupError("document_xxh3_128")
    return match.span(1)


def encode_inline(data: bytes) -> str:
    """Return bytes as the text of an `inline` field (base64)."""
    return base64.b64encode(data).decode("ascii")


def decode_inline(text: str, *, path: str = "") -> bytes:
    """Return the bytes of an `inline` field."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CorruptDataError(path, f"an inline field is no base64: {error}") from error
