"""Where an invocation stands, and talking to the others of its group."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from poot_kernel.language._values import (
    Intrinsic,
    intrinsic,
)

if TYPE_CHECKING:
    from poot_kernel.language._calls import CallImporter

__all__ = [
    "barrier",
    "grid_size",
    "local_id",
    "local_size",
    "num_subgroups",
    "subgroup_broadcast",
    "subgroup_id",
    "subgroup_lane",
    "subgroup_reduce",
    "subgroup_scan",
    "subgroup_shuffle",
    "subgroup_shuffle_xor",
    "subgroup_size",
    "subgroup_vote",
    "workgroup_id",
    "workgroup_reduce",
]


def _query(name: str) -> Intrinsic:
    def handler(k: CallImporter, node: ast.Call) -> object:
        return k.b.query(name)

    return Intrinsic(name, handler)


local_id = _query("local_id")
local_size = _query("local_size")
subgroup_id = _query("subgroup_id")
num_subgroups = _query("num_subgroups")
subgroup_lane = _query("subgroup_lane")
subgroup_size = _query("subgroup_size")


@intrinsic
def workgroup_id(k: CallImporter, node: ast.Call, axis: int = 0) -> object:
    """The workgroup's coordinate."""
    return k.b.workgroup_id(axis)


@intrinsic
def grid_size(k: CallImporter, node: ast.Call, axis: int = 0) -> object:
    """Workgroups along an axis."""
    return k.b.grid_size(axis)


@intrinsic
def subgroup_reduce(k: CallImporter, node: ast.Call, x: object, kind: str) -> object:
    """Active lanes combined."""
    return k.b.subgroup_reduce(k.value(x), kind)


@intrinsic
def subgroup_scan(
    k: CallImporter, node: ast.Call, x: object, kind: str, *, exclusive: bool = False
) -> object:
    """Prefix combinations by ascending lane."""
    return k.b.subgroup_scan(k.value(x), kind, exclusive=exclusive)


@intrinsic
def subgroup_shuffle(k: CallImporter, node: ast.Call, x: object, lane: Any) -> object:
    """X of another lane."""
    return k.b.subgroup_shuffle(k.value(x), lane)


@intrinsic
def subgroup_shuffle_xor(k: CallImporter, node: ast.Call, x: object, lane_mask: int) -> object:
    """X of lane ^ lane_mask."""
    return k.b.subgroup_shuffle_xor(k.value(x), lane_mask)


@intrinsic
def subgroup_broadcast(k: CallImporter, node: ast.Call, x: object, lane: Any) -> object:
    """X of one lane, uniform in the subgroup."""
    return k.b.subgroup_broadcast(k.value(x), lane)


@intrinsic
def subgroup_vote(k: CallImporter, node: ast.Call, x: object, kind: str) -> object:
    """Whether any or all active lanes hold true."""
    return k.b.subgroup_vote(k.value(x), kind)


@intrinsic
def workgroup_reduce(k: CallImporter, node: ast.Call, x: object, kind: str) -> object:
    """All invocations combined, uniform."""
    return k.b.workgroup_reduce(k.value(x), kind)


@intrinsic
def barrier(k: CallImporter, node: ast.Call, scope: str = "workgroup") -> None:
    """Order memory among the scope's invocations."""
    k.b.barrier(scope)
