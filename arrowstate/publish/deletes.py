"""Dead rows as engines take them: deletion vectors in a Puffin file, or position deletes in Parquet files.

Both have the row numbers of the run file, so they hold for a twin too. A deletion vector of a store is a 32-bit Roaring
bitmap; Iceberg's, and Delta's, is a 64-bit one, which is the same bytes with a frame around them.
"""

from __future__ import annotations

import io
import json
import zlib

import numpy as np
import pyarrow as pa
from msgspec import Struct

from arrowstate.table.run import Bits
from arrowstate_formats.deletion_vectors import write_deletion_vector
from arrowstate_formats.state_columns import FIELD_ID_KEY

_PUFFIN = b"PFA1"
_MAGIC = bytes([0xD1, 0xD3, 0x39, 0x64])
_ROW_POSITION_ID = 2147483645
PATH_ID, POSITION_ID = 2147483546, 2147483545
"""The field ids that Iceberg keeps for the columns of position deletes."""

_POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID_KEY: str(PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID_KEY: str(POSITION_ID)}),
    ]
)


class DeadRows(Struct, frozen=True):
    """The dead rows of a file."""

    live: Bits
    "Bit i is that of row i of the file."
    rows: int
    count: int

    def bitmap(self) -> bytes:
        """Return the row numbers as a 64-bit Roaring bitmap, after the magic number that it has everywhere."""
        own = write_deletion_vector(self.live, self.rows, 0)
        return _MAGIC + (1).to_bytes(8, "little") + bytes(4) + own


def _framed(bitmap: bytes) -> bytes:
    return len(bitmap).to_bytes(4, "big") + bitmap + zlib.crc32(bitmap).to_bytes(4, "big")


def write_puffin(path: str, dead: DeadRows) -> tuple[bytes, tuple[int, int]]:
    """Return a Puffin file with the deletion vector of a data file, and offset and length of the vector in it.

    Iceberg allows several in a file. Some engines know them by the path of the file alone, and then apply but one.
    """
    blob = _framed(dead.bitmap())
    place = len(_PUFFIN), len(blob)
    described = {
        "type": "deletion-vector-v1",
        "fields": [_ROW_POSITION_ID],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": place[0],
        "length": place[1],
        "properties": {"referenced-data-file": path, "cardinality": str(dead.count)},
    }
    footer = json.dumps(
        {"blobs": [described], "properties": {"created-by": "arrowstate"}}, separators=(",", ":")
    ).encode()
    ending = len(footer).to_bytes(4, "little") + bytes(4) + _PUFFIN
    return _PUFFIN + blob + _PUFFIN + footer + ending, place


def write_delta_vector(dead: DeadRows) -> tuple[bytes, int]:
    """Return a file with the deletion vector of a data file of Delta, and the size of the vector in it."""
    bitmap = dead.bitmap()
    return b"\1" + _framed(bitmap), len(bitmap)


def write_positions(path: str, dead: DeadRows) -> bytes:
    """Return a Parquet file with the dead rows of one data file."""
    # Loaded where it is used: it brings Arrow's clients of object stores, a tenth of what the package takes to import.
    import pyarrow.parquet as pq

    rows = np.flatnonzero(np.unpackbits(~dead.live, count=dead.rows, bitorder="little"))
    paths = pa.DictionaryArray.from_arrays(np.zeros(len(rows), np.int32), [path]).cast(pa.string())
    table = pa.Table.from_arrays([paths, pa.array(rows, pa.int64())], schema=_POSITIONS)
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=["file_path"],
        column_encoding={"pos": "DELTA_BINARY_PACKED"},
        store_schema=False,
    )
    return sink.getvalue()
