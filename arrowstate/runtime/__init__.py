"""Jobs on one machine: sources, keyed exchange, functions with state, sinks, and checkpoints that flow through them.

The functions are those that run on Spark, the state is in the same backends, and a checkpoint is a log entry as any
other.
"""

from arrowstate.runtime.connectors import (
    Batch,
    DirectSink,
    EndOfSplit,
    PreparingSink,
    Reader,
    Sink,
    SinkWriter,
    Source,
    Split,
    Token,
    UnreadRows,
)
from arrowstate.runtime.core.coordinator import RestartStatus
from arrowstate.runtime.functions import CoBatchFunction, KeyedCoProcessFunction, MapFunction
from arrowstate.runtime.job import Job
from arrowstate.runtime.kafka.avro import AvroFormat
from arrowstate.runtime.kafka.formats import Format, JsonFormat, RawFormat
from arrowstate.runtime.kafka.protobuf import ProtobufFormat
from arrowstate.runtime.kafka.registry import SchemaRegistry
from arrowstate.runtime.kafka.sink import KafkaSink
from arrowstate.runtime.kafka.source import KafkaSource
from arrowstate.runtime.restart import Restart
from arrowstate.runtime.running import RunningJob
from arrowstate.runtime.sinks.delta import DeltaSink
from arrowstate.runtime.sinks.functions import FunctionSink, PrintSink
from arrowstate.runtime.sinks.iceberg import IcebergSink
from arrowstate.runtime.sinks.parquet import BulkParquetSink, ParquetSink
from arrowstate.runtime.sinks.postgres import PostgresSink
from arrowstate.runtime.sinks.table import OutputTable
from arrowstate.runtime.sources.delta import DeltaSource
from arrowstate.runtime.sources.files import FileSource
from arrowstate.runtime.sources.iceberg import IcebergSource
from arrowstate.runtime.sources.memory import GeneratorSource, IteratorSource, TableSource
from arrowstate.runtime.sources.postgres import PostgresCDCSource
from arrowstate.runtime.sources.stores import ChangesSource, OutputSource
from arrowstate.runtime.standing_by import Standby
from arrowstate.runtime.status import ChannelStatus, JobStatus, TaskStatus
from arrowstate.runtime.streams import ConnectedStreams, Stream
from arrowstate.runtime.watermarks import Watermarks

__all__ = [
    "AvroFormat",
    "Batch",
    "BulkParquetSink",
    "ChangesSource",
    "ChannelStatus",
    "CoBatchFunction",
    "ConnectedStreams",
    "DeltaSink",
    "DeltaSource",
    "DirectSink",
    "EndOfSplit",
    "FileSource",
    "Format",
    "FunctionSink",
    "GeneratorSource",
    "IcebergSink",
    "IcebergSource",
    "IteratorSource",
    "Job",
    "JobStatus",
    "JsonFormat",
    "KafkaSink",
    "KafkaSource",
    "KeyedCoProcessFunction",
    "MapFunction",
    "OutputSource",
    "OutputTable",
    "ParquetSink",
    "PostgresCDCSource",
    "PostgresSink",
    "PreparingSink",
    "PrintSink",
    "ProtobufFormat",
    "RawFormat",
    "Reader",
    "Restart",
    "RestartStatus",
    "RunningJob",
    "SchemaRegistry",
    "Sink",
    "SinkWriter",
    "Source",
    "Split",
    "Standby",
    "Stream",
    "TableSource",
    "TaskStatus",
    "Token",
    "UnreadRows",
    "Watermarks",
]
