"""Embeddings and rerank over HTTP with an encoder made of plain arithmetic, and health while loading."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import struct
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from serve_process import start, stop

from poot_serve import EngineProcess, ServerState, make_app
from poot_serve._frames import EngineOptionsFrame


class Letters:
    """Embeds by counting letters; scores by how many letters of the query a document has."""

    dimensions = 4
    scores_pairs = True

    async def embed(self, inputs, *, truncate=None):
        vectors = []
        for text in inputs:
            counts = (
                [text.count("abcd"[i]) for i in range(4)] if isinstance(text, str) else text[:4]
            )
            length = math.sqrt(sum(c * c for c in counts)) or 1.0
            vectors.append([c / length for c in counts])
        return vectors, sum(map(len, inputs))

    async def score(self, query, documents, *, truncate=None):
        return [sum(d.count(c) for c in query) / 8 for d in documents], len(query)


def state_with(encoder) -> ServerState:
    engine = EngineProcess(EngineOptionsFrame(model="none"))
    return ServerState(engine=engine, tokenizer=None, model_name="letters", encoder=encoder)


def ask(state: ServerState, method: str, path: str, body=None) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(state), raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://poot") as client:
            return await client.request(method, path, json=body)

    return asyncio.run(run())


def test_embeddings_as_floats_base64_and_shortened() -> None:
    state = state_with(Letters())
    body = {"input": ["aab", "cd"], "model": "letters"}
    floats = ask(state, "POST", "/v1/embeddings", body).json()
    first, second = (each["embedding"] for each in floats["data"])
    assert first == pytest.approx([2 / math.sqrt(5), 1 / math.sqrt(5), 0, 0])
    assert second == pytest.approx([0, 0, 1 / math.sqrt(2), 1 / math.sqrt(2)])
    assert floats["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    packed = ask(state, "POST", "/v1/embeddings", {**body, "encoding_format": "base64"}).json()
    data = base64.b64decode(packed["data"][0]["embedding"])
    assert struct.unpack("<4f", data) == pytest.approx(first)
    short = ask(state, "POST", "/v1/embeddings", {**body, "dimensions": 1}).json()
    assert short["data"][0]["embedding"] == pytest.approx([1.0])
    long = ask(state, "POST", "/v1/embeddings", {**body, "dimensions": 5})
    assert (long.status_code, long.json()["error"]["param"]) == (400, "dimensions")
    ids = ask(state, "POST", "/v1/embeddings", {"input": [[3, 4, 0, 0]]}).json()
    assert ids["data"][0]["embedding"] == pytest.approx([0.6, 0.8, 0, 0])
    for wrong in ([""], ["a", [1]], [[]]):
        assert ask(state, "POST", "/v1/embeddings", {"input": wrong}).status_code == 400


def test_the_openai_client_reads_embeddings() -> None:
    async def run():
        http = httpx.AsyncClient(transport=httpx.ASGITransport(make_app(state_with(Letters()))))
        async with openai.AsyncOpenAI(
            base_url="http://poot/v1", api_key="none", http_client=http
        ) as client:
            return await client.embeddings.create(model="letters", input="aab")

    found = asyncio.run(run())
    assert found.data[0].embedding == pytest.approx([2 / math.sqrt(5), 1 / math.sqrt(5), 0, 0])


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_rerank_orders_documents(path) -> None:
    body = {
        "query": "ab", "documents": ["cc", "abab", {"text": "a"}], "top_n": 2,
        "return_documents": True,
    }  # fmt: skip
    found = ask(state_with(Letters()), "POST", path, body).json()
    assert found["results"] == [
        {"index": 1, "relevance_score": 0.5, "document": {"text": "abab"}},
        {"index": 2, "relevance_score": 0.125, "document": {"text": "a"}},
    ]
    assert found["meta"]["api_version"]["version"] == path[2]


def test_health_tells_progress_until_the_engine_is_ready() -> None:
    state = state_with(None)
    state.engine.state.stage, state.engine.state.done, state.engine.state.total = "weights", 1, 4
    loading = ask(state, "GET", "/health")
    assert loading.status_code == 503
    assert loading.json() == {"status": "loading", "detail": "weights", "progress": 0.25}
    refused = ask(state, "POST", "/v1/completions", {"prompt": "x"})
    assert refused.status_code == 503
    assert "retry-after" in refused.headers
    state.is_draining = True
    assert ask(state, "GET", "/health").json() == {"status": "draining"}


def test_a_real_encoder_over_http() -> None:
    """Vectors of transformers, in f32, by token ids: the tiny encoder has no tokenizer files."""
    folder = Path(__file__).parent / "data" / "encoders" / "bert"
    expected = json.loads((folder / "expected.json").read_text())
    ids = [
        [i for i, kept in zip(row, mask, strict=True) if kept]
        for row, mask in zip(expected["input_ids"], expected["attention_mask"], strict=True)
    ]
    running = start(str(folder), "--backend", "oracle", "--precision", "f32", "--pooling", "mean")
    try:
        with openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as client:
            found = client.embeddings.create(model="bert", input=ids)
            got = [each.embedding for each in found.data]
            np.testing.assert_allclose(got, expected["mean_pooled_l2"], atol=2e-6, rtol=0)
            assert found.usage.prompt_tokens == sum(map(len, ids))
            with pytest.raises(openai.BadRequestError) as caught:
                client.completions.create(model="bert", prompt=[1])
            assert caught.value.code == "unsupported_task"
            with pytest.raises(openai.BadRequestError, match="tokenizer"):
                client.embeddings.create(model="bert", input="text")
    finally:
        stop(running)
