"""The engine process: owns the model and the driver, speaks frames over one socket, ends with it.

Started as ``python -m poot_serve._engine_loop FD OPTIONS`` by ``EngineProcess``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any, cast

import msgspec
import numpy as np

from poot_core import PootError, RequestError
from poot_llm import (
    Driver,
    EncoderDriver,
    EncoderOptions,
    OpenOptions,
    Preparation,
    Request,
    TokenEvent,
    needs_preparation,
    open_encoder,
    open_model,
)
from poot_serve._frames import (
    Cancel,
    Encode,
    EngineMetrics,
    EngineOptionsFrame,
    Failed,
    FrameBuffer,
    Loading,
    Ready,
    Refused,
    RowEvent,
    Stepped,
    Submit,
    ToEngine,
    decode_to_engine,
    encode_frame,
)

__all__ = ["EngineLoop", "main"]

_READ_BYTES = 1 << 18
_PREPARATION_S = 10.0
"""Longest time that compiling one constraint may take before its request is refused."""

_REPORT_S = 0.25
_BETWEEN_CAPTURES_MS = 5
"""Idle time after which the next decode step is recorded ahead: a request that comes meanwhile waits for
one recording at most, some milliseconds."""


class EngineLoop:
    """Runs a driver until the other side closes the connection.

    Args:
        connection: A connected stream socket.
        driver: The driver to run.
    """

    def __init__(self, connection: socket.socket, driver: Driver) -> None:
        self._connection = connection
        self._driver = driver
        self._buffer = FrameBuffer()
        self._key_of: dict[int, int] = {}
        self._id_of: dict[int, int] = {}
        self._step_s = 0.0
        self._is_stale = False  # whether something left since the metrics were sent
        # Constraints compile on a thread of their own, one at a time, while steps go on.
        self._compiling: dict[int, _Compiling] = {}
        self._compiler = ThreadPoolExecutor(1, "constraints")
        self._captures_ahead = True  # until nothing is left to record
        self._wake_reader, self._wake_writer = os.pipe()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._poll.register(self._wake_reader, select.POLLIN)

    def run(self) -> None:
        """Serve until the other side closes the connection."""
        try:
            while self._take_frames(wait=not self._driver.has_work):
                self._admit_compiled()
                if self._driver.has_work:
                    self._step()
                elif self._is_stale:
                    self._report([], [], [])
        finally:
            self._compiler.shutdown(wait=False, cancel_futures=True)
            self._poll.unregister(self._wake_reader)
            os.close(self._wake_reader)
            os.close(self._wake_writer)

    def _take_frames(self, *, wait: bool) -> bool:
        """Handle what has come; return whether the other side is still there."""
        # While something compiles, its time limit is looked at now and then.
        timeout_ms = 0 if not wait else 100 if self._compiling else None
        if timeout_ms is None and self._captures_ahead:
            timeout_ms = _BETWEEN_CAPTURES_MS
        found = self._poll.poll(timeout_ms)
        if not found and timeout_ms == _BETWEEN_CAPTURES_MS:
            self._captures_ahead = self._driver.capture_ahead()
        for descriptor, _ in found:
            if descriptor == self._wake_reader:
                os.read(self._wake_reader, 1024)
                continue
            data = self._connection.recv(_READ_BYTES)
            if not data:
                return False
            for body in self._buffer.push(data):
                self._handle(decode_to_engine(body))
        return True

    def _handle(self, frame: ToEngine) -> None:
        if isinstance(frame, Cancel):
            if self._compiling.pop(frame.key, None) is not None:
                return
            request_id = self._id_of.pop(frame.key, None)
            if request_id is not None:
                del self._key_of[request_id]
                self._driver.cancel(request_id)
                self._is_stale = True
            return
        if isinstance(frame, Encode):
            refusal = RequestError("this model generates text and is no encoder")
            self._refuse(frame.key, refusal)
            return
        request = Request(
            prompt_ids=cast(Any, np.frombuffer(frame.prompt, "<i4")),  # an array of ids
            params=frame.params,
            choice=frame.choice,
            cache_salt=frame.cache_salt,
            priority=frame.priority,
            deadline_s=frame.deadline_s,
        )
        if needs_preparation(request.params):
            self._compile(frame, request)
        else:
            self._add(frame.key, request, lambda: None)

    def _compile(self, frame: Submit, request: Request) -> None:
        try:
            self._driver.check(request)
        except RequestError as error:
            self._refuse(frame.key, error)
            return
        future = self._compiler.submit(self._driver.prepare, request)
        self._compiling[frame.key] = _Compiling(request, future, perf_counter() + _PREPARATION_S)
        future.add_done_callback(lambda _: self._wake())

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the loop has ended
            os.write(self._wake_writer, b"\0")

    def _admit_compiled(self) -> None:
        if not self._compiling:
            return
        now_s = perf_counter()
        for key, item in list(self._compiling.items()):
            if item.future.done():
                del self._compiling[key]
                self._add(key, item.request, item.future.result)
            elif now_s > item.until_s:
                del self._compiling[key]
                constraint = item.request.params.constraint
                self._refuse(
                    key,
                    RequestError(
                        f"the constraint did not compile within {_PREPARATION_S:.0f} s; simplify it",
                        field=constraint.field if constraint is not None else None,
                    ),
                )

    def _add(self, key: int, request: Request, prepared: Callable[[], Preparation | None]) -> None:
        try:
            request_id = self._driver.add(request, prepared())
        except RequestError as error:
            self._refuse(key, error)
            return
        self._id_of[key] = request_id
        self._key_of[request_id] = key

    def _refuse(self, key: int, error: RequestError) -> None:
        refusal = Refused(
            key=key,
            message=error.message,
            status=error.status,
            field=error.field,
            code=error.code,
            retry_after_s=getattr(error, "retry_after_s", None),
        )
        self._connection.sendall(encode_frame(refusal))

    def _step(self) -> None:
        start = perf_counter()
        outcome = self._driver.run_step()
        key_of = self._key_of
        keys = [key_of[request_id] for request_id in outcome.request_ids]
        events = [self._translate(event) for event in outcome.events]
        self._step_s += perf_counter() - start
        self._report(keys, outcome.token_ids, events)

    def _report(self, keys: list[int], token_ids: list[int], events: list[RowEvent]) -> None:
        self._is_stale = False
        frame = Stepped(keys=keys, token_ids=token_ids, events=events, metrics=self._metrics())
        self._connection.sendall(encode_frame(frame))

    def _metrics(self) -> EngineMetrics:
        stats = self._driver.stats
        return EngineMetrics(
            running=stats.num_running,
            waiting=stats.num_waiting,
            waiting_tokens=stats.waiting_tokens,
            blocks_used=stats.num_blocks - stats.num_free_blocks,
            blocks_cached=stats.num_cached_blocks,
            blocks_total=stats.num_blocks,
            batch_rows=stats.batch_rows,
            batch_tokens=stats.batch_tokens,
            steps=stats.steps,
            step_s=self._step_s,
            device_s=stats.device_s,
            prompt_tokens=stats.prompt_tokens,
            output_tokens=stats.output_tokens,
            prefix_query_tokens=stats.prefix_query_tokens,
            prefix_hit_tokens=stats.prefix_hit_tokens,
            preemptions=stats.preemptions,
            steps_ahead=stats.steps_ahead,
            surplus_rows=stats.surplus_rows,
            deadlines=stats.deadlines,
            faults=stats.faults,
        )

    def _translate(self, event: TokenEvent) -> RowEvent:
        key = self._key_of[event.request_id]
        if event.finish_reason is not None:
            del self._key_of[event.request_id]
            del self._id_of[key]
        return RowEvent(
            key,
            event.token_ids,
            event.logprobs,
            event.finish_reason,
            event.error,
            event.timings,
            event.cached_tokens,
            event.prompt_logprobs,
        )


class _Compiling:
    """A request whose constraint is being compiled."""

    __slots__ = ("future", "request", "until_s")

    def __init__(self, request: Request, future: Future[Preparation], until_s: float) -> None:
        self.request = request
        self.future = future
        self.until_s = until_s


class _DownloadReport:
    """Tells the server how a download goes, a few times a second."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._last_s = 0.0

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Take note of progress (``DownloadProgress``)."""
        now_s = perf_counter()
        if now_s - self._last_s > _REPORT_S or done == total:
            self._last_s = now_s
            is_done = done == total
            stage = "loading and compiling" if is_done else f"fetching {what}"
            self._connection.sendall(encode_frame(Loading(stage, done, total)))


def serve(connection: socket.socket, options: EngineOptionsFrame, start_s: float) -> None:
    """Open the model, say so, and run until the server goes.

    Raises:
        PootError: If the model cannot be opened or a step fails.
    """
    connection.sendall(encode_frame(Loading("loading and compiling")))
    if options.is_encoder:
        serve_encoder(connection, options, start_s)
        return
    opened = open_model(
        options.model,
        OpenOptions(
            backend=options.backend,
            precision=options.precision,
            threads=options.threads,
            context=options.context,
            max_sequences=options.max_sequences,
            max_step_tokens=options.max_step_tokens,
            kv_bytes=options.kv_bytes,
        ),
        _DownloadReport(connection),
    )
    with opened.resources:
        info = opened.engine.info
        vocabulary = opened.vocabulary
        driver = Driver(
            opened.engine,
            eos_token_ids=opened.eos_token_ids,
            shares_prefixes=options.prefix_cache,
            max_prefill_tokens=options.max_prefill_tokens,
            vocabulary=vocabulary,
        )
        # What the first constraint needs holds the GIL while it is built: done now, it stops nobody.
        connection.sendall(encode_frame(Loading("preparing constraints")))
        driver.warm()
        ready = _ready(
            info,
            start_s,
            context_tokens=info.options.context_tokens,
            takes_constraints=vocabulary is not None and bool(vocabulary.end_ids),
        )
        connection.sendall(encode_frame(ready))
        # What lives now lives as long as the process: a collection need not look at it.
        gc.collect()
        gc.freeze()
        EngineLoop(connection, driver).run()


def serve_encoder(connection: socket.socket, options: EngineOptionsFrame, start_s: float) -> None:
    """Open an encoder, say so, and run until the server goes.

    Raises:
        PootError: If the model cannot be opened or a step fails.
    """
    from poot_serve._engine_encoder import EncoderLoop

    opened = open_encoder(
        options.model,
        EncoderOptions(
            backend=options.backend,
            precision=options.precision,
            threads=options.threads,
            context=options.context,
            max_sequences=options.max_sequences,
            max_step_tokens=options.max_step_tokens,
            pooling=options.pooling,
        ),
        _DownloadReport(connection),
    )
    with opened.resources:
        info = opened.engine.info
        ready = _ready(info, start_s, context_tokens=opened.text.max_tokens)
        connection.sendall(encode_frame(ready))
        driver = EncoderDriver(opened.engine, takes_last=opened.takes_last)
        EncoderLoop(connection, driver).run()


def _ready(
    info: Any, start_s: float, *, context_tokens: int, takes_constraints: bool = False
) -> Ready:
    return Ready(
        backend=info.backend,
        device=info.device,
        vocab_size=info.vocab_size,
        context_tokens=context_tokens,
        max_sequences=info.options.max_sequences,
        max_step_tokens=info.options.max_step_tokens,
        block_size=info.options.block_size,
        num_blocks=info.options.num_blocks,
        weight_bytes=info.weight_bytes,
        state_bytes=info.state_bytes,
        workspace_bytes=info.workspace_bytes + info.sampler_bytes,
        load_s=perf_counter() - start_s,
        takes_constraints=takes_constraints,
    )


def _die_with_parent() -> None:
    """Have the kernel end this process when the server dies, though a step may hang then (Linux)."""
    if sys.platform != "linux":
        return  # it ends when it next looks at the socket
    set_death_signal = 1  # PR_SET_PDEATHSIG, prctl(2)
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def main(arguments: Iterable[str]) -> int:
    """Run the process; return its exit code."""
    start_s = perf_counter()
    descriptor, options_text = arguments
    # The server decides when this process ends, by closing the connection: a Ctrl-C or a service
    # manager's SIGTERM reaches the whole group, and requests under way may still finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _die_with_parent()
    options = msgspec.json.decode(options_text, type=EngineOptionsFrame)
    with socket.socket(fileno=int(descriptor)) as connection:
        try:
            serve(connection, options, start_s)
        except (BrokenPipeError, ConnectionResetError):
            return 0
        except Exception as error:
            if not isinstance(error, PootError):
                traceback.print_exc()
            failure = Failed(type(error).__name__, str(error) or type(error).__name__)
            connection.sendall(encode_frame(failure))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
