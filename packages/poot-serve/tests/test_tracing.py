"""Traces: a span a request, whoever takes it, and over the wire of OTLP/HTTP; needs ``[otel]``."""

from __future__ import annotations

import asyncio
import http.server
import sys
import threading
import time

import httpx
import pytest
from serve_process import start, stop

from poot_core import SettingsError
from poot_serve import EngineProcess, ServerState, make_app
from poot_serve._frames import EngineOptionsFrame
from poot_serve._tracing import Tracer

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}


@pytest.mark.client
def test_spans_reach_any_exporter_with_how_the_request_ended() -> None:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.trace import SpanKind, StatusCode

    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter)
    engine = EngineProcess(EngineOptionsFrame(model="none"))  # it is never started
    state = ServerState(engine=engine, tokenizer=None, model_name="m")
    transport = httpx.ASGITransport(make_app(state, tracer=tracer))

    async def ask() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            assert (await client.get("/v1/models", headers=PARENT)).status_code == 200
            late = await client.post("/v1/completions", json={"prompt": [1]})
            assert late.status_code == 503

    asyncio.run(ask())
    tracer.close()
    listed, refused = exporter.get_finished_spans()
    assert (listed.name, refused.name) == ("GET /v1/models", "POST /v1/completions")
    assert listed.kind is SpanKind.SERVER
    assert listed.parent is not None
    assert f"{listed.parent.trace_id:032x}" == TRACE_ID
    assert f"{listed.parent.span_id:016x}" == "b7ad6b7169203331"
    assert listed.attributes is not None
    assert refused.attributes is not None
    assert listed.attributes["http.response.status_code"] == 200
    assert listed.attributes["poot.outcome"] == "ok"
    assert refused.parent is None
    assert refused.attributes["http.response.status_code"] == 503
    assert refused.attributes["poot.outcome"] == "overloaded"
    assert refused.status.status_code is StatusCode.UNSET
    assert listed.resource.attributes["service.name"] == "poot-serve"


@pytest.mark.parametrize("missing", ["opentelemetry.sdk.trace", "opentelemetry.exporter"])
def test_without_the_extra_its_name_is_told(monkeypatch, missing) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SettingsError, match=r"install poot-serve\[otel\]"):
        Tracer.over_http("http://127.0.0.1:1/v1/traces")


@pytest.mark.client
def test_a_request_is_a_span_on_the_wire(checkpoint) -> None:
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_service

    bodies: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_) -> None:
            pass

    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    running = start(
        str(checkpoint), "--backend", "oracle", "--precision", "f32", "--otlp-endpoint", endpoint
    )
    try:
        answer = httpx.post(
            running.url + "/v1/completions",
            json={"prompt": "abc", "max_tokens": 3, "ignore_eos": True},
            headers=PARENT,
        )
        assert answer.status_code == 200
    finally:
        stop(running)  # what is left is sent when the server ends
    deadline = time.monotonic() + 10
    while not bodies and time.monotonic() < deadline:
        time.sleep(0.05)
    collector.shutdown()
    collector.server_close()
    spans = [
        span
        for body in bodies
        for resource in trace_service.ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    (span,) = [span for span in spans if span.name == "POST /v1/completions"]
    assert span.trace_id.hex() == TRACE_ID
    facts = {each.key: each.value for each in span.attributes}
    assert facts["gen_ai.usage.input_tokens"].int_value == 3
    assert facts["gen_ai.usage.output_tokens"].int_value == 3
    assert facts["http.response.status_code"].int_value == 200
