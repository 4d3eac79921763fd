"""The on-disk contract of arrowstate: key hash, key groups, names, documents and run files.

A leaf package without engines, and without I/O of its own but the temporary files that Lance needs: it turns
columns into hashes, batches into files and documents into JSON, and back. The normative text is in formats/spec.
"""

from __future__ import annotations

from arrowstate_formats.arrow_types import type_from_json, type_to_json
from arrowstate_formats.documents import FORMAT_VERSION
from arrowstate_formats.errors import (
    ArrowStateError,
    CorruptDataError,
    FormatVersionError,
    InvalidInputError,
    UnknownFeatureError,
)
from arrowstate_formats.key_groups import (
    MAX_PARALLELISM,
    KeyGroupRange,
    default_max_parallelism,
    key_group_range,
    key_groups,
    key_groups_of_hashes,
)
from arrowstate_formats.key_hash import hash_columns, key_hash

__all__ = [
    "FORMAT_VERSION",
    "MAX_PARALLELISM",
    "ArrowStateError",
    "CorruptDataError",
    "FormatVersionError",
    "InvalidInputError",
    "UnknownFeatureError",
    "KeyGroupRange",
    "default_max_parallelism",
    "hash_columns",
    "key_group_range",
    "key_groups",
    "key_groups_of_hashes",
    "key_hash",
    "type_from_json",
    "type_to_json",
]
