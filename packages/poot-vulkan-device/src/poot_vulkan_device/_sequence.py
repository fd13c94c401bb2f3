"""Prepared sequences: launches with settled addresses, recorded once for each set of sizes."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, cast

from poot_core import DeviceError, ShapeError, f32
from poot_executor import (
    Argument,
    BufferArgument,
    GridArgument,
    Launch,
    ScalarArgument,
    SymbolArgument,
)
from poot_vulkan_device._context import Context
from poot_vulkan_device._kernel import Pipelines, VulkanKernel
from poot_vulkan_device._memory import Memory, VulkanBuffer

__all__ = ["Recording", "VulkanSequence"]

_KEPT = 128  # recordings of a sequence: steps of other sizes displace the oldest
_SLOT = 8


class Recording:
    """A recorded command buffer for given sizes, and what its kernels read from memory."""

    def __init__(self, commands: Any, submit: Any, arguments: VulkanBuffer | None) -> None:
        self.commands, self.submit, self.arguments = commands, submit, arguments


class VulkanSequence:
    """Launches of one sequence.

    Attributes:
        symbols: Symbols that ``run`` needs values for.
        labels: Labels of the launches, in order.
        buffers: Buffers that it uses.
    """

    def __init__(
        self, context: Context, memory: Memory, pipelines: Pipelines, launches: Sequence[Launch]
    ) -> None:
        self._context, self._memory, self._pipelines = context, memory, pipelines
        self._launches = tuple(launches)
        self._recordings: OrderedDict[tuple[int, ...], Recording] = OrderedDict()
        self.labels = tuple(launch.label for launch in launches)
        names: dict[str, None] = {}
        self.buffers: set[VulkanBuffer] = set()
        for launch in launches:
            for argument in launch.arguments:
                if isinstance(argument, SymbolArgument):
                    names[argument.symbol] = None
                elif isinstance(argument, BufferArgument):
                    self.buffers.add(_buffer(argument))
            names.update(dict.fromkeys(d.symbol for d in launch.grid if d.symbol is not None))
        self.symbols = tuple(names)
        for launch in launches:
            self._check(launch)

    def _check(self, launch: Launch) -> None:
        kernel = cast("VulkanKernel", launch.kernel)
        expected = len(kernel.package.parameters)
        if len(launch.arguments) != expected:
            raise ShapeError(
                f"kernel {kernel.entry!r} takes {expected} arguments, {launch.label!r} passes "
                f"{len(launch.arguments)}"
            )

    def recording(self, sizes: Mapping[str, int]) -> Recording:
        """Return the recording for these sizes, made now if there is none.

        Raises:
            DeviceError: If a symbol has no value.
        """
        missing = [name for name in self.symbols if name not in sizes]
        if missing:
            raise DeviceError(f"no value for the symbols {', '.join(missing)}")
        key = tuple(sizes[name] for name in self.symbols)
        found = self._recordings.get(key)
        if found is not None:
            self._recordings.move_to_end(key)
            return found
        if len(self._recordings) >= _KEPT:
            self._context.wait()
            self._drop(self._recordings.popitem(last=False)[1])
        found = self._recordings[key] = self._record(sizes, timestamps=None)
        return found

    def record_timed(self, sizes: Mapping[str, int], queries: Any) -> Recording:
        """Return a recording that writes a timestamp before and after every launch."""
        return self._record(sizes, timestamps=queries)

    def release(self, recording: Recording) -> None:
        """Give back a recording of ``record_timed``."""
        self._drop(recording)

    def _drop(self, recording: Recording) -> None:
        self._context.free_commands(recording.commands)
        if recording.arguments is not None:
            recording.arguments.free()

    def close(self) -> None:
        """Give all recordings back."""
        while self._recordings:
            self._drop(self._recordings.popitem()[1])

    # ---- recording

    def _record(self, sizes: Mapping[str, int], *, timestamps: Any) -> Recording:
        context, lib = self._context, self._context.api.lib
        api, null = context.api, context.api.ffi.NULL
        commands = context.commands()
        begin = api.struct("VkCommandBufferBeginInfo")
        api.check(lib.vkBeginCommandBuffer(commands, begin), "recording")
        barrier = api.struct(
            "VkMemoryBarrier", srcAccessMask=0x40, dstAccessMask=0x60
        )  # writes of shaders before reads and writes of shaders
        outer = api.struct(
            "VkMemoryBarrier", srcAccessMask=0x5040, dstAccessMask=0x60
        )  # what the host and copies wrote
        arguments = self._argument_block()
        filled = 0
        lib.vkCmdPipelineBarrier(commands, 0x5800, 0x800, 0, 1, outer, 0, null, 0, null)
        if timestamps is not None:
            lib.vkCmdWriteTimestamp(commands, 0x800, timestamps, 0)
        bound = None
        for number, launch in enumerate(self._launches):
            kernel = cast("VulkanKernel", launch.kernel)
            counts = [dim.count(sizes) for dim in launch.grid]
            if all(counts):
                if kernel.pipeline is not bound:
                    lib.vkCmdBindPipeline(commands, 1, kernel.pipeline)
                    bound = kernel.pipeline
                block = _arguments(launch, sizes, counts)
                if len(block) > self._pipelines.push_bytes:
                    assert arguments is not None
                    assert arguments.mapped is not None
                    arguments.mapped[filled : filled + len(block)] = memoryview(block)
                    block, filled = (
                        struct.pack("<Q", arguments.address + filled),
                        filled + -(-len(block) // 64) * 64,
                    )
                held = api.ffi.from_buffer(block)
                lib.vkCmdPushConstants(commands, self._pipelines.layout, 0x20, 0, len(block), held)
                x, y, z = self._grid(launch, counts)
                lib.vkCmdDispatch(commands, x, y, z)
                lib.vkCmdPipelineBarrier(commands, 0x800, 0x800, 0, 1, barrier, 0, null, 0, null)
            if timestamps is not None:
                lib.vkCmdWriteTimestamp(commands, 0x800, timestamps, number + 1)
        after = api.struct("VkMemoryBarrier", srcAccessMask=0x40, dstAccessMask=0x2800)
        lib.vkCmdPipelineBarrier(commands, 0x800, 0x5000, 0, 1, after, 0, null, 0, null)
        api.check(lib.vkEndCommandBuffer(commands), "recording")
        return Recording(commands, context.submit_info([commands]), arguments)

    def _argument_block(self) -> VulkanBuffer | None:
        total = 0
        for launch in self._launches:
            nbytes = _SLOT * len(launch.arguments)
            if nbytes > self._pipelines.push_bytes:
                total += -(-nbytes // 64) * 64
        return self._memory.host_visible(total, "arguments") if total else None

    def _grid(self, launch: Launch, counts: Sequence[int]) -> tuple[int, int, int]:
        x, y, z = (*counts, 1, 1)[:3]
        limits = self._context.adapter.max_grid
        if len(counts) > 3 or x > limits[0] or y > limits[1] or z > limits[2]:
            raise DeviceError(
                f"{launch.label!r} needs a grid of {tuple(counts)}, {self._context.adapter.name} "
                f"takes at most {limits}; lower max_step_tokens"
            )
        return x, y, z


def _buffer(argument: BufferArgument) -> VulkanBuffer:
    buffer = argument.buffer
    if not isinstance(buffer, VulkanBuffer):
        raise DeviceError(f"{buffer.label!r} is no buffer of a Vulkan device")
    return buffer


def _arguments(launch: Launch, sizes: Mapping[str, int], counts: Sequence[int]) -> bytes:
    return b"".join(_slot(argument, sizes, counts) for argument in launch.arguments)


def _slot(argument: Argument, sizes: Mapping[str, int], counts: Sequence[int]) -> bytes:
    match argument:
        case BufferArgument(buffer, offset):
            return struct.pack("<Q", cast("VulkanBuffer", buffer).address + offset)
        case SymbolArgument(symbol):
            return struct.pack("<q", sizes[symbol])
        case GridArgument(axis):
            return struct.pack("<q", counts[axis])
        case ScalarArgument(value, dtype):
            if dtype is f32:
                return struct.pack("<fI", value, 0)
            return struct.pack("<q", int(value))
        case _:
            raise AssertionError(argument)
