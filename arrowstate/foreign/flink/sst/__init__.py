"""Tables of RocksDB and ForSt, read without either: the files that a checkpoint of Flink holds for its state.

`entries` gives what the live tables of one column family hold. A table is a file of blocks, each with a checksum:
data in the order of the keys, an index, properties. What was written last counts.
"""

from arrowstate.foreign.flink.sst.files import HeldFile, RangeFile
from arrowstate.foreign.flink.sst.merging import entries, merged
from arrowstate.foreign.flink.sst.table import Table

__all__ = ["HeldFile", "RangeFile", "Table", "entries", "merged"]
