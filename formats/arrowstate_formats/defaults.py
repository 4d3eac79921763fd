"""The value of a column that was added: what rows have that were written before.

Specification: formats/spec/schema-evolution.md.
"""

from __future__ import annotations

import io

import pyarrow as pa

from arrowstate_formats.documents import decode_inline, encode_inline
from arrowstate_formats.errors import CorruptDataError

_COLUMN = "default"


def encode_default(value: pa.Array) -> str:
    """Return an array of one value as text: an Arrow IPC stream of one row and one column, in base64."""
    file = io.BytesIO()
    batch = pa.RecordBatch.from_arrays([value], names=[_COLUMN])
    with pa.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    return encode_inline(file.getvalue())


def decode_default(text: str, kind: pa.DataType, *, path: str = "") -> pa.Array:
    """Return the array of one value of this type that `encode_default` wrote."""
    try:
        table = pa.ipc.open_stream(pa.py_buffer(decode_inline(text, path=path))).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptDataError(path, f"a default is no Arrow stream: {error}") from error
    if table.column_names != [_COLUMN] or table.num_rows != 1 or table.column(0).type != kind:
        raise CorruptDataError(path, f"a default is one value of {kind}, got {table.num_rows} of {table.schema}")
    return table.column(0).combine_chunks()
