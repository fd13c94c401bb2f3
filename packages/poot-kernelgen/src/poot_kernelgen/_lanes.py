"""How wide the host's vectors are, as generators see it."""

from __future__ import annotations

from poot_core import Target

__all__ = ["lane_count"]


def lane_count(target: Target) -> int:
    """Return the f32 elements of one vector register of the host."""
    if target.arch == "aarch64":
        return 4
    return 16 if "avx512f" in target.features else 8
