"""The engine process: owns the model and the driver, speaks frames over one socket, ends with it.

Started as ``python -m poot_serve._engine_loop FD OPTIONS`` by ``EngineProcess``.
"""

from __future__ import annotations

import signal
import socket
import sys
import traceback
from collections.abc import Iterable

import msgspec
import numpy as np

from poot_core import PootError, RequestError
from poot_llm import Driver, OpenOptions, Request, TokenEvent, open_model
from poot_serve._frames import (
    Cancel,
    EngineMetrics,
    EngineOptionsFrame,
    Failed,
    FrameBuffer,
    Loading,
    Ready,
    Refused,
    RowEvent,
    Stepped,
    ToEngine,
    decode_to_engine,
    encode_frame,
)

__all__ = ["EngineLoop", "main"]

_READ_BYTES = 1 << 16


class EngineLoop:
    """Runs a driver on requests that come in as frames.

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
        if not data:
            return False
        for body in self._buffer.push(data):
            self._handle(decode_to_engine(body))
        return True

    def _handle(self, frame: ToEngine) -> None:
        if isinstance(frame, Cancel):
            request_id = self._id_of.pop(frame.key, None)
            if request_id is not None:
                del self._key_of[request_id]
                self._driver.cancel(request_id)
            return
        try:
            request = Request(
                prompt_ids=np.frombuffer(frame.prompt, np.int32).tolist(),
                params=frame.params,
                choice=frame.choice,
                cache_salt=frame.cache_salt,
                priority=frame.priority,
                deadline_s=frame.deadline_s,
            )
            request_id = self._driver.add(request)
        except RequestError as error:
            refusal = Refused(
                key=frame.key,
                message=error.message,
                status=error.status,
                field=error.field,
                code=error.code,
                retry_after_s=getattr(error, "retry_after_s", None),
            )
            self._connection.sendall(encode_frame(refusal))
            return
        self._id_of[frame.key] = request_id
        self._key_of[request_id] = frame.key

    def _step(self) -> None:
        events = [self._translate(event) for event in self._driver.step()]
        stats = self._driver.stats
        frame = Stepped(
            keys=[],
            token_ids=[],
            events=events,
            metrics=EngineMetrics(
                running=stats.num_running,
                waiting=stats.num_waiting,
                blocks_used=stats.num_blocks - stats.num_free_blocks,
                blocks_total=stats.num_blocks,
            ),
        )
        self._connection.sendall(encode_frame(frame))

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


def serve(connection: socket.socket, options: EngineOptionsFrame) -> None:
    """Open the model, say so, and run until the server goes.

    Raises:
        PootError: If the model cannot be opened or a step fails.
    """
    connection.sendall(encode_frame(Loading("loading and compiling")))
    opened = open_model(
        options.model,
        OpenOptions(
            backend=options.backend,
            precision=options.precision,
            threads=options.threads,
            context=options.context,
            max_sequences=options.max_sequences,
        ),
    )
    with opened.resources:
        info = opened.engine.info
        ready = Ready(
            backend=info.backend,
            device=info.device,
            vocab_size=info.vocab_size,
            context_tokens=info.options.context_tokens,
            max_sequences=info.options.max_sequences,
            max_step_tokens=info.options.max_step_tokens,
            block_size=info.options.block_size,
            num_blocks=info.options.num_blocks,
            weight_bytes=info.weight_bytes,
            state_bytes=info.state_bytes,
            workspace_bytes=info.workspace_bytes,
        )
        connection.sendall(encode_frame(ready))
        driver = Driver(opened.engine, eos_token_ids=opened.eos_token_ids)
        EngineLoop(connection, driver).run()


def main(arguments: Iterable[str]) -> int:
    """Run the process; return its exit code."""
    descriptor, options_text = arguments
    # The server decides when this process ends, by closing the connection: a Ctrl-C or a service
    # manager's SIGTERM reaches the whole group, and requests under way may still finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    options = msgspec.json.decode(options_text, type=EngineOptionsFrame)
    with socket.socket(fileno=int(descriptor)) as connection:
        try:
            serve(connection, options)
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
