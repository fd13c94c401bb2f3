"""Rerank and embeddings of real encoders over HTTP, by text: shapes, order, cuts, refusals, company."""

import base64
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
import tokenizers
from serve_process import Server, http, start, stop
from tokenizers import models, pre_tokenizers, processors

from poot_llm import Encoder

pytestmark = pytest.mark.xdist_group("serve-encoders")  # its servers start once
DATA = Path(__file__).parent / "data" / "encoders"
WORDS = [f"w{number}" for number in range(250)]
QUERY, DOCUMENTS = "w1 w2 w3", ["w4 w5", "w1 w2 w3 w4 w9 w9 w9", "w77", "w4 w5 w6"]


def with_tokenizer(folder: Path, name: str) -> Path:
    shutil.copytree(DATA / name, folder / name)
    vocab = {"[CLS]": 297, "[SEP]": 298, "[UNK]": 299} | {w: i for i, w in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "[UNK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 297), ("[SEP]", 298)],
    )
    tokenizer.save(str(folder / name / "tokenizer.json"))
    return folder / name


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = with_tokenizer(tmp_path_factory.mktemp("rerank"), "bert-rerank")
    running = start(str(folder), "--backend", "cpu", "--precision", "f32")
    yield running, folder
    stop(running)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = with_tokenizer(tmp_path_factory.mktemp("embed"), "bert")
    running = start(
        str(folder), "--backend", "cpu", "--precision", "f32", "--pooling", "mean",
        "--max-waiting-tokens", "3000",
    )  # fmt: skip
    yield running, folder
    stop(running)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_documents_are_ordered_by_their_scores(reranker, path) -> None:
    server, folder = reranker
    with Encoder(folder, backend="oracle", precision="f32") as encoder:
        wanted = encoder.score(QUERY, DOCUMENTS)
    with httpx.Client(base_url=server.url) as client:
        body = {"model": "any", "query": QUERY, "documents": DOCUMENTS}
        answer = client.post(path, json=body).raise_for_status().json()
        results = answer["results"]
        assert [each["index"] for each in results] == np.argsort(-wanted).tolist()
        for each in results:
            assert each["relevance_score"] == pytest.approx(wanted[each["index"]], abs=1e-6)
            assert "document" not in each
        assert answer["usage"]["total_tokens"] == sum(3 + 3 + len(d.split()) for d in DOCUMENTS)
        assert answer["meta"]["api_version"] == {"version": path[2]}
        # The shapes of Jina: documents as objects and back in the answer, the best alone.
        more = {"top_n": 2, "return_documents": True, "documents": [{"text": d} for d in DOCUMENTS]}
        found = client.post(path, json=body | more).raise_for_status().json()["results"]
        assert [each["relevance_score"] for each in found] == [
            each["relevance_score"] for each in results[:2]
        ]
        assert found[0]["document"]["text"] == DOCUMENTS[found[0]["index"]]


def test_pairs_that_are_too_long_are_cut_only_where_asked(reranker) -> None:
    server, _ = reranker
    body = {"query": QUERY, "documents": ["w8 " * 200]}
    with httpx.Client(base_url=server.url) as client:
        refused = client.post("/v1/rerank", json=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        cut = client.post("/v1/rerank", json=body | {"max_tokens_per_doc": 100})
        assert cut.raise_for_status().json()["usage"]["total_tokens"] == 100
        for path, other in (
            ("/v1/embeddings", {"input": "w1"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "w1"}]}),
            ("/v1/completions", {"prompt": "w1"}),
            ("/v1/responses", {"input": "w1"}),
            ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "w1"}]}),
        ):
            answer = client.post(path, json=other)
            assert answer.status_code == 400, path
            assert answer.json()["error"]["code"] == "unsupported_task", path


def test_openai_client_embeds_any_input_with_the_same_bits(embedder) -> None:
    server, folder = embedder
    texts = [" ".join(WORDS[n : 2 * n + 1]) for n in (1, 5, 30, 2)]
    with Encoder(folder, backend="oracle", precision="f32", pooling="mean") as encoder:
        wanted = encoder.embed(texts)
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:

        def embed(**options) -> np.ndarray:
            found = client.embeddings.create(model="any", **options)
            return np.array([each.embedding for each in found.data], np.float32)

        packed = embed(input=texts)  # this client asks for base64
        np.testing.assert_allclose(packed, wanted, atol=2e-6, rtol=0)
        np.testing.assert_array_equal(embed(input=texts, encoding_format="float"), packed)
        for text, row in zip(texts, packed, strict=True):
            np.testing.assert_array_equal(embed(input=text)[0], row)
        ids = [[297, 1, 2, 298], [7]]
        np.testing.assert_array_equal(embed(input=ids[0])[0], embed(input=ids)[0])
        short = embed(input=texts, dimensions=8)
        head = wanted[:, :8] / np.linalg.norm(wanted[:, :8], axis=1, keepdims=True)
        np.testing.assert_allclose(short, head, atol=1e-5)
        with ThreadPoolExecutor(8) as pool:
            for found in pool.map(lambda _: embed(input=texts), range(24)):
                np.testing.assert_array_equal(found, packed)
        for wrong, field in (
            ({"input": "w1", "dimensions": 65}, "dimensions"),
            ({"input": [[300]]}, "input"),
            ({"input": "w1 " * 200}, "input"),
            ({"input": ["w1", [2]]}, "input"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                embed(**wrong)
            assert caught.value.param == field
        cut = client.embeddings.create(
            model="any", input="w1 " * 200, extra_body={"truncate_prompt_tokens": -1}
        )
        assert cut.usage.prompt_tokens == 128


def test_the_raw_body_is_openais(embedder) -> None:
    server, _ = embedder
    body = {"input": "w1 w2", "model": "any", "encoding_format": "base64"}
    answer = http.post(server.url + "/v1/embeddings", json=body).raise_for_status().json()
    (entry,) = answer.pop("data")
    assert len(base64.b64decode(entry.pop("embedding"))) == 4 * 64
    assert entry == {"index": 0, "object": "embedding"}
    assert answer == {
        "object": "list", "model": answer["model"], "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }  # fmt: skip
    metrics = http.get(server.url + "/metrics").text.splitlines()
    (tokens,) = (line.split()[1] for line in metrics if line.startswith("poot_prompt_tokens_total"))
    assert float(tokens) >= 4


def test_more_than_there_is_room_for_waits_or_is_refused(embedder) -> None:
    """Requests that together hold more tokens than may wait: each is answered whole, or with a 429."""
    server, _ = embedder
    body = json.dumps({"input": ["w1 " * 100] * 20}).encode()

    def ask(_: int) -> httpx.Response:
        return http.post(server.url + "/v1/embeddings", content=body, timeout=60)

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(36)))
    assert {each.status_code for each in answers} <= {200, 429}
    assert any(each.status_code == 200 for each in answers)
    for each in answers:
        if each.status_code == 200:
            assert len(each.json()["data"]) == 20
        else:
            assert "retry-after" in each.headers
