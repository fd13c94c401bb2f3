"""Launches under HIP: the first axis is also bound by its number of invocations."""

from __future__ import annotations

from typing import ClassVar

from poot_executor.stream_device import PreparedLaunch

__all__ = ["RocmLaunch"]


class RocmLaunch(PreparedLaunch):
    """A launch that a dispatch packet holds: it counts invocations in 32 bits."""

    max_invocations: ClassVar[int] = 2**32 - 1
