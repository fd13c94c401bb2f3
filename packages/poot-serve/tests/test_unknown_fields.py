"""Fields that are not known are named once each, within bounds."""

from __future__ import annotations

import json
import logging

import msgspec
import pytest

from poot_serve._unknown_fields import UnknownFields


class Body(msgspec.Struct):
    prompt: str
    max_tokens: int | None = msgspec.field(name="maxTokens", default=None)


def fields(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.facts["field"] for record in caplog.records]


def test_each_unknown_field_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "poot_serve")
    unknown = UnknownFields()
    body = {"prompt": "secret", "maxTokens": 3, "temprature": {"deep": [1, 2]}}
    unknown.note(json.dumps(body).encode(), Body)
    unknown.note(json.dumps(body | {"max_tokens": 1}).encode(), Body)
    assert fields(caplog) == ["temprature", "max_tokens"]
    assert "secret" not in caplog.text


def test_names_without_end_do_not_fill_memory_or_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "poot_serve")
    unknown = UnknownFields()
    for start in range(0, 1000, 50):
        body = {"prompt": ""} | {f"{n:04}" + "x" * 9000: 0 for n in range(start, start + 50)}
        unknown.note(json.dumps(body).encode(), Body)
    assert len(caplog.records) == 256
    assert all(len(name) == 64 for name in fields(caplog))
