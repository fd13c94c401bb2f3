"""Encoders in the engine process, against transformers in f32; no HTTP, and ids in place of texts."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from poot_core import DeviceError, RequestError
from poot_llm import EncodedText, SamplingParams, open_encoder_text
from poot_serve._engine_encoder import EngineEncoder
from poot_serve._engine_process import EngineProcess
from poot_serve._frames import EngineOptionsFrame

DATA = Path(__file__).parent / "data" / "encoders"


def golden(name: str) -> tuple[list[EncodedText], dict]:
    expected = json.loads((DATA / name / "expected.json").read_text())
    texts = []
    for ids, mask in zip(expected["input_ids"], expected["attention_mask"], strict=True):
        kept = np.array(ids, np.int32)[np.array(mask) == 1]
        texts.append(EncodedText(kept, np.zeros_like(kept)))
    return texts, expected


def child_of(pid: int) -> int:
    """Return the engine among the processes that this one started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = [c for c in children if b"_engine_loop" in Path(f"/proc/{c}/cmdline").read_bytes()]
    assert len(found) == 1
    return int(found[0])


@asynccontextmanager
async def running(name: str, **more: object) -> AsyncIterator[EngineProcess]:
    options = EngineOptionsFrame(
        model=str(DATA / name), backend="oracle", precision="f32", is_encoder=True, max_sequences=4,
        **more,
    )  # fmt: skip
    engine = EngineProcess(options)
    task = asyncio.create_task(engine.run())
    while engine.state.ready is None:
        assert engine.state.failure is None, engine.state.failure
        await engine.changed.wait()
    yield engine
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_embeddings_of_many_requests_at_once() -> None:
    texts, expected = golden("bert")

    async def check() -> None:
        async with running("bert", pooling="mean") as engine:
            alone = await engine.encode(texts)
            np.testing.assert_allclose(alone, expected["mean_pooled_l2"], atol=2e-6, rtol=0)
            together = await asyncio.gather(*(engine.encode(texts * n) for n in (1, 2, 7)))
            for n, rows in zip((1, 2, 7), together, strict=True):
                np.testing.assert_array_equal(rows, np.tile(alone, (n, 1)))
            assert (await engine.encode([])).size == 0
            tokens = sum(len(text.ids) for text in texts)
            assert engine.state.metrics.prompt_tokens == 11 * tokens
            with pytest.raises(RequestError, match="tokens"):
                await engine.encode(
                    [EncodedText(np.zeros(5000, np.int32), np.zeros(5000, np.int32))]
                )
            with pytest.raises(RequestError, match="encoder"):
                await engine.submit([1], SamplingParams()).next_event()
            text = open_encoder_text(DATA / "bert", pooling="mean")
            assert text is not None
            encoder = EngineEncoder(engine, text)
            assert (encoder.dimensions, encoder.scores_pairs) == (alone.shape[1], False)
            vectors, read = await encoder.embed([text.ids.tolist() for text in texts])
            np.testing.assert_array_equal(np.array(vectors, np.float32), alone)
            assert read == tokens
            with pytest.raises(RequestError, match="tokenizer"):
                await encoder.embed(["no tokenizer here"])

    asyncio.run(check())


def test_scores_cancelling_and_death() -> None:
    texts, expected = golden("bert-rerank")

    async def check() -> None:
        async with running("bert-rerank") as engine:
            np.testing.assert_allclose(
                await engine.encode(texts), expected["logits"], atol=2e-6, rtol=0
            )
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(engine.encode(texts * 400), 0.05)
            assert engine.state.cancelled == 1
            work = asyncio.create_task(engine.encode(texts * 400))
            await asyncio.sleep(0.2)
            os.kill(child_of(os.getpid()), signal.SIGKILL)
            with pytest.raises(DeviceError, match="under way"):
                await work
            assert engine.state.lost == 1

    asyncio.run(check())
