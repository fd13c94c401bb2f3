"""What launches on NVIDIA GPUs have besides arguments: tensor maps, clusters, early starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poot_executor import Launch
from poot_executor.stream_device import Grid, PreparedLaunch, StreamDriver
from poot_kernel import Size
from poot_ptx_device._machine import MachineFacts
from poot_ptx_device._tensor_map import MAP_BYTES, MapEncoder, aligned_words

__all__ = ["PtxLaunch"]


class PtxLaunch(PreparedLaunch):
    """A launch whose configuration is kept and rewritten as symbols change.

    Args:
        launch: What is launched.
        driver: The driver.
        stream: Where it is queued.
        encoder: Describes arrays to the copy engine.
        facts: Of the machine.
        is_first: Whether it is the first of its sequence, which waits for all before it.

    Attributes:
        config: The driver's launch configuration.
    """

    def __init__(
        self,
        launch: Launch,
        driver: StreamDriver,
        stream: Any,
        encoder: MapEncoder,
        facts: MachineFacts,
        *,
        is_first: bool,
    ) -> None:
        package = launch.kernel.package  # pyright: ignore[reportAttributeAccessIssue]
        words = MAP_BYTES // 8
        self._maps = aligned_words(words * len(package.tensor_maps)).reshape(-1, words)
        super().__init__(launch, [int(row.ctypes.data) for row in self._maps])
        self._package, self._encoder, self._facts = self.kernel.package, encoder, facts
        split = self._package.split
        self._chunks = None if split is None else Size.parse(split.chunks)
        self._shapes = [
            tuple(Size.parse(text) for text in found.shape) for found in self._package.tensor_maps
        ]
        early = facts.can_overlap and not is_first and self._package.is_overlapping
        self.config = self._config(driver.binding, stream, early=early)

    def _config(self, binding: Any, stream: Any, *, early: bool) -> Any:
        config = binding.CUlaunchConfig()
        config.blockDimX, config.blockDimY, config.blockDimZ = self._package.threads, 1, 1
        config.sharedMemBytes = self._package.shared_bytes
        config.hStream = stream
        if early:
            attribute = binding.CUlaunchAttribute()
            ids = binding.CUlaunchAttributeID
            attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        return config

    def settle(self, grid: Grid, scalars: Mapping[str, int]) -> None:
        """Write the grid, the maps and the size of the workgroups."""
        package, facts = self._package, self._facts
        if package.is_persistent:
            total, by = grid[0] * grid[1] * grid[2], package.cluster
            most = facts.num_multiprocessors // by * by
            # Workgroups that run together may share a place: each gets one where there is room.
            self.grid = (min(total * by, most), 1, 1)
        else:
            super().settle(grid, scalars)
        for row, found, shape in zip(self._maps, package.tensor_maps, self._shapes, strict=True):
            extents = tuple(size.evaluate(scalars) for size in shape)
            address = int(self.slots[found.parameter])
            self._encoder.encode(row, address, extents, found.box, found.itemsize)
        self.config.gridDimX, self.config.gridDimY, self.config.gridDimZ = self.grid
        if package.split is not None and self._chunks is not None:
            chunks = self._chunks.evaluate(scalars)
            count, shared = package.split.launch(chunks, package.shared_bytes, facts.shared_bytes)
            self.config.blockDimX, self.config.sharedMemBytes = 32 * count, shared
