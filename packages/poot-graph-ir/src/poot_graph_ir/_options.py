"""What a caller tells a model function about the step, and the step's standard slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from poot_core import DType, SymbolicDim, f16

if TYPE_CHECKING:
    from poot_graph_ir._tracer import Tracer

__all__ = ["B", "StepSlots", "TraceOptions"]

B = SymbolicDim("B")
"""Width of a block table where a trace leaves it open (tests and the oracle do)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Sizes of the paged states that a model declares.

    Attributes:
        kv_dtype: Element type of keys and values in the pool: f32, f16 or bf16.
        block_size: Tokens of one KV block.
        num_blocks: Blocks of the pool.
        max_blocks_per_row: Width of a block table, or None to bind it at each step.
    """

    kv_dtype: DType = f16
    block_size: int = 32
    num_blocks: int = 64
    max_blocks_per_row: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSlots:
    """The slots of a ragged step; all are i32.

    Attributes:
        token_ids: (T,) tokens of all rows, those of a row together and in order.
        positions: (T,) position of each token in its sequence.
        rows: (T,) which sequence each token belongs to.
        sequence_lengths: (R,) tokens of each sequence once the step has run.
        block_tables: (R, B) KV blocks of each sequence.
        slot_mapping: (T,) block * block_size + offset that each token writes; negative writes none.
        logit_positions: (L,) which of the T tokens' logits are wanted.
    """

    token_ids: Tracer
    positions: Tracer
    rows: Tracer
    sequence_lengths: Tracer
    block_tables: Tracer
    slot_mapping: Tracer
    logit_positions: Tracer
