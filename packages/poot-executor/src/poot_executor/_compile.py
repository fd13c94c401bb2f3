"""Compile a graph for a target: passes, launches, repeated layers, memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from poot_core import Target, UnsupportedError
from poot_executor._layers import collapse, expand
from poot_executor._memory import ALIGNMENT, live_launches, place
from poot_executor._planned import Operand, PlannedLaunch, Temp
from poot_executor._program import AttentionClass, Program, ProgramLaunch, State
from poot_executor._rewrite import extents, leading_symbol
from poot_executor._schedule import Schedule, ScheduleOptions, no_joined_tile, schedule
from poot_executor._verify import verify_planned
from poot_executor._weights import Matrix
from poot_executor.passes import (
    AbsorbEpilogues,
    FormContractions,
    FormEmbeddings,
    InlineRegions,
    MergeEqual,
    PairGates,
    RemoveDead,
    RoundActivations,
    SplitHalves,
    StackSiblings,
    StoreRounded,
    choose_activation,
)
from poot_graph_ir import Graph, Value
from poot_kernelgen import (
    ArgmaxRequest,
    AttendRequest,
    CountRequest,
    FeedRequest,
    SampleRequest,
    WeightLayout,
)

__all__ = ["Pass", "PlanOptions", "compile_graph", "pipeline", "rewrite"]

Pass = Callable[[Graph], Graph]
_SAMPLER = (SampleRequest(), SampleRequest(counted=True), FeedRequest(), CountRequest())


def _plain_layout(source: str) -> WeightLayout:
    return WeightLayout(source=source)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Bounds and choices of a plan.

    Attributes:
        precision: ``f32`` or ``auto``.
        max_tokens: Upper bound of T.
        max_logits: Upper bound of L.
        context_tokens: Longest sequence.
        layout: Returns the device layout of a stored type.
        query_tiles: Tokens of an attention work item: of a decode step, of any other.
        shortest_split: Keys of an attention split where sequences are short.
        joined_tile: Returns the tokens of an attention work item that may cover several splits, 0
            where the kernel of a request takes items of one split alone.
        repeat_layers: Whether equal layers are planned once.
        outliers: When 8-bit operands keep what rounding lost of a block (``i8r``): largest element
            over root mean square of the row, before most products, before those that are added to a
            stream, and before those for wanted positions alone; None never does. The default is the
            most that prefill has room for; ``benchmarks/accuracy.py`` measures what it brings.
        check: Whether the graph is verified after each pass.
    """

    precision: str = "auto"
    max_tokens: int = 512
    max_logits: int = 512
    context_tokens: int = 2048
    layout: Callable[[str], WeightLayout] = field(default=_plain_layout)
    query_tiles: tuple[int, int] = (1, 8)
    shortest_split: int = 512
    joined_tile: Callable[[AttendRequest], int] = no_joined_tile
    repeat_layers: bool = True
    outliers: tuple[float, float, float] | None = (5.0, 6.0, 2.5)
    check: bool = False

    @property
    def split(self) -> int:
        """Keys of an attention split: the shortest, more where a sequence would have over 16.

        A prompt of up to so many tokens leaves no partial results; shorter splits balance decode
        better over many threads.
        """
        split = self.shortest_split
        while split * 16 < self.context_tokens:
            split *= 2
        return split


def pipeline(target: Target, options: PlanOptions) -> tuple[Pass, ...]:
    """Return the passes in order; each is a record that prints as what it does."""
    interleave = options.layout("f32").interleave

    def choose(matrix: Matrix) -> Any:
        return choose_activation(
            matrix, options.precision, target.features, residual=options.outliers is not None
        )

    return (
        InlineRegions(),
        RemoveDead(),
        MergeEqual(),
        FormEmbeddings(),
        FormContractions(),
        SplitHalves(interleave),
        PairGates(interleave),
        StackSiblings(interleave),
        AbsorbEpilogues(),
        RoundActivations(choose, options.outliers or (0.0, 0.0, 0.0)),
        # Products on the host leave f32, which row programs round beside other work.
        *([StoreRounded()] if "mma-k16" in target.features else []),
        RemoveDead(),
    )


def rewrite(graph: Graph, passes: tuple[Pass, ...], *, check: bool = False) -> Graph:
    """Return the graph after all passes, each verified if ``check``."""
    for each in passes:
        graph = each(graph)
        if check:
            verify_planned(graph, repr(each))
    return graph


def compile_graph(graph: Graph, target: Target, options: PlanOptions | None = None) -> Program:
    """Return the program that computes one step of a graph on a target.

    Args:
        graph: A traced model with one output, rows of L: logits, or what an encoder makes.
        target: Instruction set.
        options: Bounds and choices.

    Raises:
        UnsupportedError: If an equation fits no kernel; names it and what is missing.
    """
    options = options or PlanOptions()
    wanted = [name for name, value in graph.outputs if leading_symbol(value) == "L"]
    if len(graph.outputs) != 1 or not wanted:
        found = ", ".join(f"{name}: {value.type}" for name, value in graph.outputs) or "none"
        raise UnsupportedError(
            f"graph {graph.name!r} has the outputs {found}; a plan has one, rows of L, such as logits"
        )
    passes = pipeline(target, options)
    planned, launches = None, None
    if options.repeat_layers:
        short, runs = collapse(graph)
        planned = _schedule(rewrite(short, passes, check=options.check), target, options)
        launches = expand(planned.launches, planned.temps, runs)
    if planned is None or launches is None:
        planned = _schedule(rewrite(graph, passes, check=options.check), target, options)
        launches = planned.launches
    return _program(graph, target, options, planned, launches)


