"""Which kernels answer an attention request."""

from __future__ import annotations

from typing import cast

from poot_core import DeviceCaps, Target, UnsupportedError
from poot_kernelgen._answers import answer, entry_name, gpu_answer
from poot_kernelgen._generate import GeneratedKernel
from poot_kernelgen.attention._gpu import gpu_attend_kernel, gpu_blocking
from poot_kernelgen.attention._joined import joined_attend_kernel, joined_tile_for
from poot_kernelgen.attention._main import attend_kernel
from poot_kernelgen.attention._matrix import matrix_attend_kernel, suits_matrix_attention
from poot_kernelgen.attention._merge import merge_kernel
from poot_kernelgen.requests import AttendRequest, Request

__all__ = ["generate_attend", "joined_tile_for", "query_tiles_for", "shortest_split_for"]

_MERGE_THREADS = 64
_SPLIT, _GPU_SPLIT = 512, 128


def generate_attend(
    request: Request, target: Target, caps: DeviceCaps
) -> tuple[GeneratedKernel, ...]:
    """Return the main and the merge kernel.

    Raises:
        UnsupportedError: If heads, layouts or the split do not fit together, or if the host shall
            round results.
    """
    found = cast("AttendRequest", request)
    if caps.max_workgroup > 1:
        return _for_gpu(found, target, caps)
    if found.result_dtype != "f32":
        raise UnsupportedError(
            f"attention on the host stores f32, not {found.result_dtype!r}; round it in a row program"
        )
    main = attend_kernel(found, target, entry_name("attend", found, target))
    # Tiles of any size share one merge.
    facts = (found.num_heads, found.value.head_dim, found.window, found.sinks, found.split,
             found.causal)  # fmt: skip
    merge = merge_kernel(found, entry_name("attend_merge", facts, target))
    return answer(main), answer(merge, "merge", grain=8)


def _for_gpu(
    request: AttendRequest, target: Target, caps: DeviceCaps
) -> tuple[GeneratedKernel, ...]:
    is_matrix = suits_matrix_attention(request, target, caps)
    tile = joined_tile_for(request, target, caps)
    if is_matrix and tile and request.query_tile == tile > 1:
        main = joined_attend_kernel(request, entry_name("attend_joined", request, target))
    elif is_matrix:
        main = matrix_attend_kernel(request, entry_name("attend_matrix", request, target))
    else:
        blocking = gpu_blocking(request, caps)
        name = entry_name("attend", (request, blocking), target)
        main = gpu_attend_kernel(request, blocking, name)
    threads = max(caps.subgroup_size, min(_MERGE_THREADS, caps.max_workgroup))
    facts = (request.num_heads, request.value.head_dim, request.window, request.sinks,
             request.split, request.causal, request.result_dtype, threads, is_matrix)  # fmt: skip
    name = entry_name("attend_merge", facts, target)
    merge = merge_kernel(request, name, threads, in_turn=is_matrix)
    return gpu_answer(main), gpu_answer(merge, "merge")


def query_tiles_for(target: Target, caps: DeviceCaps) -> tuple[int, int]:
    """Return the most tokens of a work item: in a decode step, and in any other."""
    return (1, 16) if caps.max_workgroup > 1 and "mma-k16" in target.features else (1, 8)


def shortest_split_for(target: Target, caps: DeviceCaps, block_size: int) -> int:
    """Return the keys of an attention split where sequences are short.

    A decode step has few work items: on a GPU short splits give more multiprocessors one. Kernels on
    matrix instructions share the parts of an item among subgroups instead.
    """
    if caps.max_workgroup == 1 or "mma-k16" in target.features:
        return _SPLIT
    return -(-_GPU_SPLIT // block_size) * block_size
