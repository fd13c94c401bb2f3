"""Matching a family's weight table against what a checkpoint holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from poot_core import CheckpointError, DType
from poot_load import WeightStore
from poot_models.components.step import StoredWeight
from poot_models.components.tables import WeightTable

__all__ = ["TensorNames", "bind_weights"]


class TensorNames(Protocol):
    """How a family names tensors; see ``Family``."""

    @property
    def name(self) -> str: ...
    @property
    def prefix(self) -> str: ...
    @property
    def other_prefixes(self) -> tuple[str, ...]: ...
    @property
    def ignored_weights(self) -> tuple[str, ...]: ...


# Buffers that old checkpoints saved and that follow from the configuration: inverse frequencies,
# causal masks and their fill value.
_BUFFERS = re.compile(
    r"(^|\.)(rotary_emb\.inv_freq|attn\.(masked_)?bias|attention\.(masked_)?bias)$"
)
_HEADS = re.compile(r"(^|\.)(lm_head|embed_out)\.weight$")


def bind_weights(
    family: TensorNames, table: WeightTable, stored: WeightStore, *, tied: bool
) -> dict[str, StoredWeight]:
    """Return the stored tensor of every entry of a family's table.

    Args:
        family: Whose table it is.
        table: Expected shape of each tensor.
        stored: What the checkpoint holds.
        tied: Whether an output projection may be there although the embedding serves.

    Raises:
        CheckpointError: If a tensor is missing, has another shape, holds integers, or is left over.
    """
    names = frozenset(stored.names())
    rename = _renaming(family, table, names)
    bound: dict[str, StoredWeight] = {}
    for name, shape in table.items():
        found = rename.get(name, name)
        if found not in names:
            raise CheckpointError(
                f"tensor {found!r} of a {family.name} model is missing: expected shape "
                f"{list(shape)}, the checkpoint holds {len(names)} tensors without it",
                tensor=found, expected=shape, found=None,
            )  # fmt: skip
        info = stored.info(found)
        if tuple(info.shape) != shape:
            raise CheckpointError(
                f"tensor {found!r} of a {family.name} model has shape {list(info.shape)}, "
                f"expected {list(shape)} from the configuration",
                tensor=found, expected=shape, found=tuple(info.shape),
            )  # fmt: skip
        if isinstance(info.dtype, DType) and not info.dtype.is_float:
            raise CheckpointError(
                f"tensor {found!r} of a {family.name} model holds {info.dtype.name}, expected "
                "floats or a packed format",
                tensor=found, expected="a float dtype", found=info.dtype.name,
            )  # fmt: skip
        bound[name] = StoredWeight(found, shape, info.dtype)
    used = {weight.name for weight in bound.values()}
    heads = {name for name in names if tied and _HEADS.search(name)}
    _refuse_left_over(family, names - used - heads, len(table))
    return bound


def _renaming(family: TensorNames, table: WeightTable, names: frozenset[str]) -> Mapping[str, str]:
    """Return the stored name of each entry where the checkpoint has another prefix."""
    body = [name for name in table if name.startswith(family.prefix)]
    if any(name in names for name in body):
        return {}
    for other in family.other_prefixes:
        renamed = {name: other + name.removeprefix(family.prefix) for name in body}
        if any(name in names for name in renamed.values()):
            outer = other.removesuffix(family.prefix)
            heads = (name for name in table if name not in renamed)
            return renamed | {
                name: outer + name for name in heads if outer and outer + name in names
            }
    return {}


def _refuse_left_over(family: TensorNames, left_over: Iterable[str], expected: int) -> None:
    strange = sorted(
        name
        for name in left_over
        if not _BUFFERS.search(name) and not name.startswith(family.ignored_weights)
    )
    if strange:
        shown = ", ".join(repr(name) for name in strange[:3])
        raise CheckpointError(
            f"{len(strange)} tensors are no part of a {family.name} model of this configuration, "
            f"which has {expected}: {shown}{', ...' if len(strange) > 3 else ''}",
            tensor=strange[0], expected=None, found=strange[0],
        )  # fmt: skip
