"""Sampling on a device: tables that outlive a step, and the launches that read logits there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, OutOfMemoryError, i64
from poot_executor._device import (
    Argument,
    Buffer,
    BufferArgument,
    Device,
    Launch,
    PreparedSequence,
    ScalarArgument,
    SymbolArgument,
)
from poot_executor._launch_shape import kernel_launch
from poot_executor._load_device import Kernels
from poot_executor._program import Program
from poot_executor._sampling import NOTHING_SAMPLED, Sampled
from poot_kernelgen import SAMPLE_FIELDS, SampleRequest

__all__ = ["DeviceSampler", "sampler_sizes"]

_COUNTED = "counts of tokens"
_COUNTS = 2  # bit of the flags: the row counts its tokens
_STATS_WORDS, _SUM_WORDS = 6, 4
_FLAGS = SAMPLE_FIELDS.index("flags")


def sampler_sizes(vocab_size: int, num_slots: int) -> dict[str, int]:
    """Return the bytes of each table of a sampler, by what it holds."""
    shape, words = SampleRequest(), 4 * num_slots
    chunks, blocks = -(-vocab_size // shape.chunk), -(-vocab_size // shape.block)
    return {
        "sampling parameters": words * len(SAMPLE_FIELDS),
        "last tokens": words,
        "sampled tokens": 2 * words,
        "tokens that are fed": 2 * words,
        "largest logits": words * chunks,
        "ids of the largest logits": words * chunks,
        "statistics of sampled rows": words * _STATS_WORDS,
        "sums of weights": words * blocks * _SUM_WORDS,
        _COUNTED: words * vocab_size,
    }


class DeviceSampler:
    """Implements ``Sampler`` over a device.

    Memory is taken when the first row is sampled, for counts when the first row asks for them:
    max_sequences * vocab_size * 4 bytes.

    Args:
        device: Where to run.
        program: Whose logits are sampled.
        kernels: Its kernels.
        logits: Where its logits lie.
        token_ids: Where a step's tokens are read from.
        num_slots: Rows of the tables, and most rows that are sampled at once.
    """

    def __init__(
        self,
        device: Device,
        program: Program,
        kernels: Kernels,
        *,
        logits: BufferArgument,
        token_ids: BufferArgument,
        num_slots: int,
    ) -> None:
        self._device = device
        self._program = program
        self._kernels = kernels
        self._logits = logits
        self._token_ids = token_ids
        self._slots = num_slots
        self._buffers: list[Buffer] = []
        self._prepared: dict[bool, PreparedSequence] = {}
        self._last_sizes: dict[bool, tuple[int, int]] = {}
        self._may_capture = True
        self._sizes = {"S": 0, "L": 0}
        self._bytes = sampler_sizes(program.vocab_size, num_slots)
        self._params = self._allocate("sampling parameters")
        self._last = self._allocate("last tokens")
        self._results = self._allocate("sampled tokens")
        self._feeds = self._allocate("tokens that are fed")
        self._feed: PreparedSequence | None = None
        self._counts: Buffer | None = None
        width = program.vocab_size
        shape = SampleRequest()
        self._chunks, self._blocks = -(-width // shape.chunk), -(-width // shape.block)
        self._values = self._allocate("largest logits")
        self._ids = self._allocate("ids of the largest logits")
        self._stats = self._allocate("statistics of sampled rows")
        self._sums = self._allocate("sums of weights")

    def sample(self, params: NDArray[np.uint32], num_logits: int) -> None:
        """Start sampling rows of the last step's logits."""
        self._sizes["S"], self._sizes["L"] = len(params), num_logits
        if not len(params):
            return
        counted = bool((params[:, _FLAGS] & _COUNTS).any())
        prepared = self._prepared.get(counted)
        if prepared is None:
            prepared = self._prepared[counted] = self._device.prepare(self._launches(counted))
        self._device.upload(self._params, np.ascontiguousarray(params))
        present = (len(params), num_logits)
        if self._may_capture and self._last_sizes.get(counted) == present:
            try:
                self._may_capture = self._device.capture(prepared, self._sizes)
            except (DeviceError, OutOfMemoryError):
                # Launch by launch does as well; where the device itself is gone, running says so.
                self._may_capture = False
        self._last_sizes[counted] = present
        self._device.run(prepared, self._sizes)

    def sampled(self) -> Sampled:
        """Return what the last ``sample`` gave, once it is there."""
        count = self._sizes["S"]
        if not count:
            return NOTHING_SAMPLED
        return self.unpack(self._device.download(self._results).view(np.int32), count)

    @property
    def results(self) -> Buffer:
        """Where the last ``sample`` puts (2, num_slots) int32: tokens, then faults."""
        return self._results

    def unpack(self, found: NDArray[np.int32], count: int) -> Sampled:
        """Return what stands in a copy of ``results``."""
        return Sampled(found[:count], found[self._slots : self._slots + count])

    def set_counts(self, slot: int, entries: NDArray[np.uint32]) -> None:
        """Set what penalties count of a slot to (E, 2) pairs of id and count."""
        width, request = self._program.vocab_size, self._program.sampler[3]
        counts = self._counts_buffer()
        shape = [ScalarArgument(value, i64) for value in (self._slots, width, slot)]
        launches = [self._launch(request, "clear", [BufferArgument(counts), *shape])]
        given = self._device.allocate(max(8, entries.nbytes), "counts that are set")
        if len(entries):
            self._device.upload(given, np.ascontiguousarray(entries))
            arguments = [BufferArgument(counts), BufferArgument(given), *shape]
            arguments.append(ScalarArgument(len(entries), i64))
            launches.append(self._launch(request, "main", arguments))
        self._device.run(self._device.prepare(launches), {})
        self._device.synchronize()
        given.free()

    def feed(self, feeds: NDArray[np.int32], num_tokens: int) -> None:
        """Put last tokens into a step's token ids, by (F, 2) pairs of place and slot."""
        if self._feed is None:
            arguments: list[Argument] = [
                self._token_ids,
                BufferArgument(self._last),
                BufferArgument(self._feeds),
                SymbolArgument("T"),
                ScalarArgument(self._slots, i64),
                SymbolArgument("F"),
            ]
            launch = self._launch(self._program.sampler[2], "main", arguments)
            self._feed = self._device.prepare([launch])
        self._device.upload(self._feeds, np.ascontiguousarray(feeds))
        self._device.run(self._feed, {"T": num_tokens, "F": len(feeds)})

    def close(self) -> None:
        """Give memory back."""
        for buffer in self._buffers:
            buffer.free()

    def _allocate(self, label: str) -> Buffer:
        buffer = self._device.allocate(self._bytes[label], label)
        self._buffers.append(buffer)
        return buffer

    def _counts_buffer(self) -> Buffer:
        if self._counts is None:
            self._counts = self._allocate(_COUNTED)
        return self._counts

    def _launch(self, request: int, role: str, arguments: Sequence[Argument]) -> Launch:
        handle, record = self._kernels[request, role]
        return kernel_launch(handle, record, arguments, f"sample.{role}")

    def _launches(self, counted: bool) -> list[Launch]:
        request = self._program.sampler[int(counted)]
        table = [BufferArgument(self._counts_buffer())] if counted else []
        params, stats, sums = (BufferArgument(b) for b in (self._params, self._stats, self._sums))
        values, ids = BufferArgument(self._values), BufferArgument(self._ids)
        rows, width = SymbolArgument("L"), ScalarArgument(self._program.vocab_size, i64)
        samples, slots = SymbolArgument("S"), ScalarArgument(self._slots, i64)
        chunks, blocks = (ScalarArgument(n, i64) for n in (self._chunks, self._blocks))
        results = [BufferArgument(self._results, offset) for offset in (0, 4 * self._slots)]
        sizes = (rows, width, samples)
        given: dict[str, tuple[Argument, ...]] = {
            "best": (
                self._logits, *table, params, values, ids, *sizes, *([slots] if counted else [])
            ),
            "limits": (self._logits, params, values, ids, stats, *sizes, chunks),
            "masses": (self._logits, params, stats, sums, *sizes),
            "draw": (
                self._logits, params, stats, sums, BufferArgument(self._last), *table, *results,
                *sizes, slots, blocks,
            ),
        }  # fmt: skip
        return [self._launch(request, role, arguments) for role, arguments in given.items()]
