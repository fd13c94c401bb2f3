"""Which kernels answer an attention request."""

from __future__ import annotations

from typing import cast

from poot_core import DeviceCaps, Target
from poot_kernelgen._answers import answer, entry_name
from poot_kernelgen._generate import GeneratedKernel
from poot_kernelgen.attention._main import attend_kernel
from poot_kernelgen.attention._merge import merge_kernel
from poot_kernelgen.requests import AttendRequest, Request

__all__ = ["generate_attend"]


def generate_attend(
    request: Request, target: Target, caps: DeviceCaps
) -> tuple[GeneratedKernel, ...]:
    """Return the main and the merge kernel.

    Raises:
        UnsupportedError: If heads, layouts or the split do not fit together.
    """
    _ = caps
    found = cast("AttendRequest", request)
    main = attend_kernel(found, target, entry_name("attend", found, target))
    # Tiles of any size share one merge.
    facts = (found.num_heads, found.value.head_dim, found.window, found.sinks, found.split)
    merge = merge_kernel(found, entry_name("attend_merge", facts, target))
    return answer(main), answer(merge, "merge", grain=8)
