"""From rewritten equations to launches: anchors, and row programs for all that lies between.

An *anchor* is an equation with a kernel of its own (contraction, attention, embedding). Everything
else is pointwise work over rows. A row value runs right after the last anchor that it depends on, so
the equations between two anchors form one cluster, and one row program, for each domain (T, L).
Views cost nothing and are computed where they are read. What another kernel reads is stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from poot_core import DType, UnsupportedError, bf16, f32
from poot_executor._planned import Operand, PlannedLaunch, Temp
from poot_executor._rewrite import attribute, leading_symbol, refuse, static_shape
from poot_executor._row_builder import RowBuilder
from poot_executor._weights import Constant, Matrix, Vector
from poot_graph_ir import PRIMITIVES, Equation, Graph, Literal, Storage, Value
from poot_kernelgen import (
    EIGHT_BIT,
    AttendRequest,
    ContractionRequest,
    GatherRequest,
    KvLayout,
    Regime,
    RowOutput,
    WeightLayout,
    flight_of,
)
from poot_kernelgen.requests import Flight

__all__ = ["REGIMES", "Schedule", "ScheduleOptions", "no_joined_tile", "schedule"]

REGIMES: tuple[Regime, ...] = ("one", "few", "some", "many")
_ANCHORS = frozenset({"contract", "attend", "embed"})
_VIEWS = frozenset({"broadcast_in_dim", "reshape", "slice", "transpose", "full", "iota", "literal"})
_ROW_CATEGORIES = frozenset({"unary", "binary", "compare", "select", "view", "create"})
_ROW_OPS = frozenset(
    name
    for name, primitive in PRIMITIVES.items()
    if primitive.category in _ROW_CATEGORIES and name != "dequantize"
) | {"reduce_sum", "reduce_max", "reduce_min"}
_WIDE_ROWS = 16384
_I8_BLOCK = 32


def no_joined_tile(request: AttendRequest) -> int:
    """Return 0: every work item lies within one split."""
    del request
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """Choices that are not in the graph.

    Attributes:
        layout: Returns the device layout of a stored type.
        query_tiles: Tokens of an attention work item: of a decode step, of any other.
        split: Keys of an attention split.
        max_splits: Most splits that the keys of one token span.
        kv_pairs: Whether pools of bf16 keep pairs side by side for the target's products of such.
        joined_tile: Returns the tokens of an item that may cover several splits, 0 for none.
    """

    layout: Callable[[str], WeightLayout]
    query_tiles: tuple[int, int] = (1, 8)
    split: int = 256
    max_splits: int = 8
    kv_pairs: bool = False
    joined_tile: Callable[[AttendRequest], int] = no_joined_tile


class AttentionMask(NamedTuple):
    """What an attention class stands for; see ``AttentionClass``."""

    window: int | None
    causal: bool
    query_tiles: tuple[int, int]
    may_join: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Launches of a graph and what they refer to.

    Attributes:
        launches: In order.
        temps: Intermediates by id.
        outputs: For each output its name and temp.
        masks: What each attention class stands for, in the order of their numbers.
        states: Layout and number of blocks of each state, by name.
    """

    launches: list[PlannedLaunch]
    temps: list[Temp]
    outputs: tuple[tuple[str, int], ...]
    masks: tuple[AttentionMask, ...]
    states: dict[str, tuple[KvLayout, int]]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value is computed: after which anchor, over which rows, and how."""

    stage: int
    symbol: str | None
    kind: str  # anchor, row, view, sink, input


def schedule(graph: Graph, options: ScheduleOptions) -> Schedule:
    """Return the launches of a rewritten graph.

    Raises:
        UnsupportedError: If an equation fits no kernel; names it and what is missing.
    """
    return _Scheduler(graph, options).run()


class _Scheduler:
    def __init__(self, graph: Graph, options: ScheduleOptions) -> None:
        self.graph = graph
        self.options = options
        self.makers = {v.id: e for e in graph.equations for v in e.outputs}
        self.positions = {v.id: i for i, e in enumerate(graph.equations) for v in e.outputs}
        self.places: dict[int, _Place] = {}
        self.anchors: list[Equation] = []
        self.temps: list[Temp] = []
        self.storage: dict[int, tuple[int, ...]] = {}
        self.roots: dict[tuple[int, str], dict[int, Value]] = defaultdict(dict)
        self.masks: list[AttentionMask] = []
        self.states: dict[str, tuple[KvLayout, int]] = {}

    def run(self) -> Schedule:
        self._place_all()
        anchored = [self._anchor(equation) for equation in self.anchors]
        for equation in self.graph.equations:
            if equation.op == "kv_write":
                place = self.places[equation.output.id]
                assert place.symbol is not None
                self.roots[place.stage, place.symbol][equation.output.id] = equation.output
        outputs: list[tuple[str, int]] = []
        for name, value in self.graph.outputs:
            (temp,) = self.stored(value, None)
            outputs.append((name, temp))
        clusters = self._clusters()
        launches: list[PlannedLaunch] = list(clusters.get(0, ()))
        for number, group in enumerate(anchored, start=1):
            launches.extend(group)
            launches.extend(clusters.get(number, ()))
        return Schedule(
            launches=launches,
            temps=self.temps,
            outputs=tuple(outputs),
            masks=tuple(self.masks),
            states=self.states,
        )

    # --- placing ---

    def _place_all(self) -> None:
        for equation in self.graph.equations:
            stage = max((self._stage(v) for v in equation.inputs), default=0)
            if equation.op in _ANCHORS:
                self.anchors.append(equation)
                stage, kind = len(self.anchors), "anchor"
            elif equation.op in {"kv_write", "quantise"}:
                kind = "sink"
            elif equation.op in _VIEWS or self._is_selection(equation):
                kind = "view"
            elif equation.op in _ROW_OPS:
                kind = "row"
            else:
                refuse(equation, _missing(equation))
            for value in equation.outputs:
                symbol = leading_symbol(value)
                if equation.op == "kv_write":
                    symbol = leading_symbol(equation.inputs[1])
                if symbol is None and kind == "row":
                    kind = "view"  # shared by all rows: cheaper to repeat than to store
                self.places[value.id] = _Place(stage, symbol, kind)

    def _stage(self, value: Value) -> int:
        place = self.places.get(value.id)
        return 0 if place is None else place.stage

    def _is_selection(self, equation: Equation) -> bool:
        if equation.op != "gather" or equation.attributes["axis"] != 0:
            return False
        table, ids = equation.inputs
        return (
            table.storage is Storage.COMPUTED
            and leading_symbol(table) is not None
            and ids.storage is Storage.SLOT
            and len(ids.shape) == 1
        )

    # --- storage ---

    def _temp(self, symbol: str, row_bytes: int) -> int:
        self.temps.append(Temp(symbol, row_bytes))
        return len(self.temps) - 1

    def stored(self, value: Value, user: Equation | None) -> tuple[int, ...]:
        """Return the temps of a value, asking its cluster to store it if nothing else does."""
        value = self._root(value)
        found = self.storage.get(value.id)
        if found is not None:
            return found
        place = self.places.get(value.id)
        maker = self.makers.get(value.id)
        if place is None or maker is None or place.symbol is None:
            if user is None:
                raise UnsupportedError(f"cannot return {value.name or value} as it is")
            refuse(user, f"it reads {value.name or value}, which has no rows")
        if place.kind != "anchor":
            self.roots[place.stage, place.symbol][value.id] = value
        row_bytes = self._row_bytes(maker, value)
        found = tuple(self._temp(place.symbol, count) for count in row_bytes)
        self.storage[value.id] = found
        return found

    def _row_bytes(self, maker: Equation, value: Value) -> tuple[int, ...]:
        elements = 1
        for dim in static_shape(maker, value):
            elements *= dim
        if maker.op == "quantise" and maker.attributes["kind"] in EIGHT_BIT:
            groups = elements // _I8_BLOCK
            plain = (elements, 4 * groups, 4 * groups)
            return plain if maker.attributes["kind"] == "i8" else (*plain, elements, 4 * groups)
        assert isinstance(value.dtype, DType)
        return (elements * value.dtype.itemsize,)

    def _root(self, value: Value) -> Value:
        """Follow reshapes that keep rows: the bytes are the same."""
        while True:
            maker = self.makers.get(value.id)
            if maker is None or maker.op != "reshape":
                return value
            (source,) = maker.inputs
            if leading_symbol(source) != leading_symbol(value) or source.storage in {
                Storage.SLOT,
                Storage.CONST,
            }:
                return value
            value = source

    # --- anchors ---

    def _anchor(self, equation: Equation) -> list[PlannedLaunch]:
        if equation.op == "contract":
            return [self._contraction(equation)]
        if equation.op == "embed":
            return [self._embedding(equation)]
        return self._attention(equation)

    def _operands(self, values: Sequence[Value], user: Equation) -> list[Operand]:
        return [Operand("temp", temp) for value in values for temp in self.stored(value, user)]

    def _contraction(self, equation: Equation) -> PlannedLaunch:
        matrix, epilogue = attribute(equation, "matrix"), attribute(equation, "epilogue")
        gated: bool = attribute(equation, "gated")
        symbol = self.places[equation.output.id].symbol
        assert symbol is not None
        full = iter(equation.inputs[1:])
        epilogue_operands: list[Operand] = []
        for vector in attribute(equation, "columns"):
            if vector is None:
                epilogue_operands += self._operands([next(full)], equation)
            else:
                epilogue_operands.append(Operand("vector", vector))
        n = matrix.n // 2 if gated else matrix.n
        operands = [
            Operand("matrix", matrix),
            *self._operands(equation.inputs[:1], equation),
            *epilogue_operands,
            *self._operands(equation.outputs, equation),
            Operand("symbol", symbol),
            Operand("i64", n),
            Operand("i64", matrix.k),
            Operand("i64", n),
        ]
        requests = tuple(
            ContractionRequest(
                weight=self.options.layout(matrix.source),
                activation=attribute(equation, "activation"),
                regime=regime,
                epilogue=epilogue,
                gated=gated,
                result_dtype=_dtype_name(equation.output),
                is_wide=matrix.n >= _WIDE_ROWS,
                flight=self._flight(equation, matrix, regime),
            )
            for regime in REGIMES
        )
        label = _label(equation, "+".join(part.name for part in matrix.parts))
        return _launch(requests, "regime", operands, symbol, label, equation)

    def _flight(self, equation: Equation, matrix: Matrix, regime: Regime) -> Flight:
        """Return what a GPU's kernel for few rows has on its way; other kernels do not differ in it."""
        in_rows = self.options.layout(matrix.source).order == "rows"
        if (
            regime not in {"one", "few"}
            or not in_rows
            or attribute(equation, "activation") != "bf16"
        ):
            return "many"
        return flight_of(matrix.n, matrix.k)

    def _embedding(self, equation: Equation) -> PlannedLaunch:
        matrix: Matrix = attribute(equation, "matrix")
        (ids,) = equation.inputs
        symbol = leading_symbol(ids)
        assert symbol is not None
        operands = [
            Operand("matrix", matrix),
            Operand("slot", ids.name),
            *self._operands(equation.outputs, equation),
            Operand("symbol", symbol),
            Operand("i64", matrix.n),
            Operand("i64", matrix.k),
            Operand("f32", attribute(equation, "scale")),
            Operand("status", symbol),
        ]
        request = GatherRequest(layout=self.options.layout(matrix.source))
        label = _label(equation, matrix.parts[0].name)
        return _launch((request,), "only", operands, symbol, label, equation)

    def _attention(self, equation: Equation) -> list[PlannedLaunch]:
        attributes: Any = equation.attributes
        q, keys, values, positions, rows, tables, *extra = equation.inputs
        causal: bool = attributes["causal"]
        slots = [(positions, "positions"), (rows, "rows"), (tables, "block_tables")]
        if not causal:
            slots.append((extra.pop(0), "sequence_lengths"))
        for value, name in slots:
            if value.storage is not Storage.SLOT or value.name != name:
                refuse(equation, f"its {name} must be the slot {name!r}")
        key, value_layout = (
            self._state(keys, "key", equation),
            self._state(values, "value", equation),
        )
        _, heads, _ = q.shape
        assert isinstance(heads, int)
        window: int | None = attributes["window"]
        request = AttendRequest(
            num_heads=heads,
            key=key[1],
            value=value_layout[1],
            scale=attributes["scale"],
            window=window,
            softcap=attributes["softcap"],
            sinks=attributes["has_sinks"],
            alibi=attributes["has_alibi"],
            split=self.options.split,
            causal=causal,
            result_dtype=_dtype_name(equation.output),
        )
        joined = self.options.joined_tile(request)
        single, several = self.options.query_tiles
        mask = AttentionMask(window, causal, (single, joined or several), bool(joined))
        if mask not in self.masks:
            self.masks.append(mask)
        number = self.masks.index(mask)
        requests = tuple(replace(request, query_tile=tile) for tile in mask.query_tiles)
        given = [self._per_head(value, equation) for value in extra]
        lengths = () if causal else (Operand("slot", "sequence_lengths"),)
        sinks = given[: 1 if attributes["has_sinks"] else 0]
        row_bytes = 4 * self.options.max_splits * heads * (value_layout[1].head_dim + 2)
        partials = Operand("temp", self._temp("T", row_bytes))
        (result,) = self._operands(equation.outputs, equation)
        main = [
            *self._operands([q], equation),
            Operand("state", key[0]),
            Operand("state", value_layout[0]),
            Operand("slot", "positions"),
            Operand("slot", "rows"),
            Operand("slot", "block_tables"),
            Operand("work", number),
            Operand("work_count", number),
            Operand("i64", _int(tables.shape[1], equation)),
            *lengths,
            *given,
            partials,
            Operand("partial_stride", number),
            result,
        ]
        merge = [
            partials,
            Operand("partial_stride", number),
            Operand("slot", "positions"),
            *((Operand("slot", "rows"), *lengths) if lengths else ()),
            *sinks,
            result,
            Operand("symbol", "T"),
        ]
        label = _label(equation, "attend")
        return [
            _launch(requests, "query_tile", main, "T", label, equation),
            _launch(requests[:1], "only", merge, "T", f"{label}.merge", equation, role="merge"),
        ]

    def _per_head(self, value: Value, user: Equation) -> Operand:
        if value.storage is Storage.CONST and isinstance(value.dtype, DType):
            shape = static_shape(user, value)
            return Operand("vector", Vector(value.name, value.dtype.name, "f32", shape))
        maker = self.makers.get(value.id)
        while maker is not None and maker.op in {"convert", "reshape"}:
            value = maker.inputs[0]
            if value.storage is Storage.CONST:
                return self._per_head(value, user)
            maker = self.makers.get(value.id)
        if maker is None or maker.op != "literal":
            refuse(user, "its values per head must be a weight or known at trace time")
        literal = maker.attributes["value"]
        assert isinstance(literal, Literal)
        if literal.type.dtype is not f32:
            refuse(user, "its values per head must be f32")
        data = literal.array.tobytes()
        return Operand("constant", Constant("f32", tuple(literal.array.shape), data))

    def _pool(self, value: Value) -> Value:
        """Return the state that writes of this step, one or several, were made to."""
        while value.storage is not Storage.STATE:
            maker = self.makers.get(value.id)
            if maker is None or maker.op != "kv_write":
                break
            value = maker.inputs[0]
        return value

    def _state(self, value: Value, role: Any, user: Equation) -> tuple[str, KvLayout]:
        """Return the name and layout of a pool, following the writes of this step."""
        value = self._pool(value)
        if value.storage is not Storage.STATE:
            refuse(user, f"its {role}s must be a state or what 'kv_write' made of one")
        blocks, block_size, heads, dim = (_int(d, user) for d in value.shape)
        assert isinstance(value.dtype, DType)
        layout = KvLayout(
            role=role,
            num_kv_heads=heads,
            head_dim=dim,
            block_size=block_size,
            dtype=value.dtype.name,
            pairs=self.options.kv_pairs and value.dtype is bf16 and dim % 2 == block_size % 2 == 0,
        )
        known = self.states.setdefault(value.name, (layout, blocks))
        if known[0] != layout:
            refuse(user, f"state {value.name!r} is read both as keys and as values")
        return value.name, layout

    # --- clusters ---

    def _clusters(self) -> dict[int, list[PlannedLaunch]]:
        """Build row programs from the last cluster to the first: readers say what is stored."""
        found: dict[int, list[PlannedLaunch]] = defaultdict(list)
        pending = set(self.roots)
        done: set[tuple[int, str]] = set()
        while pending:
            # Rows of L read rows of T, never the other way.
            key = max(pending, key=lambda k: (k[0], k[1] == "L"))
            assert key not in done
            done.add(key)
            found[key[0]].insert(0, self._cluster(key))
            pending = set(self.roots) - done
        return found

    def _cluster(self, key: tuple[int, str]) -> PlannedLaunch:
        stage, symbol = key
        roots = sorted(self.roots[key].values(), key=lambda v: self.positions[v.id])
        cluster = _Cluster(self, stage, symbol)
        builder = RowBuilder(cluster, symbol)
        needs_status = False
        for root in roots:
            maker = self.makers[root.id]
            if maker.op == "kv_write":
                needs_status = True
                self._kv_output(builder, maker)
                continue
            kind: Any = "plain"
            value: Value = root
            outlier: Any = 0.0
            if maker.op == "quantise":
                kind, value = maker.attributes["kind"], maker.inputs[0]
                outlier = maker.attributes["outlier"]
            number = builder.visit(value, maker)
            operands = tuple(Operand("temp", t) for t in self.storage[root.id])
            dtype = value.dtype.name if kind == "plain" else "f32"
            output = RowOutput(value=0, kind=kind, dtype=dtype, outlier=outlier)
            builder.outputs.append((output, number, operands))
        program, operands = builder.finish()
        tail = [Operand("symbol", symbol)]
        if needs_status or any(spec.indexed_by is not None for spec in program.inputs):
            tail.append(Operand("status", symbol))
        anchor = self.anchors[stage - 1] if stage else None
        where = self.makers[roots[-1].id]
        label = _label(where, "rows")
        layer = anchor.scope.layer if anchor is not None else None
        return PlannedLaunch(
            requests=(program,),
            select="only",
            role="main",
            operands=(*operands, *tail),
            symbol=symbol,
            label=label,
            layer=layer,
        )

    def _kv_output(self, builder: RowBuilder, maker: Equation) -> None:
        state, values, slots = maker.inputs
        state = self._pool(state)
        role = "key" if state.name.endswith(".key") else "value"
        known = self.states.get(state.name)
        name, layout = self._state(state, known[0].role if known else role, maker)
        number = builder.visit(values, maker)
        output = RowOutput(
            value=0,
            kind="kv",
            dtype=layout.dtype,
            slot_input=builder.visit(slots, maker),
            layout=layout,
        )
        num_slots = self.states[name][1] * layout.block_size
        operands = (Operand("state", name), Operand("i64", num_slots))
        builder.outputs.append((output, number, operands))


