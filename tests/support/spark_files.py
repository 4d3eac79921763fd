"""Files for a stream of Spark, one for each micro-batch."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def add_file(folder: Path, number: int, rows: pa.Table) -> None:
    """Add a file of rows to `FOLDER/in` in one step; a stream of one file a micro-batch takes the lower number first.

    Spark takes files in the order of their times, and passes over one that is a week older than the newest it has seen.
    So no file may be there with the time of its writing, however shortly: all later ones would be too old.
    """
    (folder / "in").mkdir(exist_ok=True)
    written = folder / "written.parquet"
    pq.write_table(rows, written)
    os.utime(written, (1_600_000_000 + number,) * 2)
    written.rename(folder / "in" / f"{number:06}.parquet")
