"""Runs a program on a device: memory once, one prepared launch sequence for each kind of step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import cast

import numpy as np
from numpy.typing import NDArray

from poot_core import DeviceError, OutOfMemoryError, UnsupportedError, f32, i64
from poot_executor._attention_work import work_capacity
from poot_executor._device import (
    Argument,
    Buffer,
    BufferArgument,
    Device,
    KernelHandle,
    Launch,
    PreparedSequence,
    ScalarArgument,
    SymbolArgument,
)
from poot_executor._device_sampler import DeviceSampler, sampler_sizes
from poot_executor._engine import EngineOptions, WeightSource
from poot_executor._kernel_table import KernelRecord, KernelTable
from poot_executor._ladder import Recordings
from poot_executor._launch_shape import kernel_launch
from poot_executor._load_device import load_matrices, load_small
from poot_executor._planned import Operand
from poot_executor._program import Program, ProgramLaunch
from poot_executor._runner import StepKey, selected_launches, step_slots
from poot_executor._sampling import NOTHING_SAMPLED, NumpySampler, Sampled, Sampler

__all__ = ["DeviceRunner"]

_logger = logging.getLogger("poot.executor")

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
_ALIGNMENT = 256  # what any driver asks of an address or a binding's offset


class DeviceRunner:
    """Implements ``Runner`` over a device, which it closes.

    Args:
        device: Where to run.
        program: What to run.
        table: Its kernels.
        weights: Source of its weights, whose pages are dropped as they are laid out.
        options: Bounds of a step.
        samples_in_numpy: Whether rows are sampled by the NumPy meaning of the sampler's kernels.
    """

    def __init__(
        self,
        device: Device,
        program: Program,
        table: KernelTable,
        weights: WeightSource,
        options: EngineOptions,
        *,
        samples_in_numpy: bool = False,
    ) -> None:
        self.device = device
        self.program = program
        self._kernels = _load_kernels(device, table)
        self._prepared: dict[StepKey, PreparedSequence] = {}
        self._greedy: PreparedSequence | None = None
        self._host = _HostMemory(device, program, options)
        self.slots: Mapping[str, Int32] = self._host.slots
        self.work: Sequence[Int32] = self._host.work
        self._arena = device.allocate(max(1, program.arena_bytes), "intermediates")
        self._states = {
            state.name: device.allocate(
                state.num_blocks
                * state.layout.block_size
                * state.layout.num_kv_heads
                * state.layout.head_dim
                * (4 if state.layout.dtype == "f32" else 2),
                state.name,
            )
            for state in program.states
        }
        self._small, small_offsets = load_small(device, program, weights)
        self._vector_offsets, self._constant_offsets = small_offsets
        self._pools, self._matrices = load_matrices(device, program, table, self._kernels, weights)
        self.weight_bytes = sum(table.matrix_bytes) + self._small.nbytes
        self.state_bytes = sum(buffer.nbytes for buffer in self._states.values())
        self.workspace_bytes = self._arena.nbytes + self._host.nbytes
        self.sampler_bytes = 0
        if program.sampler and not samples_in_numpy:
            sizes = sampler_sizes(program.vocab_size, options.max_sequences)
            self.sampler_bytes = sum(sizes.values())
        self._arena_view = device.view(self._arena)
        self._sizes: Mapping[str, int] = {}
        self._last_step: tuple[StepKey, tuple[int, ...]] | None = None
        self._captured: set[tuple[StepKey, tuple[int, ...]]] = set()
        self.may_capture = device.capture(device.prepare([]), {})
        self.recordings = Recordings()
        self._num_slots = options.max_sequences
        self._sampler: Sampler | None = None
        self._samples_in_numpy = samples_in_numpy
        self.runs_ahead = (
            bool(program.sampler)
            and not samples_in_numpy
            and not self._host.is_in_place
            and device.start_download([]) is not None
        )

    # --- running ---

    def begin(self) -> None:
        """Wait until a step that reads the slots in place is done; copies may be written at once."""
        if self._host.is_in_place:
            self.device.synchronize()

    @property
    def sampler(self) -> Sampler:
        """What samples the last step's logits; made when it is first asked for."""
        if self._sampler is None:
            if not self.program.sampler:
                raise UnsupportedError(f"{self.program.name!r} gives no logits to sample")
            if self._samples_in_numpy:
                self._sampler = NumpySampler(
                    lambda: self.logits(self._sizes["L"]),
                    lambda: self.slots["token_ids"],
                    self.program.vocab_size,
                    self._num_slots,
                )
            else:
                self._sampler = DeviceSampler(
                    self.device,
                    self.program,
                    self._kernels,
                    logits=BufferArgument(self._arena, self.program.offsets[self.program.logits]),
                    token_ids=self._host.argument("slot", "token_ids"),
                    num_slots=self._num_slots,
                )
        return self._sampler

    def run(self, key: StepKey, sizes: Mapping[str, int], feeds: Int32 | None = None) -> None:
        """Run one step: one call of the device, and one before it where tokens are fed."""
        prepared = self._sequence(key)
        self._host.flush()
        if feeds is not None and len(feeds):
            self.sampler.feed(feeds, sizes["T"])
        self._sizes = sizes
        if key.is_decode and self.may_capture:
            # Sizes that come a second time in a row will come more often.
            present = (key, tuple(sizes.values()))
            if present == self._last_step:
                self._capture(key, sizes, is_ahead=False)
            self._last_step = present
        self.device.run(prepared, sizes)

    def _sequence(self, key: StepKey) -> PreparedSequence:
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = self.prepare(key)
        return prepared

    def capture(self, key: StepKey, sizes: Mapping[str, int]) -> bool:
        """Record a decode step that may come; False if recordings are of no use here."""
        return self._capture(key, sizes, is_ahead=True)

    def _capture(self, key: StepKey, sizes: Mapping[str, int], *, is_ahead: bool) -> bool:
        # A device that has the sizes still does nothing; one that dropped them records anew.
        started = perf_counter()
        try:
            self.may_capture = self.device.capture(self._sequence(key), sizes)
        except (DeviceError, OutOfMemoryError) as error:
            # Steps run launch by launch all the same; where the device itself is gone, they say so.
            _logger.warning("a decode step cannot be recorded, so none is any more: %s", error)
            self.may_capture = False
        present = (key, tuple(sizes.values()))
        if self.may_capture and present not in self._captured:
            self._captured.add(present)
            self.recordings = self.recordings.add(perf_counter() - started, is_ahead=is_ahead)
        return self.may_capture

    def prepare(self, key: StepKey) -> PreparedSequence:
        """Return the launches of one kind of step, prepared."""
        return self.device.prepare(
            [
                self._launch(launch, variant)
                for launch, variant in selected_launches(self.program, key)
            ]
        )

    def logits(self, rows: int) -> Float32:
        """Return (rows, vocab_size) logits of the last step, a view where the host sees them."""
        flat = self._read(self.program.logits, rows)
        return flat.view(np.float32).reshape(rows, self.program.vocab_size)

    def greedy(self, rows: int) -> Int32:
        """Return (rows,) ids of the largest logits of the last step."""
        if rows == 0:
            return np.zeros(0, np.int32)
        if self._greedy is None:
            self._greedy = self.device.prepare(
                [self._launch(launch, launch.variants[0]) for launch in self.program.greedy]
            )
        self.device.run(self._greedy, self._sizes)
        return self._read(self.program.greedy_ids, rows).view(np.int32).copy()

    def _read(self, temp: int, rows: int) -> NDArray[np.uint8]:
        start = self.program.offsets[temp]
        nbytes = rows * self.program.temps[temp].row_bytes
        if self._arena_view is not None:
            self.device.synchronize()
            return self._arena_view[start : start + nbytes]
        return self.device.download(self._arena, start, nbytes)

    def take_faults(self, symbol: str, rows: int) -> Int32 | None:
        """Return the flags of the first rows and clear them; None if none is set."""
        return self._host.take_faults(symbol, rows)

    def start_results(
        self, num_tokens: int, num_sampled: int
    ) -> Callable[[], tuple[Sampled, Int32]]:
        """Queue copies of the last step's flags and, where rows were sampled, of their tokens."""
        pieces = [self._host.flags("T", num_tokens)]
        sampler = self.sampler
        assert isinstance(sampler, DeviceSampler), "runs_ahead was asked"
        if num_sampled:
            pieces.append((sampler.results, 0, sampler.results.nbytes))
        pending = self.device.start_download(pieces)
        assert pending is not None, "runs_ahead was asked"

        def wait() -> tuple[Sampled, Int32]:
            flags, *more = [found.view(np.int32) for found in pending.wait()]
            samples = sampler.unpack(more[0], num_sampled) if more else NOTHING_SAMPLED
            return samples, flags

        return wait

    def time(self, key: StepKey, sizes: Mapping[str, int], *, repeat: int) -> NDArray[np.float64]:
        """Run a step ``repeat`` times and return (num_launches,) median seconds."""
        self.run(key, sizes)
        return self.device.time_sequence(self._prepared[key], sizes, repeat=repeat)

    def read_bandwidth_gb_s(self, nbytes: int) -> float:
        """Return how fast kernels of the device read ``nbytes``, GB/s."""
        return self.device.read_bandwidth_gb_s(nbytes)

    def close(self) -> None:
        """Give all memory back and close the device."""
        if self._sampler is not None:
            self._sampler.close()
        buffers = (self._arena, self._small, *self._states.values(), *self._pools)
        for buffer in buffers:
            buffer.free()
        self._host.close()
        self.device.close()

    # --- launches ---

    def _launch(self, launch: ProgramLaunch, request: int) -> Launch:
        handle, record = self._kernels[request, launch.role]
        return kernel_launch(
            handle, record, [self._argument(operand) for operand in launch.operands], launch.label
        )

    def _argument(self, operand: Operand) -> Argument:
        kind = operand.kind
        if kind == "i64":
            return ScalarArgument(_whole(operand), i64)
        if kind == "f32":
            assert isinstance(operand.value, float)
            return ScalarArgument(operand.value, f32)
        if kind == "symbol":
            return SymbolArgument(str(operand.value))
        if kind in {"work_count", "partial_stride"}:
            return SymbolArgument(f"{'W' if kind == 'work_count' else 'P'}{operand.value}")
        if kind in {"slot", "status"}:
            assert isinstance(operand.value, str)
            return self._host.argument(kind, operand.value)
        if kind == "work":
            return self._host.argument(kind, _whole(operand))
        if kind == "state":
            assert isinstance(operand.value, str)
            return BufferArgument(self._states[operand.value])
        index = _whole(operand)
        if kind == "temp":
            return BufferArgument(self._arena, self.program.offsets[index])
        if kind == "matrix":
            return self._matrices[index]
        offsets = self._vector_offsets if kind == "vector" else self._constant_offsets
        return BufferArgument(self._small, offsets[index])


