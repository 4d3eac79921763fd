"""The classes of PySpark that a reader is made of, or stand-ins where it lacks them.

With a stand-in a reader can be declared, and what needs none of PySpark's machinery can use it; the rest is refused
where it is asked for, see `arrowstate.spark.versions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "DataSource",
    "DataSourceReader",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxFiles",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    def _stand_ins(*names: str) -> tuple[type, ...]:
        return tuple(type(name, (), {"__doc__": "In the place of a class that this PySpark lacks."}) for name in names)

    try:
        from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
    except ImportError:
        DataSource, DataSourceReader, DataSourceStreamReader, InputPartition = _stand_ins(
            "DataSource", "DataSourceReader", "DataSourceStreamReader", "InputPartition"
        )
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxFiles,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:
        ReadAllAvailable, ReadLimit, ReadMaxFiles, ReadMaxRows, SupportsTriggerAvailableNow = _stand_ins(
            "ReadAllAvailable", "ReadLimit", "ReadMaxFiles", "ReadMaxRows", "SupportsTriggerAvailableNow"
        )
