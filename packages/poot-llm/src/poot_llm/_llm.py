"""The Python API: a model that is ready to answer."""

from __future__ import annotations

import operator
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, RequestError, UnsupportedError
from poot_executor import Engine, EngineInfo
from poot_llm._answer import Answer, Delta, Output
from poot_llm._driver import Driver, DriverStats
from poot_llm._fair_lock import FairLock
from poot_llm._request import Request, ScoredPrompt, TokenEvent
from poot_llm._sampling_params import SamplingParams
from poot_llm._text_stream import TextStream
from poot_llm._tokenizer import Tokenizer

if TYPE_CHECKING:
    from poot_llm._open import OpenedModel, OpenOptions

__all__ = ["LLM", "Prompt"]

Prompt = str | Sequence[int]
"""Text, which gets BOS by the tokenizer's rule, or ids, which go in as they are."""


class LLM:
    """A checkpoint opened on a device.

    Calls from several threads and streams that are open at once share its steps.

    Args:
        model: A GGUF file or a directory of safetensors.
        backend: ``auto``, ``oracle`` or the name of an installed device.
        precision: ``f32`` or ``auto``.
        threads: Threads of a host team; None derives it from affinity and quota.
        context: Longest sequence in tokens; None takes 4096, or less where the model ends earlier.
        max_sequences: Most sequences in one step.
        max_step_tokens: Most tokens in one step, that is the longest piece of a prompt.

    Attributes:
        tokenizer: The checkpoint's tokenizer, or None where it has none.
        sampling_defaults: Fields of ``SamplingParams`` that the checkpoint recommends; they hold
            where a call names no params.
        load_s: Seconds that opening took.

    Raises:
        CheckpointError: If the checkpoint is malformed.
        UnsupportedError: If poot has no such architecture, or the device cannot run it.
        DeviceError: If the device is absent.

    Example::

        with LLM("model.gguf") as llm:
            [output] = llm.generate("The capital of France is", SamplingParams(temperature=0.0))
            print(output.text)
    """

    def __init__(
        self,
        model: str | Path,
        backend: str = "auto",
        precision: str = "auto",
        threads: int | None = None,
        context: int | None = None,
        *,
        max_sequences: int = 32,
        max_step_tokens: int = 512,
    ) -> None:
        from poot_llm._open import OpenOptions, open_model

        options = OpenOptions(
            backend=backend,
            precision=precision,
            threads=threads,
            context=context,
            max_sequences=max_sequences,
            max_step_tokens=max_step_tokens,
        )
        self._start(open_model(model, options))

    @classmethod
    def open(cls, model: str | Path, options: OpenOptions) -> Self:
        """Return an LLM over a checkpoint, with options in one record."""
        from poot_llm._open import open_model

        llm = cls.__new__(cls)
        llm._start(open_model(model, options))
        return llm

    @classmethod
    def from_engine(
        cls,
        engine: Engine,
        *,
        tokenizer: Tokenizer | None = None,
        eos_token_ids: Iterable[int] = (),
    ) -> Self:
        """Return an LLM over an engine that is open already; closing it closes the engine."""
        from poot_llm._open import OpenedModel

        resources = ExitStack()
        resources.callback(engine.close)
        llm = cls.__new__(cls)
        llm._start(
            OpenedModel(
                engine=engine,
                tokenizer=tokenizer,
                eos_token_ids=frozenset(eos_token_ids),
                resources=resources,
            )
        )
        return llm

    def _start(self, opened: OpenedModel) -> None:
        self.tokenizer = opened.tokenizer
        self.sampling_defaults = opened.sampling_defaults
        self.load_s = opened.load_s
        self._engine = opened.engine
        # Closes at the latest when nobody holds this object any more.
        self._release = weakref.finalize(self, opened.resources.close)
        self._lock = FairLock()
        self._inbox: dict[int, deque[TokenEvent]] = {}
        try:
            self._driver = Driver(
                opened.engine, eos_token_ids=opened.eos_token_ids, vocabulary=opened.vocabulary
            )
        except BaseException:
            self._release()
            raise

    @property
    def info(self) -> EngineInfo:
        """Facts of the engine: device, sizes, options."""
        return self._engine.info

    @property
    def engine(self) -> Engine:
        """The engine, for measuring; do not step it while requests run."""
        return self._engine

    @property
    def stats(self) -> DriverStats:
        """What the driver holds at this moment."""
        return self._driver.stats

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Output]:
        """Return one finished answer a prompt, in order; prompts share steps.

        Args:
            prompts: A text, ids, or a list of such.
            params: For all prompts, or one each; None takes the checkpoint's own defaults.

        Raises:
            RequestError: If a prompt or a parameter is refused; nothing runs then.
            ContextLengthError: If a prompt does not fit.
            DeviceError: If the device fails.
        """
        listed = _as_prompts(prompts)
        return self._answer_all(
            [self._prompt_ids(prompt) for prompt in listed],
            self._as_params(params, len(listed)),
            continues=True,
        )

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Generator[Delta, None, None]:
        """Return an iterator of what comes, as it comes; closing it cancels the rest.

        Raises:
            RequestError: As ``generate``, at once.
        """
        return self._stream(self._prompt_ids(prompt), params, continues=True)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Output:
        """Return the assistant's answer to a conversation.

        Args:
            messages: Each with ``role`` and ``content``.
            params: How to sample.
            tools: JSON schemas of functions that the model may call.
            variables: Further names that the chat template may read.

        Raises:
            UnsupportedError: If the checkpoint has no chat template.
            RequestError: If the template does not render the messages.
        """
        ids = self.chat_ids(messages, tools=tools, variables=variables)
        return self._answer_all([ids], self._as_params(params, 1), continues=False)[0]

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Generator[Delta, None, None]:
        """Return the assistant's answer as it comes; closing the iterator cancels the rest."""
        ids = self.chat_ids(messages, tools=tools, variables=variables)
        return self._stream(ids, params, continues=False)

    def stream_ids(
        self, prompt_ids: Sequence[int], params: SamplingParams | None = None
    ) -> Generator[Delta, None, None]:
        """Return the assistant's answer to a prompt that ``chat_ids`` made, as it comes."""
        return self._stream(list(prompt_ids), params, continues=False)

    def chat_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the prompt ids of a conversation, ready for the assistant's answer."""
        return self._require_tokenizer().chat_ids(messages, tools=tools, variables=variables)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits that follow each position.

        Args:
            ids: Token ids, as they go into the model.

        Returns:
            (len(ids), vocab_size) float32.

        Raises:
            RequestError: If there are none, or one is outside the vocabulary.
            ContextLengthError: If they do not fit.
        """
        request_id = self._add(Request(prompt_ids=ids, scores_prompt=True))
        try:
            event = self._next_event(request_id)
        finally:
            self._forget(request_id)
        assert isinstance(event, ScoredPrompt), "it was asked to score"
        if event.prompt_logits is None:
            raise DeviceError(f"the step failed: {event.error}")
        return event.prompt_logits

    def close(self) -> None:
        """End the engine and give back its memory and threads; closing twice is allowed."""
        with self._lock:
            self._inbox.clear()
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

    def _as_params(
        self, params: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if params is None:
            return [SamplingParams(**self.sampling_defaults)] * count
        if isinstance(params, SamplingParams):
            return [params] * count
        given: Any = params
        if isinstance(given, Mapping) or not all(
            isinstance(each, SamplingParams) for each in given
        ):
            raise RequestError(
                "params must be SamplingParams, one for all prompts or a list of one each",
                field="params",
            )
        if len(params) != count:
            raise RequestError(
                f"there are {count} prompts and {len(params)} params; give one for all or one each",
                field="params",
            )
        return list(params)

    def _require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UnsupportedError(
                "this checkpoint has no tokenizer files, so it takes ids and gives ids; pass token "
                "ids in place of text"
            )
        return self.tokenizer

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self._require_tokenizer().encode(prompt)
        try:
            return [operator.index(token_id) for token_id in prompt]
        except TypeError as error:
            raise RequestError(
                f"a prompt must be text or a list of token ids: {error}", field="prompt"
            ) from error

    def _open_stream(self, params: SamplingParams, *, continues: bool) -> TextStream | None:
        if self.tokenizer is None:
            if params.stop:
                raise UnsupportedError(
                    "stop strings need a tokenizer and this checkpoint has none; use stop_token_ids"
                )
            return None
        return TextStream(self.tokenizer.detokenizer(continues=continues), params)

    @contextmanager
    def _opened(self) -> Generator[Driver]:
        """Hold the lock over an open driver."""
        with self._lock:
            if not self._release.alive:
                raise DeviceError("this LLM is closed; open it anew")
            yield self._driver

    def _add(self, request: Request) -> int:
        with self._opened() as driver:
            request_id = driver.add(request)
            self._inbox[request_id] = deque()
            return request_id

    def _begin(self, ids: list[int], params: SamplingParams, *, continues: bool) -> Answer:
        stream = self._open_stream(params, continues=continues)
        return Answer(self._add(Request(prompt_ids=ids, params=params)), ids, stream)

    def _forget(self, request_id: int) -> None:
        with self._lock:
            if self._inbox.pop(request_id, None) is not None and self._release.alive:
                self._driver.cancel(request_id)

    def _step_until_ready(self, request_ids: Iterable[int]) -> None:
        """Step the driver, for everybody, until one of these requests has an event."""
        while True:
            # The lock is free between steps, so that other threads get on.
            with self._opened() as driver:
                if any(self._inbox[request_id] for request_id in request_ids):
                    return
                assert driver.has_work, "a request ended without an event"
                for event in driver.step():
                    if event.request_id in self._inbox:
                        self._inbox[event.request_id].append(event)

    def _next_event(self, request_id: int) -> TokenEvent:
        self._step_until_ready([request_id])
        return self._inbox[request_id].popleft()

    def _take(self, answer: Answer) -> Delta:
        """Return the next delta of an answer; end it where a stop string came."""
        delta = answer.take(self._next_event(answer.request_id))
        if answer.is_stopped_by_text:
            with self._opened() as driver:
                answer.stop_by_text(driver.cancel(answer.request_id))
            return replace(delta, finish_reason="stop", timings=answer.timings)
        return delta

    def _answer_all(
        self, prompts: list[list[int]], params: list[SamplingParams], *, continues: bool
    ) -> list[Output]:
        answers: list[Answer] = []
        try:
            for ids, each in zip(prompts, params, strict=True):
                answers.append(self._begin(ids, each, continues=continues))
            waiting = list(answers)
            while waiting:
                self._step_until_ready([answer.request_id for answer in waiting])
                for answer in waiting:
                    while answer.finish_reason is None and self._inbox[answer.request_id]:
                        self._take(answer)
                waiting = [answer for answer in waiting if answer.finish_reason is None]
        finally:
            for answer in answers:
                self._forget(answer.request_id)
        return [answer.output() for answer in answers]

    def _stream(
        self, ids: list[int], params: SamplingParams | None, *, continues: bool
    ) -> Generator[Delta, None, None]:
        params = self._as_params(params, 1)[0]
        with self._opened() as driver:
            driver.check(Request(prompt_ids=ids, params=params))
        self._open_stream(params, continues=continues)

        def deltas() -> Generator[Delta, None, None]:
            answer = self._begin(ids, params, continues=continues)
            try:
                while answer.finish_reason is None:
                    yield self._take(answer)
            finally:
                self._forget(answer.request_id)

        return deltas()


def _as_prompts(prompts: Any) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    try:
        listed = list(prompts)
    except TypeError as error:
        raise RequestError(
            f"prompts is {type(prompts).__name__}; it must be text, token ids, or a list of these",
            field="prompt",
        ) from error
    if listed and not isinstance(listed[0], str | Sequence | np.ndarray):
        return [listed]
    return listed
