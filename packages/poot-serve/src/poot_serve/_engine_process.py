"""The server's end of the engine process: starts it, feeds it, notices its death and restarts it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from asyncio.subprocess import Process
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic

import msgspec
import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, PootError, RequestError
from poot_llm import ContextLengthError, EncodedText, OverloadedError, SamplingParams
from poot_serve._engine_blame import Blame
from poot_serve._frames import (
    Cancel,
    Encode,
    Encoded,
    EngineMetrics,
    EngineOptionsFrame,
    Failed,
    FrameBuffer,
    FromEngine,
    Loading,
    Ready,
    Refused,
    RowEvent,
    Stepped,
    Submit,
    decode_from_engine,
    encode_frame,
)
from poot_serve._patience import Patience

__all__ = ["EngineProcess", "EngineState", "Ticket"]

_READ_BYTES = 1 << 18
_DIED = "the engine ended while this request was under way; send it again"
_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 30.0
_STABLE_S = 60.0  # an engine that lived so long did not die of its start

log = logging.getLogger("poot_serve")


@dataclass(slots=True)
class EngineState:
    """What the engine last said of itself.

    Attributes:
        ready: Facts of the open engine, or None while it loads.
        stage: What it does while it loads.
        done: Part of the stage that is done, or None where nobody knows.
        total: All of the stage.
        failure: Why it cannot be opened; it is not tried again then.
        failure_kind: Name of the error's type, or None where the process just died.
        restarts: Restarts after it had been ready.
        cancelled: Sequences that the server cancelled, since the server's start.
        lost: Sequences that ended with an engine, since the server's start.
        metrics: Gauges and counters of the engine process; counters begin anew with a restart.
    """

    ready: Ready | None = None
    stage: str = "starting"
    done: int | None = None
    total: int | None = None
    failure: str | None = None
    failure_kind: str | None = None
    restarts: int = 0
    cancelled: int = 0
    lost: int = 0
    metrics: EngineMetrics = field(default_factory=EngineMetrics)


class Ticket:
    """One sequence under way in the engine: an asynchronous stream of its events.

    Attributes:
        waiting_tokens: Prompt tokens that are not computed yet.
        fingerprint: What the same request has again when it is sent again.
    """

    def __init__(
        self, engine: EngineProcess, key: int, prompt_tokens: int, fingerprint: bytes
    ) -> None:
        self.waiting_tokens = prompt_tokens  # until the first event
        self.fingerprint = fingerprint
        self._engine = engine
        self._key = key
        # One reader and no bound: a deque costs a part of what asyncio.Queue does for each token.
        self._events: deque[RowEvent | PootError] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._is_done = False

    def put(self, event: RowEvent | PootError) -> None:
        """Hand over an event; called by the engine's reader."""
        self._events.append(event)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def next_event(self) -> RowEvent:
        """Return the next event; one task at a time may wait for it.

        Raises:
            RequestError: If the engine refused the sequence, or its time is up (status 504, code
                ``deadline_exceeded``).
            DeviceError: If the engine died with it.
        """
        while not self._events:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        event = self._events.popleft()
        if isinstance(event, PootError):
            self._is_done = True
            raise event
        self._is_done = event.finish_reason is not None
        if event.finish_reason == "deadline":
            error = RequestError("the time of this request is up", status=504)
            error.code = "deadline_exceeded"
            raise error
        return event

    def close(self) -> None:
        """Cancel the sequence unless it has ended; closing twice is allowed."""
        if not self._is_done:
            self._is_done = True
            self._engine.cancel(self._key)


