"""What the server and the engine process say to each other: length-prefixed msgpack frames.

One frame is a little-endian u32 length and that many bytes of one tagged struct. The engine sends at
most one ``Stepped`` frame a step, for all rows together.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from poot_llm import FinishReason, Logprobs, Timings

__all__ = [
    "Cancel",
    "EngineOptionsFrame",
    "Failed",
    "FrameBuffer",
    "FromEngine",
    "Loading",
    "Ready",
    "Refused",
    "RowEvent",
    "Stepped",
    "Submit",
    "ToEngine",
    "decode_from_engine",
    "decode_to_engine",
    "encode_frame",
]

MAX_FRAME_BYTES = 256 << 20
_LENGTH = struct.Struct("<I")


class EngineOptionsFrame(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine process opens; given on its command line as JSON."""

    model: str
    backend: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    context: int | None = None
    max_sequences: int = 32


class Submit(msgspec.Struct, frozen=True, tag="submit", kw_only=True):
    """Queue a sequence under a key that the server chose."""

    key: int
    prompt_ids: list[int]
    choice: int
    params: dict[str, Any]


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Forget a sequence at the next step; no event follows."""

    key: int


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """What the engine does before it is ready."""

    stage: str


class Ready(msgspec.Struct, frozen=True, tag="ready", kw_only=True):
    """The engine takes requests."""

    backend: str
    device: str
    vocab_size: int
    context_tokens: int
    max_sequences: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The engine could not open its model, or a step failed; the process ends."""

    kind: str
    message: str


class Refused(msgspec.Struct, frozen=True, tag="refused", kw_only=True):
    """A sequence was not queued."""

    key: int
    message: str
    status: int
    field: str | None
    code: str | None = None


class RowEvent(msgspec.Struct, frozen=True, array_like=True):
    """What a step did for one sequence."""

    key: int
    token_ids: list[int]
    logprobs: list[Logprobs] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    timings: Timings | None = None


class Stepped(msgspec.Struct, frozen=True, tag="stepped", kw_only=True):
    """One step is done."""

    events: list[RowEvent]
    running: int
    waiting: int
    free_blocks: int
    num_blocks: int


ToEngine = Submit | Cancel
FromEngine = Loading | Ready | Failed | Refused | Stepped

_ENCODER = msgspec.msgpack.Encoder()
_TO_ENGINE = msgspec.msgpack.Decoder(ToEngine)
_FROM_ENGINE = msgspec.msgpack.Decoder(FromEngine)


def encode_frame(frame: ToEngine | FromEngine) -> bytes:
    """Return the frame with its length in front."""
    body = _ENCODER.encode(frame)
    return _LENGTH.pack(len(body)) + body


def decode_to_engine(body: bytes) -> ToEngine:
    """Return the frame that the engine got."""
    return _TO_ENGINE.decode(body)


def decode_from_engine(body: bytes) -> FromEngine:
    """Return the frame that the server got."""
    return _FROM_ENGINE.decode(body)


class FrameBuffer:
    """Cuts a stream of bytes into frames.

    >>> buffer = FrameBuffer()
    >>> frame = encode_frame(Cancel(7))
    >>> buffer.push(frame[:3]), len(buffer.push(frame[3:] + frame))
    ([], 2)
    """

    def __init__(self) -> None:
        self._data = bytearray()

    def push(self, data: bytes) -> list[bytes]:
        """Return the bodies of the frames that are complete.

        Raises:
            ValueError: If a length is beyond any frame's: the other side speaks something else.
        """
        self._data += data
        bodies: list[bytes] = []
        start = 0
        while len(self._data) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data, start)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes; at most {MAX_FRAME_BYTES} are sent")
            end = start + _LENGTH.size + length
            if end > len(self._data):
                break
            bodies.append(bytes(self._data[start + _LENGTH.size : end]))
            start = end
        del self._data[:start]
        return bodies
