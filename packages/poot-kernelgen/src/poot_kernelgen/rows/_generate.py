"""A row program as one lane kernel: one row is one workgroup."""

from __future__ import annotations

from collections.abc import Callable

from poot_core import DType, Target, UnsupportedError, bf16, dtype_by_name, f32, i8, i32, i64, u8
from poot_kernel import ArrayType, IRBuilder, KernelFunction, Value
from poot_kernelgen._lanes import lane_count
from poot_kernelgen.requests import EIGHT_BIT, KvLayout, RowOutput, RowProgram
from poot_kernelgen.rows._elements import Elements, Place, Scope
from poot_kernelgen.rows._loops import (
    Nest,
    element_count,
    pick_vector,
    run_flat,
    run_nest,
    solve_nests,
)
from poot_kernelgen.rows._plan import RowPlan
from poot_kernelgen.rows._position import (
    Cut,
    Factor,
    Position,
    Variable,
    flatten,
    unflatten,
)
from poot_kernelgen.rows._quantise import QUAD, QuantiseBlocks, block_lanes
from poot_kernelgen.rows._reduce import RowReducer

__all__ = ["row_kernel"]

_BLOCK = 32


def row_kernel(
    program: RowProgram, target: Target, name: str = "row", threads: int | None = None,
    *, subgroup_size: int = 32,
) -> KernelFunction:  # fmt: skip
    """Return the kernel of a row program.

    Args:
        program: What to compute.
        target: The host; its lanes decide how many elements a lane holds.
        name: Entry-point name.
        threads: Invocations that share a row on a GPU; None on the host.
        subgroup_size: Lanes of a GPU's subgroup.

    Raises:
        UnsupportedError: If an operation is unknown or an output's kind does not fit.
    """
    return _RowKernel(program, target, name, threads, subgroup_size).build()