def _whole(operand: Operand) -> int:
    assert isinstance(operand.value, int)
    return operand.value


def _load_kernels(
    device: Device, table: KernelTable
) -> dict[tuple[int, str], tuple[KernelHandle, KernelRecord]]:
    from poot_kernel.compile import CompiledObject, CompileKind

    objects = [
        CompiledObject(
            kind=cast("CompileKind", kind),
            target=device.target,
            entries=entries,
            key=entries[0],
            data=data,
        )
        for kind, entries, data in zip(table.kinds, table.entries, table.objects, strict=True)
    ]
    loaded = device.load(objects)
    found: dict[tuple[int, str], tuple[KernelHandle, KernelRecord]] = {}
    for record in table.kernels:
        handle = loaded[record.object_index].get(record.entry)
        if handle is None:
            raise UnsupportedError(f"kernel {record.entry!r} is not in its object")
        found[record.request, record.role] = (handle, record)
    return found


class _HostMemory:
    """What the host writes and reads each step, in one buffer: slots, work lists, status flags.

    Where the host cannot see device memory it writes to a copy that ``flush`` uploads.
    """

    def __init__(self, device: Device, program: Program, options: EngineOptions) -> None:
        rows = program.max_rows
        shapes: dict[tuple[str, str | int], tuple[int, ...]] = {
            ("slot", name): shape
            for name, shape in step_slots(
                rows["T"], rows["L"], options.max_sequences, options.max_blocks_per_row
            ).items()
        }
        for number, attention in enumerate(program.attention):
            capacity = work_capacity(attention, rows["T"], options.max_sequences)
            shapes["work", number] = (capacity, 4)
        shapes["status", "T"], shapes["status", "L"] = (rows["T"],), (rows["L"],)
        self._offsets: dict[tuple[str, str | int], int] = {}
        total = 0
        for key, shape in shapes.items():
            self._offsets[key] = total
            total += -(-4 * int(np.prod(shape)) // _ALIGNMENT) * _ALIGNMENT
        self._device = device
        self._buffer: Buffer = device.allocate(total, "step inputs")
        view = device.view(self._buffer)
        self._staging = np.zeros(total, np.uint8) if view is None else None
        memory = view if view is not None else self._staging
        assert memory is not None
        arrays = {
            key: memory[offset : offset + 4 * int(np.prod(shapes[key]))]
            .view(np.int32)
            .reshape(shapes[key])
            for key, offset in self._offsets.items()
        }
        self.slots: dict[str, Int32] = {
            str(name): array for (kind, name), array in arrays.items() if kind == "slot"
        }
        self.work: list[Int32] = [
            arrays["work", number] for number in range(len(program.attention))
        ]
        self._status: dict[str, Int32] = {s: arrays["status", s] for s in ("T", "L")}

    @property
    def nbytes(self) -> int:
        """Size of the buffer."""
        return self._buffer.nbytes

    @property
    def is_in_place(self) -> bool:
        """Whether kernels read the very arrays that the host writes."""
        return self._staging is None

    def argument(self, kind: str, name: str | int) -> BufferArgument:
        return BufferArgument(self._buffer, self._offsets[kind, name])

    def flush(self) -> None:
        if self._staging is not None:
            self._device.upload(self._buffer, self._staging)

    def flags(self, symbol: str, rows: int) -> tuple[Buffer, int, int]:
        """Return where the device has the flags of the first rows: buffer, offset, bytes."""
        return self._buffer, self._offsets["status", symbol], 4 * rows

    def take_faults(self, symbol: str, rows: int) -> Int32 | None:
        flags = self._status[symbol][:rows]
        if self._staging is None:
            self._device.synchronize()  # kernels of the step may still be setting them
        else:
            offset = self._offsets["status", symbol]
            flags = self._device.download(self._buffer, offset, 4 * rows).view(np.int32)
        if not flags.any():
            return None
        found = flags.copy()
        # A staged copy holds zeros, which the next flush uploads.
        flags[:] = 0
        return found

    def close(self) -> None:
        self._buffer.free()
