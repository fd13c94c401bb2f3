"""Whether this machine shows a GPU at all, without loading any driver."""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["is_gpu_visible"]

# Render nodes of the kernel's graphics drivers, NVIDIA's and AMD's own, and WSL's paravirtual GPU.
_PATTERNS = ("dri/renderD*", "nvidiactl", "nvidia[0-9]*", "kfd", "dxg")


def is_gpu_visible(devices: Path = Path("/dev"), platform: str = sys.platform) -> bool:
    """Return False only where no GPU can be: a Linux without any device file of one.

    Loading four drivers to learn that takes a second or more. Elsewhere the drivers have to be asked.

    >>> is_gpu_visible(Path("/nonexistent"), "linux"), is_gpu_visible(Path("/nonexistent"), "darwin")
    (False, True)
    """
    if platform != "linux":
        return True
    return any(next(devices.glob(pattern), None) is not None for pattern in _PATTERNS)