class EngineProcess:
    """Runs one engine process and keeps it running.

    Args:
        options: What it opens.
        step_deadline_s: Longest silence while sequences are under way; the process is killed then.
        max_requests: Most sequences under way or waiting; more are refused with status 429.
        max_waiting_tokens: Most prompt tokens that are under way and not computed yet; more are
            refused, but for a prompt that is alone.
        command: Starts the process; a socket's number and the options as JSON are appended.
    """

    def __init__(
        self,
        options: EngineOptionsFrame,
        *,
        step_deadline_s: float = 300.0,
        max_requests: int = 256,
        max_waiting_tokens: int = 1 << 18,
        command: Sequence[str] = (sys.executable, "-m", "poot_serve._engine_loop"),
    ) -> None:
        self.state = EngineState()
        self._options = options
        self._step_deadline_s = step_deadline_s
        self._max_requests = max_requests
        self._max_waiting_tokens = max_waiting_tokens
        self._command = tuple(command)
        self._tickets: dict[int, Ticket] = {}
        self._encodings: dict[int, asyncio.Future[NDArray[np.float32]]] = {}
        self._encoding_tokens = 0
        self._blame = Blame()
        self._patience = Patience()
        self._next_key = 0
        self._connection: socket.socket | None = None
        self._last_frame_s = monotonic()
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._is_ending = False
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Keep an engine process alive until cancelled, or until it cannot open its model at all.

        One that was ready once is started again whatever ends it, loading too.
        """
        backoff_s = _FIRST_BACKOFF_S
        while True:
            started_s = monotonic()
            await self._run_once()
            if self.state.ready is None and self.state.restarts == 0:
                self.state.failure = self.state.failure or "the engine process died while loading"
                self._changed()
                return
            self.state.ready = None
            self.state.restarts += 1
            self.state.stage = "restarting"
            if monotonic() - started_s > _STABLE_S:
                backoff_s = _FIRST_BACKOFF_S
            log.error("the engine process ended; starting it again in %.1f s", backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)

    def check_room(self, num_sequences: int, prompt_tokens: int) -> None:
        """Refuse what there is no room for, before any work is done for it.

        Between this and the ``submit`` calls that it is for nothing may be awaited.

        Args:
            num_sequences: Sequences to come; n choices are n.
            prompt_tokens: Tokens of their prompts in all.

        Raises:
            RequestError: With status 503 while the engine is not ready, 400 where so many never fit.
            OverloadedError: With status 429 when it is full; carries ``retry_after_s``.
        """
        if self.state.ready is None:
            raise OverloadedError(
                f"the engine is not ready: {self.state.stage}", status=503, retry_after_s=1.0
            )
        if num_sequences > self._max_requests:
            raise RequestError(
                f"{num_sequences} sequences were asked for in one request; this server runs at most "
                f"{self._max_requests}, so they never fit; ask for fewer prompts or choices",
                field="n",
            )
        under_way = len(self._tickets) + len(self._encodings)
        if under_way + num_sequences > self._max_requests:
            raise OverloadedError(
                f"{under_way} sequences are under way or waiting and {num_sequences} more "
                f"were asked for; at most {self._max_requests} are taken; try again soon",
                retry_after_s=self._patience.for_sequences(
                    under_way + num_sequences - self._max_requests
                ),
            )
        waiting = sum(ticket.waiting_tokens for ticket in self._tickets.values())
        waiting += self._encoding_tokens
        if self._is_busy and waiting + prompt_tokens > self._max_waiting_tokens:
            raise OverloadedError(
                f"{waiting} prompt tokens wait and {prompt_tokens} more were sent; at most "
                f"{self._max_waiting_tokens} are taken; try again soon",
                retry_after_s=self._patience.for_tokens(
                    waiting + prompt_tokens - self._max_waiting_tokens,
                    done=self.state.metrics.prompt_tokens,
                    seconds=self.state.metrics.step_s,
                ),
            )

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        choice: int = 0,
        cache_salt: str | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
    ) -> Ticket:
        """Queue a sequence and return its ticket.

        Args:
            prompt_ids: Token ids as they go into the model.
            params: How to sample.
            choice: Which of several answers to one prompt this is.
            cache_salt: Prefixes are shared only among requests of the same salt.
            priority: Lower numbers are admitted first.
            deadline_s: Seconds from now after which the sequence ends.

        Raises:
            OverloadedError: As ``check_room``.
            RequestError: If a number of the request does not fit; with status 422 and code
                ``request_crashes_engine`` if the same request was under way at two crashes.
            ContextLengthError: If the prompt is longer than the context.
        """
        self.check_room(1, len(prompt_ids))
        assert self.state.ready is not None, "there is room"
        if len(prompt_ids) > self.state.ready.context_tokens:
            # The engine would say the same, after a frame of any length.
            raise ContextLengthError.of(len(prompt_ids), self.state.ready.context_tokens)
        key = self._next_key
        try:
            prompt = np.array(prompt_ids, "<i4").tobytes()
            fingerprint = self._blame.check(prompt, params)
            frame = encode_frame(
                Submit(
                    key=key,
                    prompt=prompt,
                    params=params,
                    choice=choice,
                    cache_salt=cache_salt,
                    priority=priority,
                    deadline_s=deadline_s,
                )
            )
        except OverflowError as error:
            raise RequestError("a token id or a number of the request is too large") from error
        self._next_key += 1
        ticket = self._tickets[key] = Ticket(self, key, len(prompt_ids), fingerprint)
        if len(self._tickets) == 1:
            self._last_frame_s = monotonic()
        self._outbox.put_nowait(frame)
        return ticket

    async def encode(self, texts: Sequence[EncodedText]) -> NDArray[np.float32]:
        """Return what an encoder makes of texts, (len(texts), width); cancelling it cancels the work.

        Raises:
            OverloadedError: As ``check_room``.
            RequestError: If the engine refuses a text.
            DeviceError: If the step failed or the engine died.
        """
        num_tokens = sum(len(text.ids) for text in texts)
        self.check_room(1, num_tokens)  # texts share steps: their tokens count, not their number
        if not texts:
            return np.zeros((0, 0), np.float32)
        key = self._next_key
        self._next_key += 1
        future = asyncio.get_running_loop().create_future()
        if not self._is_busy:
            self._last_frame_s = monotonic()
        self._encodings[key] = future
        self._encoding_tokens += num_tokens
        frame = Encode(
            key=key,
            ids=[np.asarray(text.ids, "<i4").tobytes() for text in texts],
            types=[np.asarray(text.types, "<i4").tobytes() for text in texts],
        )
        self._outbox.put_nowait(encode_frame(frame))
        try:
            return await future
        finally:
            self._encoding_tokens -= num_tokens
            self._patience.note_departure()
            if self._encodings.pop(key, None) is not None:
                self.state.cancelled += 1
                self._outbox.put_nowait(encode_frame(Cancel(key)))

    @property
    def _is_busy(self) -> bool:
        return bool(self._tickets or self._encodings)

    def cancel(self, key: int) -> None:
        """Forget a sequence; called through ``Ticket.close``."""
        if self._tickets.pop(key, None) is not None:
            self._patience.note_departure()
            self.state.cancelled += 1
            self._outbox.put_nowait(encode_frame(Cancel(key)))

    async def _run_once(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            text = msgspec.json.encode(self._options).decode()
            process = await asyncio.create_subprocess_exec(
                *self._command, str(theirs.fileno()), text,
                pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            theirs.close()
            self._outbox = asyncio.Queue()
            tasks = [
                asyncio.create_task(self._write(ours)),
                asyncio.create_task(self._watch(process)),
            ]
            try:
                await self._read(ours)
            except asyncio.CancelledError:
                self._is_ending = True  # the server ends, so nobody crashed
                raise
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                ours.close()
                await self._end(process)
                self._fail_all()

    async def _read(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        buffer = FrameBuffer()
        while True:
            try:
                data = await loop.sock_recv(connection, _READ_BYTES)
            except ConnectionError:
                return
            if not data:
                return
            self._last_frame_s = monotonic()
            for body in buffer.push(data):
                self._handle(decode_from_engine(body))

    async def _write(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while True:
                await loop.sock_sendall(connection, await self._outbox.get())

    async def _watch(self, process: Process) -> None:
        while True:
            await asyncio.sleep(1.0)
            silent_s = monotonic() - self._last_frame_s
            if self._is_busy and silent_s > self._step_deadline_s:
                log.error("a step takes longer than %.0f s; ending the engine", silent_s)
                process.kill()
                return

    async def _end(self, process: Process) -> None:
        if process.returncode is None and self.state.ready is None:
            process.kill()  # it loads: it holds nothing worth waiting for, and would not look
            await process.wait()
        elif process.returncode is None:
            # The socket is closed: the process ends by itself between two steps.
            try:
                await asyncio.wait_for(process.wait(), 5.0)
            except TimeoutError:
                process.kill()
                await process.wait()

    def _handle(self, frame: FromEngine) -> None:
        match frame:
            case Stepped():
                self._handle_step(frame)
            case Refused():
                ticket = self._tickets.pop(frame.key, None)
                if ticket is not None:
                    ticket.put(_refusal(frame))
                self._end_encoding(frame.key, _refusal(frame))
            case Encoded():
                if frame.error is not None:
                    self._end_encoding(frame.key, DeviceError(frame.error))
                else:
                    rows = np.frombuffer(frame.rows, "<f4").reshape(-1, frame.width)
                    self._end_encoding(frame.key, rows)
            case Loading():
                self.state.stage = frame.stage
                self.state.done, self.state.total = frame.done, frame.total
                self._changed()
            case Ready():
                self.state.ready = frame
                self.state.stage = "ready"
                self._changed()
            case Failed():
                if self.state.ready is None and self.state.restarts == 0:
                    # Who started the server reports it.
                    self.state.failure, self.state.failure_kind = frame.message, frame.kind
                else:
                    log.error("the engine failed: %s: %s", frame.kind, frame.message)

    def _end_encoding(self, key: int, result: NDArray[np.float32] | PootError) -> None:
        future = self._encodings.pop(key, None)
        if future is None or future.done():
            return
        if isinstance(result, PootError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _handle_step(self, frame: Stepped) -> None:
        self.state.metrics = frame.metrics
        for key, token_id in zip(frame.keys, frame.token_ids, strict=True):
            ticket = self._tickets.get(key)
            if ticket is not None:
                ticket.put(RowEvent(key, [token_id]))
        for event in frame.events:
            ticket = self._tickets.get(event.key)
            if ticket is None:
                continue
            ticket.waiting_tokens = 0
            if event.finish_reason is not None:
                del self._tickets[event.key]
                self._patience.note_departure()
                self._blame.clear(ticket.fingerprint)
            ticket.put(event)

    def _fail_all(self) -> None:
        tickets, self._tickets = self._tickets, {}
        self.state.lost += len(tickets) + len(self._encodings)
        for key in list(self._encodings):
            self._end_encoding(key, DeviceError(_DIED))
        self.state.metrics = EngineMetrics()
        if not self._is_ending:
            self._blame.add({ticket.fingerprint for ticket in tickets.values()})
        for ticket in tickets.values():
            ticket.put(DeviceError(_DIED))

    def _changed(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def _refusal(frame: Refused) -> RequestError:
    if frame.retry_after_s is not None:
        return OverloadedError(
            frame.message,
            status=frame.status,
            field=frame.field,
            retry_after_s=frame.retry_after_s,
        )
    error = RequestError(frame.message, status=frame.status, field=frame.field)
    error.code = frame.code
    return error
