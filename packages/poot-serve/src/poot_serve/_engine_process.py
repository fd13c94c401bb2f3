"""The server's end of the engine process: starts it, feeds it, notices its death and restarts it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from asyncio.subprocess import Process
from dataclasses import dataclass
from time import monotonic

import msgspec

from poot_core import DeviceError, PootError, RequestError
from poot_llm import ContextLengthError, SamplingParams
from poot_serve._frames import (
    Cancel,
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

__all__ = ["EngineProcess", "EngineState", "Ticket"]

_READ_BYTES = 1 << 18
_FIRST_BACKOFF_S = 0.5
_LONGEST_BACKOFF_S = 30.0
_STABLE_S = 60.0  # an engine that lived so long did not die of its start

log = logging.getLogger("poot_serve")


@dataclass(slots=True)
class EngineState:
    """What the engine last said of itself.

    Attributes:
        ready: Facts of the open engine, or None while it loads.
        stage: What it does while it loads.
        failure: Why it cannot be opened; it is not tried again then.
        restarts: Restarts after it had been ready.
        running: Sequences with blocks.
        waiting: Sequences in the queue.
        free_blocks: KV blocks that nobody holds.
        num_blocks: KV blocks of the pool.
    """

    ready: Ready | None = None
    stage: str = "starting"
    failure: str | None = None
    restarts: int = 0
    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    num_blocks: int = 0


class Ticket:
    """One sequence under way in the engine: an asynchronous stream of its events."""

    def __init__(self, engine: EngineProcess, key: int) -> None:
        self._engine = engine
        self._key = key
        self._events: asyncio.Queue[RowEvent | PootError] = asyncio.Queue()
        self._is_done = False

    def put(self, event: RowEvent | PootError) -> None:
        """Hand over an event; called by the engine's reader."""
        self._events.put_nowait(event)

    async def next_event(self) -> RowEvent:
        """Return the next event.

        Raises:
            RequestError: If the engine refused the sequence.
            DeviceError: If the engine died with it.
        """
        event = await self._events.get()
        if isinstance(event, PootError):
            self._is_done = True
            raise event
        self._is_done = event.finish_reason is not None
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
    """

    def __init__(
        self,
        options: EngineOptionsFrame,
        *,
        step_deadline_s: float = 300.0,
        max_requests: int = 256,
    ) -> None:
        self.state = EngineState()
        self._options = options
        self._step_deadline_s = step_deadline_s
        self._max_requests = max_requests
        self._tickets: dict[int, Ticket] = {}
        self._next_key = 0
        self._connection: socket.socket | None = None
        self._last_frame_s = monotonic()
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
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

    def submit(self, prompt_ids: list[int], params: SamplingParams, *, choice: int = 0) -> Ticket:
        """Queue a sequence and return its ticket.

        Raises:
            RequestError: With status 503 while the engine is not ready, 429 when it is full; if a
                number of the request does not fit into 64 bits.
            ContextLengthError: If the prompt is longer than the context.
        """
        if self.state.ready is None:
            raise RequestError(f"the engine is not ready: {self.state.stage}", status=503)
        if len(prompt_ids) > self.state.ready.context_tokens:
            # The engine would say the same, after a frame of any length.
            raise ContextLengthError.of(len(prompt_ids), self.state.ready.context_tokens)
        if len(self._tickets) >= self._max_requests:
            raise RequestError(
                f"{self._max_requests} requests are under way or waiting; try again soon",
                status=429,
            )
        key = self._next_key
        values = {name: getattr(params, name) for name in params.__dataclass_fields__}
        try:
            frame = encode_frame(
                Submit(key=key, prompt_ids=prompt_ids, choice=choice, params=values)
            )
        except OverflowError as error:
            raise RequestError("a number in the request does not fit into 64 bits") from error
        self._next_key += 1
        ticket = self._tickets[key] = Ticket(self, key)
        if len(self._tickets) == 1:
            self._last_frame_s = monotonic()
        self._outbox.put_nowait(frame)
        return ticket

    def cancel(self, key: int) -> None:
        """Forget a sequence; called through ``Ticket.close``."""
        if self._tickets.pop(key, None) is not None:
            self._outbox.put_nowait(encode_frame(Cancel(key)))

    async def _run_once(self) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            text = msgspec.json.encode(self._options).decode()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "poot_serve._engine_loop", str(theirs.fileno()), text,
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
            if self._tickets and silent_s > self._step_deadline_s:
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
                    error = RequestError(frame.message, status=frame.status, field=frame.field)
                    error.code = frame.code
                    ticket.put(error)
            case Loading():
                self.state.stage = frame.stage
                self._changed()
            case Ready():
                self.state.ready = frame
                self.state.stage = "ready"
                self._changed()
            case Failed():
                if self.state.ready is None and self.state.restarts == 0:
                    self.state.failure = frame.message  # who started the server reports it
                else:
                    log.error("the engine failed: %s: %s", frame.kind, frame.message)

    def _handle_step(self, frame: Stepped) -> None:
        state = self.state
        state.running, state.waiting = frame.running, frame.waiting
        state.free_blocks, state.num_blocks = frame.free_blocks, frame.num_blocks
        for event in frame.events:
            ticket = self._tickets.get(event.key)
            if ticket is None:
                continue
            if event.finish_reason is not None:
                del self._tickets[event.key]
            ticket.put(event)

    def _fail_all(self) -> None:
        tickets, self._tickets = self._tickets, {}
        for ticket in tickets.values():
            ticket.put(
                DeviceError("the engine ended while this request was under way; send it again")
            )

    def _changed(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
