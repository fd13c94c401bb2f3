"""The served OpenAPI document, fuzzed: answers keep to it, and nothing ever answers 500."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from serve_process import http

from poot_serve._routes import OPERATIONS

pytestmark = [pytest.mark.client, pytest.mark.xdist_group("schema")]  # its server starts once
schemathesis = pytest.importorskip("schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

MOST_EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "10"))
LONGEST_ANSWER = 4  # those of a random model say nothing about the shape


@pytest.fixture(scope="module")
def schema(server):
    return schemathesis.openapi.from_url(server.url + "/openapi.json")


def shortened(body: object) -> object:
    if not isinstance(body, dict):
        return body
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if type(body.get(name)) is int and body[name] > LONGEST_ANSWER:
            body[name] = LONGEST_ANSWER
    if "messages" in body or "prompt" in body:
        body.setdefault("max_tokens", LONGEST_ANSWER)
    if "input" in body:
        body.setdefault("max_output_tokens", LONGEST_ANSWER)
    return body


@pytest.mark.parametrize(
    ("path", "method", "mode"),
    [
        (each.path, each.method, mode)
        for each in OPERATIONS
        for mode in ("POSITIVE", "NEGATIVE")
        if (mode, each.method) != ("NEGATIVE", "GET")  # nothing can be wrong about these
    ],
)
def test_every_operation_keeps_to_the_document(schema, path, method, mode) -> None:
    operation = schema[path.replace(":path", "")][method]
    wanted = schemathesis.GenerationMode[mode]

    @settings(
        max_examples=MOST_EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(case=operation.as_strategy(generation_mode=wanted))
    def check(case) -> None:
        case.body = shortened(case.body)
        case.validate_response(
            case.call(),
            checks=[
                checks.status_code_conformance,
                checks.content_type_conformance,
                checks.response_schema_conformance,
                schemathesis.checks.not_a_server_error,
            ],
        )

    check()


def test_the_server_is_well_after_all_that(server) -> None:
    assert http.get(server.url + "/health").json() == {"status": "ok"}
    assert "poot_requests_running 0.0" in http.get(server.url + "/metrics").text
