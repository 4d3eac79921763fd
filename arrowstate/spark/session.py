"""The two functions that a Spark program calls: `keyed_sink` and `register`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from arrowstate_formats.key_groups import MAX_PARALLELISM, default_max_parallelism
from arrowstate_formats.names import check_operator_uid
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, LongType, StructType

from arrowstate.errors import InvalidInputError, KeyTypeError, UnsupportedStorageError, ValueTypeError
from arrowstate.schema.descriptors import ReducingStateDescriptor, StateDescriptor, ValueStateDescriptor
from arrowstate.schema.keys import check_key_schema, to_type
from arrowstate.schema.layout import (
    StateLayout,
    check_same_state,
    descriptor_of,
    key_documents,
    key_schema_of,
    state_document,
)
from arrowstate.snapshot.log import CommitLog
from arrowstate.spark.committing import check_alone
from arrowstate.spark.plan import SinkPlan, StateInput
from arrowstate.spark.routing import quoted, subtask_expression
from arrowstate.spark.schemas import arrow_type, spark_type, widens
from arrowstate.spark.source import FORMAT, ArrowStateDataSource
from arrowstate.storage.registry import SUPPORTED
from arrowstate.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

__all__ = ["keyed_sink", "register"]
