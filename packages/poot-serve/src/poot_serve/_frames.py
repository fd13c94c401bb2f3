"""What the server and the engine process say to each other: length-prefixed msgpack frames.

One frame is a little-endian u32 length and that many bytes of one tagged struct. The engine sends at
most one ``Stepped`` frame a step, for all rows together.
"""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from poot_llm import FinishReason, Logprobs, SamplingParams, Timings

__all__ = [
    "Cancel",
    "Encode",
    "Encoded",
    "EngineMetrics",
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
    """What the engine process opens; given on its command line as JSON.

    Attributes:
        model: A path or a hub id.
        backend: ``auto``, ``oracle`` or the name of an installed device.
        precision: ``f32`` or ``auto``.
        threads: Threads of a host team; None derives it from affinity and quota.
        context: Longest sequence in tokens, or None for the default.
        max_sequences: Most sequences in one step.
        max_step_tokens: Most tokens in one step.
        max_prefill_tokens: Most tokens of prompts in a step that also decodes, or None for the
            driver's own bound.
        kv_bytes: Size that the KV pool aims at, or None for a share of the free memory.
        prefix_cache: Whether blocks of earlier prompts are shared.
        is_encoder: Whether the model embeds or scores texts and generates nothing.
        pooling: How an encoder's token states become one vector, where its files do not say.
    """

    model: str
    backend: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    context: int | None = None
    max_sequences: int = 32
    max_step_tokens: int = 512
    max_prefill_tokens: int | None = None
    kv_bytes: int | None = None
    prefix_cache: bool = True
    is_encoder: bool = False
    pooling: Literal["mean", "cls", "last"] | None = None


class Submit(msgspec.Struct, frozen=True, tag="submit", kw_only=True):
    """Queue a sequence under a key that the server chose.

    Attributes:
        key: Unique among the sequences under way.
        prompt: Token ids, little-endian int32.
        params: How to sample, the constraint included.
        choice: Which of several answers to one prompt this is.
        cache_salt: Prefixes are shared only among requests of the same salt.
        priority: Lower numbers are admitted first.
        deadline_s: Seconds from now after which the request ends with reason ``deadline``.
    """

    key: int
    prompt: bytes
    params: SamplingParams
    choice: int = 0
    cache_salt: str | None = None
    priority: int = 0
    deadline_s: float | None = None


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Forget a sequence at the next step; no event follows."""

    key: int


class Encode(msgspec.Struct, frozen=True, tag="encode", kw_only=True):
    """Embed or score texts.

    Attributes:
        key: Unique among the requests under way.
        ids: Token ids of each text, little-endian int32.
        types: Segments of each text's tokens, little-endian int32.
    """

    key: int
    ids: list[bytes]
    types: list[bytes]


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """What the engine does before it is ready.

    Attributes:
        stage: For a person to read.
        done: Part of the stage that is done, in units of ``total``; None where nobody knows.
        total: All of the stage.
    """

    stage: str
    done: int | None = None
    total: int | None = None


class Ready(msgspec.Struct, frozen=True, tag="ready", kw_only=True):
    """The engine takes requests.

    Attributes:
        backend: Name of the device's kind.
        device: What the device calls itself, and why it was chosen.
        vocab_size: Width of a row of logits.
        context_tokens: Longest sequence.
        max_sequences: Most sequences in one step.
        max_step_tokens: Most tokens in one step.
        block_size: Tokens of a KV block.
        num_blocks: KV blocks of the pool.
        weight_bytes: Bytes of the weights on the device.
        state_bytes: Bytes of the KV pool and other state.
        workspace_bytes: Bytes of intermediates, of a step's inputs and of what sampling takes.
        load_s: Seconds from the start of the process.
        takes_constraints: Whether ``SamplingParams.constraint`` works with this model.
    """

    backend: str
    device: str
    vocab_size: int
    context_tokens: int
    max_sequences: int
    max_step_tokens: int = 0
    block_size: int = 0
    num_blocks: int = 0
    weight_bytes: int = 0
    state_bytes: int = 0
    workspace_bytes: int = 0
    load_s: float = 0.0
    takes_constraints: bool = False


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
    retry_after_s: float | None = None


class RowEvent(msgspec.Struct, frozen=True, array_like=True):
    """What a step did for one sequence.

    Attributes:
        key: The sequence.
        token_ids: New tokens, an end token included.
        logprobs: One entry a new token where asked for.
        finish_reason: Why it ended, or None.
        error: What went wrong, with reason ``error``.
        timings: Set with the finish reason; ``cached_tokens`` is in it too.
        cached_tokens: Set with the first token.
        prompt_logprobs: Set with the first event where asked for: one entry a prompt token, None for
            the first.
    """

    key: int
    token_ids: list[int]
    logprobs: list[Logprobs] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    timings: Timings | None = None
    cached_tokens: int | None = None
    prompt_logprobs: list[Logprobs | None] | None = None


class Encoded(msgspec.Struct, frozen=True, tag="encoded", kw_only=True):
    """What became of texts.

    Attributes:
        key: The request.
        rows: Little-endian float32, a row of ``width`` for each text.
        width: Numbers in a row.
        error: What went wrong, or None.
    """

    key: int
    rows: bytes
    width: int
    error: str | None = None


class EngineMetrics(msgspec.Struct, frozen=True, array_like=True):
    """Gauges of now and counters since the engine process started.

    Attributes:
        running: Sequences with blocks.
        waiting: Sequences in the queue.
        waiting_tokens: Prompt tokens of running and waiting sequences that are not computed yet.
        blocks_used: KV blocks that sequences hold.
        blocks_cached: KV blocks that nobody holds but whose content may be used again.
        blocks_total: KV blocks of the pool.
        batch_rows: Rows of the last step.
        batch_tokens: Tokens of the last step.
        steps: Steps so far.
        step_s: Seconds in steps so far, the device's share included.
        device_s: Seconds in the device's share of the steps.
        prompt_tokens: Prompt tokens of sequences that were admitted.
        output_tokens: Tokens generated.
        prefix_query_tokens: Prompt tokens looked up in the prefix cache.
        prefix_hit_tokens: Prompt tokens found there.
        preemptions: Sequences put back for want of blocks.
        steps_ahead: Steps handed to the device while the one before was under way.
        surplus_rows: Rows that steps computed for sequences which had ended meanwhile.
        deadlines: Sequences whose time was up.
        faults: Sequences that a step failed.
    """

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_total: int = 0
    batch_rows: int = 0
    batch_tokens: int = 0
    steps: int = 0
    step_s: float = 0.0
    device_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    steps_ahead: int = 0
    surplus_rows: int = 0
    deadlines: int = 0
    faults: int = 0


class Stepped(msgspec.Struct, frozen=True, tag="stepped", kw_only=True):
    """One step is done, or something else happened that moves the metrics.

    Attributes:
        keys: Sequences that got one token and nothing else.
        token_ids: Their tokens.
        events: All other sequences that the step did something for.
        metrics: Gauges and counters after the step.
    """

    keys: list[int]
    token_ids: list[int]
    events: list[RowEvent]
    metrics: EngineMetrics


ToEngine = Submit | Encode | Cancel
FromEngine = Loading | Ready | Failed | Refused | Stepped | Encoded

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
