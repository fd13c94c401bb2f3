"""Traces reach a collector over OTLP/HTTP, as children of the caller's span; needs ``[otel]``."""

from __future__ import annotations

import http.server
import threading
import time

import httpx
import pytest
from serve_process import start, stop

trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")


def test_a_request_is_a_span(checkpoint) -> None:
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
    running = start(str(checkpoint), "--backend", "cpu", "--otlp-endpoint", endpoint)
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    try:
        answer = httpx.post(
            running.url + "/v1/completions",
            json={"prompt": "abc", "max_tokens": 3, "ignore_eos": True},
            headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"},
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
    assert span.trace_id.hex() == trace_id
    facts = {each.key: each.value for each in span.attributes}
    assert facts["gen_ai.usage.input_tokens"].int_value == 3
    assert facts["gen_ai.usage.output_tokens"].int_value == 3
    assert facts["http.response.status_code"].int_value == 200
