"""Traces for OpenTelemetry: a span for each correction of an instance. Off unless BOREAL_TRACES names a receiver."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from boreal.model.errors import UserError
from deployment.corrections import Correction
from reconcile.events import InstanceId

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.util.types import AttributeValue

VARIABLE = "BOREAL_TRACES"
_NS_PER_US = 1_000


class OtelTraces:
    """Spans of OpenTelemetry: `boreal.reconciliation`, from the detection to the end, with its parts `boreal.failure` and
    `boreal.redo` below it, and the event `tentative`. Times are those of the services' clock."""

    def __init__(self, process: str, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        provider = TracerProvider(resource=Resource.create({"service.name": "boreal", "service.instance.id": process}))
        provider.add_span_processor(processor)
        self._provider = provider
        self._tracer = provider.get_tracer("boreal")

    def tell(self, query: str, mode: str, who: InstanceId, correction: Correction) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        attributes: dict[str, AttributeValue] = {
            "boreal.query": query,
            "boreal.fragment": who.fragment,
            "boreal.replica": who.replica,
            "boreal.shard": who.shard,
            "boreal.mode": mode,
            "boreal.missing": correction.missing,
            "boreal.rows": correction.rows,
            "boreal.checkpoint_bytes": correction.checkpoint_bytes,
        }
        detected_at, redo_at, done_at = (
            at * _NS_PER_US for at in (correction.detected_at, correction.redo_at, correction.done_at)
        )
        whole = self._tracer.start_span("boreal.reconciliation", Context(), attributes=attributes, start_time=detected_at)
        within = set_span_in_context(whole, Context())
        if correction.tentative_at is not None:
            whole.add_event("tentative", timestamp=correction.tentative_at * _NS_PER_US)
        self._tracer.start_span("boreal.failure", within, start_time=detected_at).end(redo_at)
        self._tracer.start_span("boreal.redo", within, start_time=redo_at).end(done_at)
        whole.end(done_at)


    def close(self) -> None:
        """Send what waits, and nothing more."""
        self._provider.shutdown()


def open_traces(process: str) -> OtelTraces | None:
    """As the environment says: what to tell of the corrections of all instances in this process; None if nobody wants to know.
    Spans are sent in the background, each second; a receiver that is away costs them, and nothing else.

    UserError if the packages are not installed."""
    endpoint = os.environ.get(VARIABLE)
    if not endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        fix = "pip install 'boreal[otel]', or unset it"
        raise UserError(VARIABLE, endpoint, "needs OpenTelemetry's packages", fix) from None
    return OtelTraces(process, BatchSpanProcessor(OTLPSpanExporter(endpoint), schedule_delay_millis=1_000))