class _Cluster:
    """One cluster as its row builder sees it."""

    def __init__(self, scheduler: _Scheduler, stage: int, symbol: str) -> None:
        self._scheduler = scheduler
        self._key = (stage, symbol)

    def maker(self, value: Value) -> Equation:
        return self._scheduler.makers[value.id]

    def is_inside(self, value: Value) -> bool:
        place = self._scheduler.places[value.id]
        if place.kind == "view":
            return True
        return place.kind == "row" and (place.stage, place.symbol) == self._key

    def stored(self, value: Value) -> Operand:
        temps = self._scheduler.stored(value, self._scheduler.makers.get(value.id))
        return Operand("temp", temps[0])


def _missing(equation: Equation) -> str:
    if equation.op == "dot_general":
        return "no kernel multiplies two computed tensors, or a weight that is not (N, K)"
    return f"no kernel has the operation {equation.op!r}"


def _int(dim: Any, equation: Equation) -> int:
    if not isinstance(dim, int):
        refuse(equation, f"{dim} must be known when planning; trace with max_blocks_per_row")
    return dim


def _label(equation: Equation, what: str) -> str:
    return ":".join(filter(None, ("/".join(equation.scope.path), what)))


def _dtype_name(value: Value) -> str:
    assert isinstance(value.dtype, DType)
    return value.dtype.name


def _launch(
    requests: Sequence[Any],
    select: Any,
    operands: Sequence[Operand],
    symbol: str,
    label: str,
    equation: Equation,
    role: str = "main",
) -> PlannedLaunch:
    return PlannedLaunch(
        requests=tuple(requests),
        select=select,
        role=role,
        operands=tuple(operands),
        symbol=symbol,
        label=label,
        layer=equation.scope.layer,
    )