def _schedule(graph: Graph, target: Target, options: PlanOptions) -> Schedule:
    max_splits = -(-options.context_tokens // options.split)
    return schedule(
        graph,
        ScheduleOptions(
            layout=options.layout,
            query_tiles=options.query_tiles,
            split=options.split,
            max_splits=max_splits,
            kv_pairs="avx512bf16" in target.features,
            joined_tile=options.joined_tile,
        ),
    )


class _Table:
    """Gives equal records one index."""

    def __init__(self) -> None:
        self.items: dict[Any, int] = {}

    def index(self, item: Any) -> int:
        return self.items.setdefault(item, len(self.items))


def _program(
    graph: Graph,
    target: Target,
    options: PlanOptions,
    planned: Schedule,
    launches: list[PlannedLaunch],
) -> Program:
    requests, matrices, vectors, constants = _Table(), _Table(), _Table(), _Table()
    tables: dict[str, _Table] = {"matrix": matrices, "vector": vectors, "constant": constants}

    def settle(operand: Operand) -> Operand:
        table = tables.get(operand.kind)
        return operand if table is None else Operand(operand.kind, table.index(operand.value))

    settled = tuple(
        ProgramLaunch(
            variants=tuple(requests.index(request) for request in launch.requests),
            select=launch.select,
            role=launch.role,
            operands=tuple(settle(operand) for operand in launch.operands),
            symbol=launch.symbol,
            label=launch.label,
        )
        for launch in launches
    )
    rows = {"T": options.max_tokens, "L": options.max_logits}
    ((output, logits),) = planned.outputs
    vocab_size = graph.outputs[0][1].shape[-1]
    assert isinstance(vocab_size, int)
    temps = list(planned.temps)
    greedy = _greedy(temps, requests, logits, vocab_size)
    sampler = tuple(map(requests.index, _SAMPLER)) if output == "logits" else ()
    offsets, arena_bytes = _place(launches, temps, rows, logits)
    names = {str(o.value) for x in launches for o in x.operands if o.kind == "state"}
    states = tuple(
        _state(name, value, planned) for name, value in graph.states.items() if name in names
    )
    return Program(
        name=graph.name,
        target=str(target),
        precision=options.precision,
        rows=tuple(rows.items()),
        requests=_items(requests),
        launches=settled,
        greedy=greedy,
        sampler=sampler,
        matrices=_items(matrices),
        layouts=tuple(options.layout(m.source) for m in matrices.items),
        vectors=_items(vectors),
        constants=_items(constants),
        temps=tuple(temps),
        offsets=offsets,
        arena_bytes=arena_bytes,
        states=states,
        attention=tuple(
            AttentionClass(
                mask.window,
                options.split,
                mask.query_tiles,
                -(-options.context_tokens // options.split),
                mask.causal,
                mask.may_join,
            )
            for mask in planned.masks
        ),
        logits=logits,
        greedy_ids=len(temps) - 1,
        vocab_size=vocab_size,
    )


def _state(name: str, value: Value, planned: Schedule) -> State:
    # A repeated layer's pools have the type of the template's; only roles are looked up by suffix.
    known = planned.states.get(name)
    if known is not None:
        return State(name, *known)
    suffix = name.rpartition(".")[2]
    blocks, block_size, heads, dim = extents(value)
    for other, (layout, _) in planned.states.items():
        same = (layout.num_kv_heads, layout.head_dim, layout.block_size) == (heads, dim, block_size)
        if same and other.endswith(f".{suffix}"):
            return State(name, layout, blocks)
    raise AssertionError(f"no layout for state {name!r}")


def _items(table: _Table) -> tuple[Any, ...]:
    return tuple(table.items)


def _greedy(
    temps: list[Temp], requests: _Table, logits: int, vocab_size: int
) -> tuple[ProgramLaunch, ...]:
    """Return the launches that find the largest logits; their temps are appended."""
    request = ArgmaxRequest()
    chunks = -(-vocab_size // request.chunk)
    values, ids, result = len(temps), len(temps) + 1, len(temps) + 2
    temps += [Temp("L", 4 * chunks), Temp("L", 4 * chunks), Temp("L", 4)]
    rows = Operand("symbol", "L")
    partials = (Operand("temp", values), Operand("temp", ids))
    operands = {
        "partial": (Operand("temp", logits), *partials, rows, Operand("i64", vocab_size)),
        "final": (*partials, Operand("temp", result), rows, Operand("i64", chunks)),
    }
    return tuple(
        ProgramLaunch(
            variants=(requests.index(request),),
            select="only",
            role=role,
            operands=given,
            symbol="L",
            label=f"greedy.{role}",
        )
        for role, given in operands.items()
    )


def _place(
    launches: list[PlannedLaunch], temps: list[Temp], rows: dict[str, int], logits: int
) -> tuple[tuple[int, ...], int]:
    """Place intermediates; the logits and what reads them later stand behind all others.

    Most steps want few logits and never touch the rest of that memory.
    """
    live = live_launches(launches, len(temps), ())
    behind = [logits, *range(len(temps) - 3, len(temps))]
    small = [Temp(t.symbol, 0) if i in behind else t for i, t in enumerate(temps)]
    arena = place(small, live, rows)
    offsets, total = list(arena.offsets), arena.nbytes
    for temp in behind:
        offsets[temp] = total
        size = temps[temp].row_bytes * rows[temps[temp].symbol]
        total += -(-size // ALIGNMENT) * ALIGNMENT
    return tuple(offsets), total
