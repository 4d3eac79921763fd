"""What was done to a store, told when it ends: records for callbacks, spans and metrics for OpenTelemetry."""

from arrowstate.telemetry.otel import SpansAndMetrics, instrument
from arrowstate.telemetry.records import OperationRecord, PartRecord, listen

__all__ = ["OperationRecord", "PartRecord", "SpansAndMetrics", "instrument", "listen"]
