"""What pyarrow does not promise to keep: the form in which an expression is pickled, from which its parts are read.

`Expression.to_substrait` is public and no way to look inside: pyarrow has no reader of its messages, columns lose their
names in it, durations, nanoseconds and wide decimals cannot be written, and a set of 10,000 values takes 0.1 s.

All of it is here, and `tests/test_internals.py` fails by the name of what an upgrade has changed.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

_METADATA_LINE = re.compile(r"^(call|end|literal|options|field_ref|nested_field_ref): '(.*)'$")


def parts_of(expression: pc.Expression) -> tuple[pa.RecordBatch, list[tuple[str, str]]]:
    """Return the literals of an expression, a column of one row each, and its parts in order, as kind and text.

    A `literal` and the `options` of a call have the number of their column as text; a call comes before its arguments,
    and `end` after them.
    """
    _, (buffer,) = expression.__reduce__()
    reader = pa.ipc.open_file(buffer)
    # The metadata repeats its names; as a dict it would keep one of each.
    text = reader.schema.to_string(show_schema_metadata=True, truncate_metadata=False)
    lines = text.partition("-- schema metadata --\n")[2].split("\n")
    return reader.get_batch(0), [(match[1], match[2]) for match in map(_METADATA_LINE.match, lines) if match]
