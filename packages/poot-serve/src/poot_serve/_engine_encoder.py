"""Encoders in the engine process: the loop that runs one, and the server's end of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from poot_core import PootError, RequestError
from poot_llm import EncodedText, EncoderDriver, EncoderText
from poot_serve._engine_process import EngineProcess
from poot_serve._frames import (
    Cancel,
    Encode,
    Encoded,
    EngineMetrics,
    FrameBuffer,
    Refused,
    Stepped,
    ToEngine,
    decode_to_engine,
    encode_frame,
)

__all__ = ["EncoderLoop", "EngineEncoder"]

_READ_BYTES = 1 << 18


class EncoderLoop:
    """Runs an encoder's driver until the other side closes the connection.

    Args:
        connection: A connected stream socket.
        driver: The driver to run.
    """

    def __init__(self, connection: socket.socket, driver: EncoderDriver) -> None:
        self._connection = connection
        self._driver = driver
        self._buffer = FrameBuffer()
        self._key_of: dict[int, int] = {}
        self._id_of: dict[int, int] = {}
        self._step_s = 0.0
        self._faults = 0

    def run(self) -> None:
        """Serve until the other side closes the connection."""
        while self._take_frames(wait=not self._driver.has_work):
            if self._driver.has_work:
                self._step()

    def _take_frames(self, *, wait: bool) -> bool:
        self._connection.setblocking(wait)
        try:
            data = self._connection.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        finally:
            self._connection.setblocking(True)
        for body in self._buffer.push(data):
            self._handle(decode_to_engine(body))
        return bool(data)

    def _handle(self, frame: ToEngine) -> None:
        if isinstance(frame, Cancel):
            request_id = self._id_of.pop(frame.key, None)
            if request_id is not None:
                del self._key_of[request_id]
                self._driver.cancel(request_id)
        elif isinstance(frame, Encode):
            texts = [
                EncodedText(np.frombuffer(ids, "<i4"), np.frombuffer(types, "<i4"))
                for ids, types in zip(frame.ids, frame.types, strict=True)
            ]
            try:
                request_id = self._driver.add(texts)
            except RequestError as error:
                self._refuse(frame.key, error)
                return
            self._id_of[frame.key] = request_id
            self._key_of[request_id] = frame.key
        else:
            self._refuse(frame.key, RequestError("this model is an encoder and generates nothing"))

    def _refuse(self, key: int, error: RequestError) -> None:
        refusal = Refused(
            key=key, message=error.message, status=error.status, field=error.field, code=error.code
        )
        self._connection.sendall(encode_frame(refusal))

    def _step(self) -> None:
        start_s = perf_counter()
        results = self._driver.step()
        self._step_s += perf_counter() - start_s
        frames: list[bytes] = []
        for result in results:
            key = self._key_of.pop(result.request_id, None)
            if key is None:  # cancelled after a part of it had run
                continue
            del self._id_of[key]
            self._faults += result.error is not None
            frames.append(
                encode_frame(
                    Encoded(
                        key=key,
                        rows=result.rows.astype("<f4").tobytes(),
                        width=result.rows.shape[1],
                        error=result.error,
                    )
                )
            )
        frames.append(
            encode_frame(Stepped(keys=[], token_ids=[], events=[], metrics=self._metrics()))
        )
        self._connection.sendall(b"".join(frames))

    def _metrics(self) -> EngineMetrics:
        stats = self._driver.stats
        return EngineMetrics(
            waiting=stats.waiting,
            waiting_tokens=stats.waiting_tokens,
            batch_rows=stats.rows,
            batch_tokens=stats.row_tokens,
            steps=stats.steps,
            step_s=self._step_s,
            device_s=stats.device_s,
            prompt_tokens=stats.tokens,
            faults=self._faults,
        )


class EngineEncoder:
    """Embeds texts and scores pairs through an engine process that runs an encoder.

    Tokenizing runs on another thread, so that the server's loop goes on.

    Args:
        engine: A process whose options say ``is_encoder``.
        text: The text side of the same checkpoint.
    """

    def __init__(self, engine: EngineProcess, text: EncoderText) -> None:
        self._engine = engine
        self._text = text

    @property
    def dimensions(self) -> int | None:
        """Length of its vectors, or None where it only scores."""
        return self._text.dimensions

    @property
    def scores_pairs(self) -> bool:
        """Whether it is a cross-encoder with one score a pair."""
        return len(self._text.labels) == 1

    async def embed(
        self, inputs: Sequence[str] | Sequence[Sequence[int]], *, truncate: int | None = None
    ) -> tuple[list[list[float]], int]:
        """Return a vector for each input, and the tokens read; longer inputs are cut to ``truncate``.

        Raises:
            RequestError: If an input is empty, too long or outside the vocabulary.
            DeviceError: If the step failed or the engine died.
        """
        texts = await self._encoded(
            lambda: [self._text.encode(each, truncate=truncate) for each in inputs]
        )
        rows = await self._engine.encode(texts)
        return rows.tolist(), sum(len(text.ids) for text in texts)

    async def score(
        self, query: str, documents: Sequence[str], *, truncate: int | None = None
    ) -> tuple[list[float], int]:
        """Return a score for each document, higher is better, and the tokens read.

        Longer pairs are cut to ``truncate`` tokens.

        Raises:
            RequestError: If a pair is too long.
            DeviceError: If the step failed or the engine died.
        """
        texts = await self._encoded(
            lambda: [self._text.encode_pair(query, each, truncate=truncate) for each in documents]
        )
        rows = self._text.activate(await self._engine.encode(texts))
        return rows[:, 0].tolist(), sum(len(text.ids) for text in texts)

    async def _encoded(self, work: Callable[[], list[EncodedText]]) -> list[EncodedText]:
        self._engine.check_room(1, 0)  # before the time to tokenize is spent
        try:
            return await asyncio.to_thread(work)
        except RequestError:
            raise
        except PootError as error:  # no tokenizer, as a client has to hear it
            raise RequestError(error.message, field="input") from error
