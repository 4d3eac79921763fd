"""Tables of RocksDB and ForSt, read without either: the files that a checkpoint of Flink holds for its state.

`Database.entries` gives what the live tables of one column family hold. A table is a file of blocks, each with a
checksum: data in the order of the keys, an index, properties. What was written last counts.
"""

from arrowstate.foreign.flink.sst.database import Database
from arrowstate.foreign.flink.sst.files import HeldFile, RangeFile, StoredFile
from arrowstate.foreign.flink.sst.merging import merged
from arrowstate.foreign.flink.sst.table import Table

__all__ = ["Database", "HeldFile", "RangeFile", "StoredFile", "Table", "merged"]