class _RowKernel:
    def __init__(
        self,
        program: RowProgram,
        target: Target,
        name: str,
        threads: int | None,
        subgroup_size: int,
    ) -> None:
        self.plan = RowPlan(program)
        self.plan.check()
        self.program = program
        self.is_shared = threads is not None
        self.lanes = threads or lane_count(target)
        self.block_lanes = block_lanes(subgroup_size)
        self.b = IRBuilder(name, level="lane", grid=["rows"], workgroup_size=threads)
        self.elements = Elements(self.plan, self.b)
        self.outputs: list[list[Value]] = []
        self.status: Value | None = None

    # ---- arguments

    def build(self) -> KernelFunction:
        b, program = self.b, self.program
        arrays: list[tuple[Value, Value | None]] = []
        for index, spec in enumerate(program.inputs):
            arrays.append(self._input(index, spec.indexed_by is not None))
        for index, output in enumerate(program.outputs):
            self.outputs.append(self._output(index, output))
        b.scalar("rows")
        kinds = {output.kind for output in program.outputs}
        if "kv" in kinds or any(spec.indexed_by is not None for spec in program.inputs):
            self.status = b.array("status", i32, ["rows"], access="rw")
        self.row = b.workgroup_id()
        self._place_inputs(arrays)
        for value in sorted(self.plan.stored):
            self._store_value(value)
        for index, output in enumerate(program.outputs):
            self._write_output(index, output)
        return b.finish()

    def _input(self, index: int, is_indexed: bool) -> tuple[Value, Value | None]:
        spec, size = self.program.inputs[index], self.plan.size(index)
        dtype = dtype_by_name(spec.dtype)
        name = f"input{index}"
        if is_indexed:
            array = self.b.array(name, dtype, [f"{name}_rows", size])
            return array, self.b.scalar(f"{name}_rows")
        return self.b.array(name, dtype, ["rows", size] if spec.per_row else [size]), None

    def _output(self, index: int, output: RowOutput) -> list[Value]:
        size, name, b = self.plan.size(output.value), f"output{index}", self.b
        if output.kind in EIGHT_BIT:
            code = u8 if output.kind == "u8r" else i8
            blocks = size // _BLOCK
            arrays = [
                b.array(name, code, ["rows", size], access="w"),
                b.array(f"{name}_scales", f32, ["rows", blocks], access="w"),
                b.array(f"{name}_sums", f32, ["rows", blocks], access="w"),
            ]
            if output.kind != "i8":
                arrays += [
                    b.array(f"{name}_rest", code, ["rows", size], access="w"),
                    b.array(f"{name}_rest_scales", f32, ["rows", blocks], access="w"),
                ]
            return arrays
        if output.kind == "kv":
            assert output.layout is not None
            dtype = dtype_by_name(output.layout.dtype)
            return [b.array(name, dtype, [None], access="w"), b.scalar(f"{name}_slots")]
        dtype = bf16 if output.kind == "bf16" else dtype_by_name(output.dtype)
        return [b.array(name, dtype, ["rows", size], access="w")]

    def _place_inputs(self, arrays: list[tuple[Value, Value | None]]) -> None:
        b = self.b
        # An index may be declared after the table that it picks from.
        by_index = sorted(enumerate(arrays), key=lambda item: item[1][1] is not None)
        for index, (array, count) in by_index:
            spec = self.program.inputs[index]
            if spec.indexed_by is not None:
                assert count is not None
                assert self.status is not None
                wanted = self._row_scalar(spec.indexed_by)
                leading = (b.clamp_index(self.status, wanted, count, self.row, bit=0),)
            else:
                leading = (self.row,) if spec.per_row else ()
            self.elements.places[index] = Place(array, leading)

    def _row_scalar(self, index: int) -> Value:
        place = self.elements.places.get(index)
        if place is None:
            raise UnsupportedError(f"input {index} is picked by an index and an index itself")
        return self.b.convert(self.b.load(place.memory, [*place.leading, 0]), i64)

    # ---- values kept in scratch

    def _store_value(self, value: int) -> None:
        if self.plan.is_reduction(value):
            RowReducer(
                self.plan,
                self.b,
                self.elements,
                self.lanes,
                self._to_scratch,
                self._prepare_scalars,
                is_shared=self.is_shared,
            ).run(value)
        else:
            self._to_scratch(value)

    def _to_scratch(self, value: int) -> None:
        dtype = dtype_by_name(self.plan.dtype(value))
        memory = self.b.shared_alloc(dtype, [self.plan.size(value)])
        self._each(value, lambda scope, where, found: self.b.store(
            memory, [self.elements.index(where, scope)], found))  # fmt: skip
        if self.is_shared:
            self.b.barrier()
        self.elements.places[value] = Place(memory)

    def _each(self, value: int, store: Callable[[Scope, Position, Value], None]) -> None:
        """Compute every element of a value and hand it to ``store`` with its position."""
        elements = self.elements
        self._prepare_scalars(value)
        waiting = solve_nests(self.plan.size(value), lambda p: elements.leaves(value, p))[::-1]
        while waiting:
            nest = waiting.pop()
            if self.is_shared:
                self._flat(nest, value, store)
                continue
            vector = pick_vector(nest, self.lanes)
            if waiting and self._are_pairs(nest, waiting[-1], vector):
                self._pairs(nest, waiting.pop(), value, vector, store)
                continue
            leaves = elements.leaves(value, nest.position)
            contiguous = vector is not None and nest.position.coefficient(vector) == 1
            count = element_count(
                vector if contiguous else None, leaves, self.plan, self.lanes, most=4
            )
            self._nest(nest, value, vector, count, store)

    def _flat(
        self, nest: Nest, value: int, store: Callable[[Scope, Position, Value], None],
        to: Position | None = None,
    ) -> None:  # fmt: skip
        """Deal a nest to the invocations, by quads where those are neighbours at ``to`` as well."""
        elements, vector = self.elements, nest.variables[-1] if nest.variables else None
        places = (nest.position, nest.position if to is None else to)
        is_wide = (
            vector is not None
            and all(place.coefficient(vector) == 1 for place in places)
            and self._is_straight(value, nest.position, vector)
        )

        def body(scope: Scope) -> None:
            found = elements.emit(value, nest.position, scope)
            store(scope, nest.position, elements.spread(found, QUAD) if is_wide else found)

        if nest.variables:
            run_flat(self.b, nest, body, count=QUAD if is_wide else 1)
        else:
            body(Scope({}))

    @staticmethod
    def _are_pairs(nest: Nest, other: Nest, vector: Variable | None) -> bool:
        """Whether two nests store the even and the odd elements of the same pairs."""
        return (
            vector is not None
            and nest.variables == other.variables
            and nest.position.coefficient(vector) == 2
            and nest.position.shifted(1) == other.position
        )

    def _pairs(
        self, even: Nest, odd: Nest, value: int, vector: Variable | None,
        store: Callable[[Scope, Position, Value], None],
    ) -> None:  # fmt: skip
        def body(scope: Scope) -> None:
            both = [self.elements.emit(value, nest.position, scope) for nest in (even, odd)]
            store(scope, even.position, self.b.vector_build(*both))

        run_nest(self.b, even, vector, 1, body)

    def _nest(
        self, nest: Nest, value: int, vector: Variable | None, count: int,
        store: Callable[[Scope, Position, Value], None],
    ) -> None:  # fmt: skip
        elements = self.elements

        def body(scope: Scope) -> None:
            found = elements.emit(value, nest.position, scope)
            if vector is not None:
                found = elements.spread(found, count)
            store(scope, nest.position, found)

        run_nest(self.b, nest, vector, count, body)

    def _prepare_scalars(self, value: int) -> None:
        """Compute values of one element once, before the loops that use them."""
        waiting, seen = [value], set[int]()
        while waiting:
            number = waiting.pop()
            node = self.plan.node(number)
            known = number in self.elements.scalars or number in self.elements.places
            if number in seen or node is None or known:
                continue
            seen.add(number)
            if self.plan.size(number) == 1 and node.op != "literal" and number != value:
                self.elements.scalars[number] = self.elements.emit(number, Position(), Scope({}))
            else:
                waiting += node.operands

    # ---- outputs

    def _write_output(self, index: int, output: RowOutput) -> None:
        arrays = self.outputs[index]
        if output.kind in EIGHT_BIT:
            self._quantise(output.value, arrays, output.outlier)
        elif output.kind == "kv":
            self._write_kv(output, arrays)
        else:
            dtype = bf16 if output.kind == "bf16" else dtype_by_name(output.dtype)
            size = self.plan.size(output.value)
            self._each(output.value, lambda scope, where, found: self.b.store(
                arrays[0], [self.row, self.elements.index(where, scope)],
                self.b.convert(found, dtype),
                alignment=self.elements.alignment(where, scope, size, dtype)))  # fmt: skip

    def _quantise(self, value: int, arrays: list[Value], outlier: float) -> None:
        """Blocks of 32: each is one vector or a few, so that codes and scale need one read.

        With residuals (five arrays) the row is read once more before, for its root mean square.
        """
        if self.is_shared:
            if _is_lifted(arrays[0]):
                raise UnsupportedError("GPU row programs store codes as i8, not lifted to u8")
            self._quantise_shared(value, arrays, outlier)
            return
        b, elements = self.b, self.elements
        count = _BLOCK // self.lanes
        blocks = self.plan.size(value) // _BLOCK
        has_rest = len(arrays) > 3
        if not self._reads_straight(value) or (has_rest and value not in elements.places):
            self._to_scratch(value)
        self._prepare_scalars(value)
        lane = b.query("subgroup_lane")
        block_variable, lane_variable = Variable(blocks), Variable(_BLOCK)
        position = Position.of(block_variable, _BLOCK) + Position.of(lane_variable)

        def read(block: Value) -> tuple[Value, Value]:
            scope = Scope({block_variable: block, lane_variable: lane}, lane_variable, count)
            x = elements.spread(elements.emit(value, position, scope), count)
            return x, elements.index(position, scope)

        limit = self._outlier_limit(read, blocks, count, outlier) if has_rest else None
        with b.for_(0, blocks, unroll=min(2, blocks)) as loop:
            x, index = read(loop.index)
            largest = self._largest(x)
            scaled, scale, inverse = self._round(x, largest, count)
            codes, scales, sums, *rest = arrays
            b.store(codes, [self.row, index], self._as_codes(scaled, codes))
            b.store(scales, [self.row, loop.index], scale)
            total = b.mul(scale, self._total(scaled))
            if limit is not None:
                # In units of the rest's scale, a 256th of the block's: at most 128 of them.
                lost = b.sub(x, b.mul(b.splat(scale, count), scaled))
                lost = b.mul(lost, b.splat(b.mul(inverse, 256.0), count))
                is_outlier = b.compare("gt", b.mul(largest, largest), limit)
                kept = self._keep_rest(lost, is_outlier, rest, (loop.index, index), scale)
                total = b.add(total, kept)
            b.store(sums, [self.row, loop.index], total)

    def _quantise_shared(self, value: int, arrays: list[Value], outlier: float) -> None:
        """Give every block of 32 to neighbouring lanes."""
        whole = Variable(self.plan.size(value))
        if not self._is_straight(value, Position.of(whole), whole):
            self._to_scratch(value)
        self._prepare_scalars(value)
        QuantiseBlocks(
            self.b, self.elements, value, self.plan.size(value), threads=self.lanes,
            lanes=self.block_lanes,
        ).run(self.row, arrays, outlier)  # fmt: skip

    def _is_straight(self, value: int, position: Position, vector: Variable) -> bool:
        """Whether neighbours along a variable are computed from neighbours, and nothing is counted."""
        try:
            leaves = self.elements.leaves(value, position)
        except (Cut, Factor):
            return False
        return element_count(vector, leaves, self.plan, 1, most=QUAD) == QUAD

    def _outlier_limit(
        self, read: Callable[[Value], tuple[Value, Value]], blocks: int, count: int, outlier: float
    ) -> Value:
        """Return the square beyond which a block's largest element is an outlier."""
        b = self.b
        zero = b.splat(b.constant(0.0), count)
        with b.for_(0, blocks, carried=[zero]) as loop:
            x, _ = read(loop.index)
            loop.yield_(b.fma(x, x, loop.carried[0]))
        square = b.vector_reduce(b.workgroup_reduce(loop.result, "add"), "add")
        return b.mul(square, outlier**2 / (blocks * _BLOCK))

    def _keep_rest(
        self,
        lost: Value,
        is_outlier: Value,
        arrays: list[Value],
        place: tuple[Value, Value],
        scale: Value,
    ) -> Value:
        """Store what rounding lost of a block with outliers, or zeros; return its scaled sum."""
        b, (block, index) = self.b, place
        codes, scales = arrays
        count = _BLOCK // self.lanes
        with b.if_(is_outlier) as branch:
            with branch.then():
                low, high = (b.splat(b.constant(edge), count) for edge in (-127.0, 127.0))
                scaled = b.minimum(b.maximum(b.unary("rint", lost), low), high)
                scale = b.mul(scale, 1 / 256)
                b.store(codes, [self.row, index], self._as_codes(scaled, codes))
                b.store(scales, [self.row, block], scale)
                branch.yield_(b.mul(scale, self._total(scaled)))
            with branch.otherwise():
                zero = b.constant(0.0)
                b.store(codes, [self.row, index], self._as_codes(b.splat(zero, count), codes))
                b.store(scales, [self.row, block], zero)
                branch.yield_(zero)
        return branch.result

    def _as_codes(self, rounded: Value, array: Value) -> Value:
        """Return rounded values as the array of codes has them."""
        b = self.b
        codes = b.convert(rounded, i8)
        return b.xor(b.bitcast(codes, u8), 128) if _is_lifted(array) else codes

    def _largest(self, x: Value) -> Value:
        b = self.b
        return b.vector_reduce(b.workgroup_reduce(b.unary("abs", x), "max"), "max")

    def _total(self, x: Value) -> Value:
        b = self.b
        return b.vector_reduce(b.workgroup_reduce(x, "add"), "add")

    def _round(self, x: Value, largest: Value, count: int) -> tuple[Value, Value, Value]:
        """Return a block's codes, still f32, its scale, and the scale's inverse."""
        b = self.b
        is_zero = b.compare("eq", largest, 0.0)
        divisor = b.select(is_zero, b.constant(1.0), largest)
        inverse = b.select(is_zero, b.constant(0.0), b.div(127.0, divisor))
        codes = b.unary("rint", b.mul(x, b.splat(inverse, count)))
        return codes, b.mul(largest, 1 / 127), inverse

    def _reads_straight(self, value: int) -> bool:
        """Whether a block of 32 can be computed where it is quantised."""
        blocks = Variable(self.plan.size(value) // _BLOCK)
        lane = Variable(_BLOCK)
        position = Position.of(blocks, _BLOCK) + Position.of(lane)
        try:
            leaves = self.elements.leaves(value, position)
        except (Cut, Factor):
            return False
        return all(
            p.coefficient(lane) <= 1
            and not (
                (node := self.plan.node(v)) is not None
                and node.op == "iota"
                and p.coefficient(lane)
            )
            for v, p in leaves
        )

    def _write_kv(self, output: RowOutput, arrays: list[Value]) -> None:
        b = self.b
        pool, num_slots = arrays
        layout = output.layout
        assert layout is not None
        assert output.slot_input is not None
        assert self.status is not None
        slot = self._row_scalar(output.slot_input)
        beyond = b.compare("ge", slot, num_slots)
        with b.if_(beyond) as fault, fault.then():
            b.status_set(self.status, self.row, bit=0)
        if (layout.role == "key" and not self.is_shared) or layout.pairs:
            self._to_pool_dtype(output.value, layout)
        fits = b.and_(b.compare("ge", slot, 0), b.compare("lt", slot, num_slots))
        with b.if_(fits) as branch, branch.then():
            self._store_kv(output.value, layout, pool, slot)

    def _to_pool_dtype(self, value: int, layout: KvLayout) -> None:
        """Round a row into scratch, from where single elements are spread over the pool."""
        dtype = dtype_by_name(layout.dtype)
        self._keys = self.b.shared_alloc(dtype, [self.plan.size(value)])
        self._each(value, lambda scope, where, found: self.b.store(
            self._keys, [self.elements.index(where, scope)], self.b.convert(found, dtype)))  # fmt: skip

    def _store_kv(self, value: int, layout: KvLayout, pool: Value, slot: Value) -> None:
        b, dtype = self.b, dtype_by_name(layout.dtype)
        heads, dim, tokens = layout.num_kv_heads, layout.head_dim, layout.block_size
        block, offset = b.floordiv(slot, tokens), b.mod(slot, tokens)
        start = b.mul(block, heads * dim * tokens)
        if layout.pairs:
            self._store_pairs(layout, pool, start, offset)
            return
        if layout.role == "key" and self.is_shared:
            base = b.add(start, offset)

            def spread(scope: Scope, where: Position, found: Value) -> None:
                first = b.add(base, b.mul(self.elements.index(where, scope), tokens))
                found = b.convert(found, dtype)
                for number in range(scope.count):
                    element = b.extract(found, number) if scope.count > 1 else found
                    b.store(pool, b.add(first, number * tokens) if number else first, element)

            self._each(value, spread)
            return
        if layout.role == "key":  # [block][head][dim][token]
            base = b.add(start, offset)
            with b.for_(0, heads * dim, unroll=4) as loop:
                element = b.load(self._keys, loop.index)
                b.store(pool, b.add(base, b.mul(loop.index, tokens)), element)
            return
        base = b.add(start, b.mul(offset, dim))  # [block][head][token][dim]

        def check(position: Position) -> None:
            self.elements.leaves(value, position)
            self._value_offset(position, heads, dim, tokens)

        for nest in solve_nests(heads * dim, check):
            where = self._value_offset(nest.position, heads, dim, tokens)
            if self.is_shared:
                self._flat(nest, value, self._storing(pool, base, where, dtype, dim), where)
                continue
            leaves = self.elements.leaves(value, nest.position)
            vector = pick_vector(nest, self.lanes)
            contiguous = vector is not None and where.coefficient(vector) == 1
            count = element_count(vector if contiguous else None, leaves, self.plan, self.lanes, 4)
            self._nest(nest, value, vector, count, lambda scope, _where, found, to=where: b.store(
                pool, b.add(base, self.elements.index(to, scope)), b.convert(found, dtype)))  # fmt: skip

    def _storing(
        self, pool: Value, base: Value, to: Position, dtype: DType, dim: int
    ) -> Callable[[Scope, Position, Value], None]:
        """Return what stores a value's element in its place of the pool: ``base`` counts ``dim``s."""
        b = self.b

        def store(scope: Scope, _: Position, found: Value) -> None:
            b.store(
                pool, b.add(base, self.elements.index(to, scope)), b.convert(found, dtype),
                alignment=self.elements.alignment(to, scope, dim, dtype),
            )  # fmt: skip

        return store

    def _store_pairs(self, layout: KvLayout, pool: Value, start: Value, offset: Value) -> None:
        """Spread a row in scratch over the pairs of a block."""
        b, heads, dim, tokens = self.b, layout.num_kv_heads, layout.head_dim, layout.block_size
        if layout.role == "key":  # [head][dim / 2][token][2]
            base = b.add(start, b.mul(offset, 2))
            with b.for_(0, heads * dim, 2, unroll=4) as loop:
                at = b.add(base, b.mul(loop.index, tokens))
                for half in range(2):
                    element = b.load(self._keys, b.add(loop.index, half))
                    b.store(pool, b.add(at, half), element)
            return
        # [head][token / 2][dim][2]
        base = b.add(b.mul(b.floordiv(offset, 2), 2 * dim), b.mod(offset, 2))
        for head in range(heads):
            first = b.add(b.add(start, head * dim * tokens), base)
            with b.for_(0, dim, unroll=4) as loop:
                element = b.load(self._keys, b.add(loop.index, head * dim))
                b.store(pool, b.add(first, b.mul(loop.index, 2)), element)

    @staticmethod
    def _value_offset(position: Position, heads: int, dim: int, tokens: int) -> Position:
        head, element = unflatten(position, (heads, dim))
        return flatten([head, element], (heads, dim * tokens))


def _is_lifted(codes: Value) -> bool:
    """Whether an array holds codes as u8, 128 more than they are."""
    assert isinstance(codes.type, ArrayType)
    return codes.type.dtype is u8
