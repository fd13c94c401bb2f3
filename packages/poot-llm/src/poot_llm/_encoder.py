"""The Python API of encoders: embeddings of texts and scores of pairs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, RequestError, Settings, UnsupportedError
from poot_llm._encoder_driver import EncoderDriver
from poot_llm._encoder_text import (
    EncodedText,
    EncoderText,
    Text,
    encoder_text,
    load_encoder_model,
)

if TYPE_CHECKING:
    from poot_executor import Engine, EngineInfo, EngineOptions
    from poot_load import DownloadProgress

__all__ = ["Encoder", "EncoderOptions", "OpenedEncoder", "open_encoder", "shorten"]

Float32 = NDArray[np.float32]
_BLOCK_SIZE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOptions:
    """What a caller asks of an encoder; see ``Encoder``."""

    backend: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    context: int | None = None
    max_sequences: int = 32
    max_step_tokens: int = 512
    pooling: Literal["mean", "cls", "last"] | None = None
    normalize: bool = True


@dataclass(slots=True, kw_only=True)
class OpenedEncoder:
    """An encoder that is ready to run.

    Attributes:
        engine: The engine.
        text: The text side.
        takes_last: Whether the wanted position of a sequence is its last, not its first.
        resources: Closes all of it.
        load_s: Seconds that opening took.
    """

    engine: Engine
    text: EncoderText
    takes_last: bool
    resources: ExitStack
    load_s: float


def open_encoder(
    name: str | Path, options: EncoderOptions, progress: DownloadProgress | None = None
) -> OpenedEncoder:
    """Open an encoder's checkpoint on a device.

    Raises:
        CheckpointError: If the checkpoint is malformed.
        UnsupportedError: If no encoder reads it, nothing says how to pool, or the device cannot run
            it.
        DeviceError: If the device is absent.
        RequestError: If an option is out of range.
    """
    from poot_executor import open_engine
    from poot_load import open_checkpoint, resolve_model

    start_s = perf_counter()
    settings = Settings.from_environment()
    with ExitStack() as resources:
        checkpoint = resources.enter_context(open_checkpoint(resolve_model(name, progress)))
        model = load_encoder_model(checkpoint, options.pooling, normalize=options.normalize)
        text = encoder_text(checkpoint, model, options.context)
        engine = open_engine(
            model.trace,
            model.cache_key,
            checkpoint.weights,
            model.vocab_size,
            _engine_options(options, text.max_tokens, settings),
            settings,
        )
        resources.callback(engine.close)
        return OpenedEncoder(
            engine=engine,
            text=text,
            takes_last=model.takes_last,
            resources=resources.pop_all(),
            load_s=perf_counter() - start_s,
        )


def _engine_options(options: EncoderOptions, context: int, settings: Settings) -> EngineOptions:
    from poot_executor import EngineOptions

    # A sequence is never cut in two: its tokens see each other.
    tokens = max(options.max_step_tokens, context, options.max_sequences)
    return EngineOptions(
        backend=settings.backend if options.backend == "auto" else options.backend,
        precision=options.precision,
        threads=settings.threads if options.threads is None else options.threads,
        context_tokens=context,
        max_sequences=options.max_sequences,
        max_step_tokens=tokens,
        block_size=_BLOCK_SIZE,
        num_blocks=-(-tokens // _BLOCK_SIZE) + options.max_sequences,
    )


class Encoder:
    """An encoder opened on a device: embeds texts, or scores pairs of them.

    Texts of a call share steps, ragged and without padding; each gets the same bits in any company.

    Args:
        model: A directory of safetensors or a hub id.
        backend: ``auto``, ``oracle`` or the name of an installed device.
        precision: ``f32`` or ``auto``.
        threads: Threads of a host team; None derives it from affinity and quota.
        context: Longest text in tokens; None takes what the model is made for, at most 4096.
        max_sequences: Most texts in one step.
        max_step_tokens: Most tokens in one step; one text fits in any case.
        pooling: How token states become one vector; needed where the checkpoint has no modules.json.
        normalize: Whether vectors are scaled to unit length, where ``pooling`` is given.

    Attributes:
        text: The text side: tokenizer, longest text, dimensions, labels.
        load_s: Seconds that opening took.

    Raises:
        CheckpointError: If the checkpoint is malformed.
        UnsupportedError: If poot has no such encoder, or the device cannot run it.
        DeviceError: If the device is absent.

    Example::

        with Encoder("all-MiniLM-L6-v2") as encoder:
            vectors = encoder.embed(["a cat", "a kitten"])  # (2, 384) float32
    """

    def __init__(
        self,
        model: str | Path,
        *,
        backend: str = "auto",
        precision: str = "auto",
        threads: int | None = None,
        context: int | None = None,
        max_sequences: int = 32,
        max_step_tokens: int = 512,
        pooling: Literal["mean", "cls", "last"] | None = None,
        normalize: bool = True,
    ) -> None:
        opened = open_encoder(
            model,
            EncoderOptions(
                backend=backend,
                precision=precision,
                threads=threads,
                context=context,
                max_sequences=max_sequences,
                max_step_tokens=max_step_tokens,
                pooling=pooling,
                normalize=normalize,
            ),
        )
        self.text = opened.text
        self.load_s = opened.load_s
        self._engine = opened.engine
        self._driver = EncoderDriver(opened.engine, takes_last=opened.takes_last)
        # Closes at the latest when nobody holds this object any more.
        self._release = weakref.finalize(self, opened.resources.close)
        self._lock = Lock()

    @property
    def info(self) -> EngineInfo:
        """Facts of the engine: device, sizes, options."""
        return self._engine.info

    @property
    def dimensions(self) -> int | None:
        """Length of an embedding, or None where the model scores pairs."""
        return self.text.dimensions

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the scores of a pair; empty where the model embeds."""
        return self.text.labels

    def embed(
        self,
        texts: Text | Sequence[Text],
        *,
        dimensions: int | None = None,
        truncate: int | None = None,
    ) -> Float32:
        """Return one vector a text, (n, dimensions).

        Args:
            texts: One or several texts; lists of token ids go in as they are.
            dimensions: Keep so many leading elements, scaled to unit length again (Matryoshka,
                arXiv:2205.13147).
            truncate: Tokens to cut longer texts to, special ones counted; None refuses them.

        Raises:
            UnsupportedError: If the model scores pairs.
            ContextLengthError: If a text is too long and not to be cut.
            RequestError: If a text is empty, an id or ``dimensions`` out of range.
            DeviceError: If the encoder is closed or the device fails.
        """
        if self.dimensions is None:
            raise UnsupportedError("this model scores pairs of texts and makes no embeddings")
        if dimensions is not None and not 1 <= dimensions <= self.dimensions:
            raise RequestError(
                f"dimensions is {dimensions}; this model's vectors have {self.dimensions}",
                field="dimensions",
            )
        encoded = [self.text.encode(each, truncate=truncate) for each in _as_texts(texts)]
        rows = self._run(encoded, self.dimensions)
        return rows if dimensions is None else shorten(rows, dimensions)

    def score(
        self,
        query: str,
        documents: Sequence[str],
        *,
        truncate: int | None = None,
        raw: bool = False,
    ) -> Float32:
        """Return how well each document answers a query: (n,), or (n, labels) if there are several.

        Args:
            query: First text of each pair.
            documents: Second texts.
            truncate: Tokens to cut longer pairs to, special ones counted; None refuses them.
            raw: Leave out the activation that the checkpoint asks for (by default a sigmoid where
                there is one label).

        Raises:
            UnsupportedError: If the model makes embeddings, or has no tokenizer.
            ContextLengthError: If a pair is too long and not to be cut.
        """
        if not self.labels:
            raise UnsupportedError("this model makes embeddings and scores no pairs")
        pairs = [self.text.encode_pair(query, each, truncate=truncate) for each in documents]
        rows = self._run(pairs, len(self.labels))
        rows = rows if raw else self.text.activate(rows)
        return rows[:, 0] if len(self.labels) == 1 else rows

    def _run(self, texts: list[EncodedText], width: int) -> Float32:
        if not texts:
            return np.zeros((0, width), np.float32)
        with self._lock:
            if not self._release.alive:
                raise DeviceError("this Encoder is closed; open it anew")
            self._driver.add(texts)
            while True:
                for result in self._driver.step():
                    if result.error is not None:
                        raise DeviceError(f"the step failed: {result.error}")
                    return result.rows

    def close(self) -> None:
        """Release memory and threads; closing twice is allowed."""
        with self._lock:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def shorten(vectors: Float32, dimensions: int) -> Float32:
    """Return the first elements of vectors, (n, dimensions), of unit length again.

    >>> shorten(np.array([[3.0, 4.0, 12.0]], np.float32), 2)
    array([[0.6, 0.8]], dtype=float32)
    """
    head = vectors[:, :dimensions].astype(np.float64)
    length = np.sqrt((head * head).sum(axis=1, keepdims=True))
    return (head / np.where(length == 0, 1, length)).astype(np.float32)


def _as_texts(texts: Any) -> list[Any]:
    if isinstance(texts, str):
        return [texts]
    listed = list(texts)
    if listed and isinstance(listed[0], int | np.integer):
        return [listed]
    return listed
