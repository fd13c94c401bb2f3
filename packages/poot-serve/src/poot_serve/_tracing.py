"""OpenTelemetry spans, one a request, where the extra ``otel`` is installed and an endpoint is set."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from poot_core import SettingsError
from poot_serve._record import Record

__all__ = ["Span", "Tracer"]


class Span:
    """One request's span."""

    def __init__(self, span: Any, status: Any) -> None:
        self._span = span
        self._status = status

    def end(self, record: Record) -> None:
        """Write down how the request ended."""
        facts = {
            "http.response.status_code": record.status,
            "poot.request_id": record.request_id,
            "poot.outcome": record.final_outcome,
            "gen_ai.request.model": record.model,
            "gen_ai.usage.input_tokens": record.prompt_tokens or None,
            "gen_ai.usage.output_tokens": record.completion_tokens or None,
            "gen_ai.response.finish_reasons": record.finish_reasons or None,
            "gen_ai.server.time_to_first_token": record.first_token_s,
        }
        for name, value in facts.items():
            if value is not None:
                self._span.set_attribute(name, value)
        if record.final_outcome == "failed":
            self._span.set_status(self._status)
        self._span.end()


class Tracer:
    """Makes a span of each request and hands it to an exporter.

    Args:
        exporter: A ``SpanExporter`` of OpenTelemetry's SDK.

    Raises:
        SettingsError: If the libraries are not installed.
    """

    def __init__(self, exporter: Any) -> None:
        trace = _imported("opentelemetry.trace")
        sdk = _imported("opentelemetry.sdk.trace")
        export = _imported("opentelemetry.sdk.trace.export")
        resources = _imported("opentelemetry.sdk.resources")
        context = _imported("opentelemetry.trace.propagation.tracecontext")
        resource = resources.Resource.create({"service.name": "poot-serve"})
        self._provider = sdk.TracerProvider(resource=resource)
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("poot_serve")
        self._propagator = context.TraceContextTextMapPropagator()
        self._server_kind = trace.SpanKind.SERVER
        self._error = trace.Status(trace.StatusCode.ERROR)

    @classmethod
    def over_http(cls, endpoint: str) -> Tracer:
        """Return a tracer that sends spans over OTLP/HTTP.

        Args:
            endpoint: URL of the collector's ``/v1/traces``.

        Raises:
            SettingsError: If the libraries are not installed.
        """
        otlp = _imported("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        return cls(otlp.OTLPSpanExporter(endpoint=endpoint))

    def begin(self, record: Record, headers: Mapping[str, str]) -> Span:
        """Return a span, a child of the caller's where it sent one."""
        span = self._tracer.start_span(
            f"{record.method} {record.path}",
            context=self._propagator.extract(dict(headers)),
            kind=self._server_kind,
            attributes={"http.request.method": record.method, "url.path": record.path},
        )
        return Span(span, self._error)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def _imported(name: str) -> Any:
    """Import by name: the extra need not be there for anything else."""
    try:
        return import_module(name)
    except ImportError as error:
        raise SettingsError(
            "otlp_endpoint is set but OpenTelemetry is not installed; install poot-serve[otel]"
        ) from error
