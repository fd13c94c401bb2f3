"""What every handler needs: the engine, the text side of the model, names, limits and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import time
from typing import Any, Protocol, TypeVar

from poot_core import RequestError
from poot_llm import OverloadedError
from poot_llm.text import Tokenizer
from poot_serve._body import BodyBudget
from poot_serve._engine_process import EngineProcess
from poot_serve._errors import coded
from poot_serve._metrics import Metrics
from poot_serve._parsing.deltas import Marker
from poot_serve._parsing.formats import AnswerFormat
from poot_serve._parsing.lexer import marker_ids
from poot_serve._settings import Limits
from poot_serve._unknown_fields import UnknownFields

__all__ = ["Encoder", "ServerState"]

_MOST_CHARACTERS_A_TOKEN = (
    256  # far above any text's average: the longest tokens are runs of spaces
)
_MOST_BODIES = 16  # of the largest size, in memory at once
_MOST_PENDING_TEXTS = 64  # long texts that wait for a thread
_INLINE_CHARACTERS = 16_384  # takes about a millisecond to tokenize: less than a thread is worth
T = TypeVar("T")


class Encoder(Protocol):
    """A model that embeds texts or scores pairs; none is loaded beside a generating model."""

    @property
    def dimensions(self) -> int | None:
        """Length of its vectors, or None where it only scores."""
        ...

    @property
    def scores_pairs(self) -> bool:
        """Whether it is a cross-encoder."""
        ...

    async def embed(
        self, inputs: list[str] | list[list[int]], *, truncate: int | None = None
    ) -> tuple[list[list[float]], int]:
        """Return a vector for each input, and the tokens read.

        Inputs of more than ``truncate`` tokens, or than the model takes, are cut; without it they are
        refused.
        """
        ...

    async def score(
        self, query: str, documents: list[str], *, truncate: int | None = None
    ) -> tuple[list[float], int]:
        """Return a score for each document, higher is better, and the tokens read; cuts as ``embed``."""
        ...


@dataclass(slots=True, kw_only=True)
class ServerState:
    """Shared state of the server.

    Attributes:
        engine: The engine process.
        tokenizer: Of the model, or None.
        model_name: Name that the API reports.
        served_names: Names that requests may use; empty accepts any.
        sampling_defaults: The checkpoint's own defaults.
        answer_format: How the model writes calls and reasoning.
        encoder: Answers embeddings or rerank where the model is an encoder, or None.
        limits: What a request may take.
        logs_prompts: Whether prompts are written into the log.
        metrics: Series of this server.
        bodies: Bytes of all bodies that are being read.
        unknown_fields: Which fields without effect the log has named.
        is_draining: Whether the server is stopping and takes no more requests.
        created: Start of the server, seconds since 1970.
    """

    engine: EngineProcess
    tokenizer: Tokenizer | None
    model_name: str
    served_names: tuple[str, ...] = ()
    sampling_defaults: dict[str, Any] = field(default_factory=dict[str, Any])
    answer_format: AnswerFormat = field(default_factory=lambda: AnswerFormat(None, None))
    encoder: Encoder | None = None
    limits: Limits = field(default_factory=Limits)
    logs_prompts: bool = False
    metrics: Metrics = field(init=False)
    bodies: BodyBudget = field(init=False)
    unknown_fields: UnknownFields = field(default_factory=UnknownFields)
    is_draining: bool = False
    created: int = field(default_factory=lambda: int(time()))
    _workers: ThreadPoolExecutor = field(init=False)
    _pending_texts: int = 0
    _marker_ids: dict[tuple[str, ...], dict[int, Marker]] = field(
        default_factory=dict[tuple[str, ...], dict[int, Marker]]
    )

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.engine)
        self.bodies = BodyBudget(_MOST_BODIES * self.limits.max_body_bytes)
        self._workers = ThreadPoolExecutor(2, "text")

    @property
    def context_tokens(self) -> int | None:
        """Longest sequence, or None while the engine loads."""
        ready = self.engine.state.ready
        return None if ready is None else ready.context_tokens

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model."""
        return self.served_names or (self.model_name,)

    def check_model(self, name: str | None) -> str:
        """Return the name to report.

        Raises:
            RequestError: With status 404 if only certain names are served and this is none of them.
        """
        if not self.served_names:
            return self.model_name
        if not name or name in self.served_names:
            return name or self.served_names[0]
        raise coded(
            f"there is no model {name!r}; served: {', '.join(self.served_names)}",
            "model_not_found",
            status=404,
            field="model",
        )

    def check_generates(self) -> None:
        """Refuse a request to generate where the model is an encoder.

        Raises:
            RequestError: With code ``unsupported_task``.
        """
        if self.encoder is not None:
            path = "/v1/rerank" if self.encoder.dimensions is None else "/v1/embeddings"
            raise coded(
                f"the model served here is an encoder and generates nothing; it answers {path}",
                "unsupported_task",
                field="model",
            )

    def check_room(self) -> None:
        """Refuse a request that there is no room for, before its body is read.

        Raises:
            OverloadedError: While the engine is not ready or is full.
            RequestError: With status 503 while the server is stopping.
        """
        if self.is_draining:
            raise coded("the server is stopping", "draining", status=503)
        if self._pending_texts >= _MOST_PENDING_TEXTS:
            raise OverloadedError("too many long prompts wait to be tokenized; try again soon")
        self.engine.check_room(1, 0)

    def check_text_length(self, characters: int) -> None:
        """Refuse text that cannot fit, before the time to tokenize it is spent.

        Raises:
            RequestError: If the context cannot hold so many characters.
        """
        context = self.context_tokens
        if context is None or characters <= context * _MOST_CHARACTERS_A_TOKEN:
            return
        raise coded(
            f"the prompt has {characters} characters and the context holds {context} tokens; "
            "shorten the prompt or start the server with a larger context",
            "context_length_exceeded",
            field="prompt",
        )

    def marker_ids(self, markers: tuple[str, ...]) -> dict[int, Marker]:
        """Return those control words that are single tokens, by id."""
        found = self._marker_ids.get(markers)
        if found is None:
            found = marker_ids(self.require_tokenizer("messages"), markers)
            self._marker_ids[markers] = found
        return found

    def require_tokenizer(self, field_name: str) -> Tokenizer:
        """Return the tokenizer.

        Raises:
            RequestError: If the model has none, so that it takes and gives ids alone.
        """
        if self.tokenizer is None:
            raise RequestError(
                "this model has no tokenizer files: send token ids to /v1/completions",
                field=field_name,
            )
        return self.tokenizer

    async def with_text(self, characters: int, work: Callable[[], T]) -> T:
        """Return what ``work`` makes of a text: in another thread where it may take long."""
        if characters <= _INLINE_CHARACTERS:
            return work()
        self._pending_texts += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._workers, work)
        finally:
            self._pending_texts -= 1
