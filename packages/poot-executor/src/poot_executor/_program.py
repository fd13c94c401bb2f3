"""A planned program: launches over named memory; plain data that is cached on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poot_executor._planned import Operand, Select, Temp
from poot_executor._weights import Constant, Matrix, Vector
from poot_kernelgen import KvLayout, Request, WeightLayout

__all__ = ["AttentionClass", "Program", "ProgramLaunch", "State"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLaunch:
    """One launch; ``variants`` are indices of requests, chosen by ``select``.

    Attributes:
        variants: Requests over the same operands.
        select: How a step picks one.
        role: Which kernel of the answer to the request.
        operands: In the order of the kernel's arguments; tables of the program by index.
        symbol: Domain: ``T`` or ``L``.
        label: Place in the model and what it does.
    """

    variants: tuple[int, ...]
    select: Select
    role: str
    operands: tuple[Operand, ...]
    symbol: str
    label: str


@dataclass(frozen=True, slots=True)
class State:
    """A paged pool.

    Attributes:
        name: As in the graph.
        layout: Where elements lie.
        num_blocks: Blocks.
    """

    name: str
    layout: KvLayout
    num_blocks: int


@dataclass(frozen=True, slots=True)
class AttentionClass:
    """What the work list of some attention launches depends on.

    Attributes:
        window: Keys that a token sees, or None.
        split: Keys of a split.
        query_tiles: Tokens of an item: where each sequence has one token, and otherwise.
        max_splits: Most splits of one token.
        causal: Whether a token sees no later key.
        may_join: Whether an item of several tokens may cover several splits.
    """

    window: int | None
    split: int
    query_tiles: tuple[int, int]
    max_splits: int
    causal: bool = True
    may_join: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """All that an engine needs besides weights and kernels.

    Attributes:
        name: What the model is called.
        target: What it was planned for, printed.
        precision: ``f32`` or ``auto``.
        rows: Most rows of each symbol.
        requests: Kernels by index.
        launches: One step, in order.
        greedy: What finds the largest logits of the last step, in order.
        sampler: Requests of the sampler by index: without counts, with counts, feeding, setting
            counts; empty for encoders.
        matrices: Weights that are laid out for kernels.
        layouts: Layout of each matrix.
        vectors: Weights that kernels read as they are.
        constants: Arrays of the graph.
        temps: Intermediates.
        offsets: First byte of each in the arena.
        arena_bytes: Size of the arena.
        states: Pools.
        attention: Attention classes.
        logits: Temp that holds the logits, or the rows that an encoder makes.
        greedy_ids: Temp that holds the ids of the largest logits.
        vocab_size: Width of such a row.
    """

    name: str
    target: str
    precision: str
    rows: tuple[tuple[str, int], ...]
    requests: tuple[Request, ...]
    launches: tuple[ProgramLaunch, ...]
    greedy: tuple[ProgramLaunch, ...]
    sampler: tuple[int, ...]
    matrices: tuple[Matrix, ...]
    layouts: tuple[WeightLayout, ...]
    vectors: tuple[Vector, ...]
    constants: tuple[Constant, ...]
    temps: tuple[Temp, ...]
    offsets: tuple[int, ...]
    arena_bytes: int
    states: tuple[State, ...]
    attention: tuple[AttentionClass, ...]
    logits: int
    greedy_ids: int
    vocab_size: int

    @property
    def max_rows(self) -> Mapping[str, int]:
        """Most rows of each symbol, by name."""
        return dict(self.rows)
