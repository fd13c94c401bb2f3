"""State of lowering one lane kernel: values, mask, sizes, arrays; splats and index arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from poot_core import DType, Target, UnsupportedError
from poot_kernel.ir import (
    ArrayType,
    KernelFunction,
    Op,
    Region,
    ScalarType,
    Size,
    Value,
    VectorType,
)
from poot_kernel.targets.host.lane_values import (
    Held,
    element_count,
    element_type,
    lane_count,
    vector_type,
)
from poot_kernel.targets.host.lane_writer import LaneWriter
from poot_kernel.targets.host.math_body import f32_literal, f64_literal

__all__ = ["LaneContext", "Lowering", "Memory"]

Lowering = Callable[["LaneContext", Op], None]


@dataclass(frozen=True, slots=True)
class Memory:
    """An array or block of scratch: its address, strides in elements, and alias metadata."""

    pointer: str
    dtype: DType
    strides: tuple[Held, ...]
    extents: tuple[Size | None, ...]
    alias: str


class LaneContext:
    """One kernel's lowering in progress; ``w`` writes instructions."""

    def __init__(self, kernel: KernelFunction, target: Target, table: dict[str, Lowering]) -> None:
        self.kernel = kernel
        self.target = target
        self.lanes = lane_count(target)
        self.w = LaneWriter()
        self.mask: str | None = None
        self.held: dict[Value, Held] = {}
        self.memories: dict[Value, Memory] = {}
        self.scalars: dict[str, Held] = {}
        self.coordinates: list[Held] = []
        self.scratch_offset = 0
        self._table = table
        self._scopes: list[str] = []
        flags = {"contract": "contract", "reassociate": "reassoc", "approximate": "afn arcp"}
        self.fast = "".join(flags[name] + " " for name in sorted(kernel.fastmath))

    # ---- values

    def run(self, region: Region) -> list[Held]:
        """Lower a region's operations; return what its terminator passes on."""
        for op in region.operations:
            if op.opcode in {"yield", "condition"}:
                return [self.held[value] for value in op.operands]
            lowering = self._table.get(op.opcode)
            if lowering is None:
                raise self.unsupported(op, "is not lowered at lane level on the host")
            lowering(self, op)
        return []

    def unsupported(self, op: Op, problem: str) -> UnsupportedError:
        """Return the error for an operation that this target does not take."""
        where = f" at {op.location}" if op.location else ""
        return UnsupportedError(
            f"kernel {self.kernel.name!r}: {op.opcode!r} {problem}{where}", op=op.opcode
        )

    def type_of(self, value: Value, *, varying: bool) -> str:
        """Return the LLVM type of a value."""
        assert isinstance(value.type, ScalarType | VectorType)
        count = element_count(value.type) * (self.lanes if varying else 1)
        return vector_type(element_type(value.type.dtype), count)

    def literal(self, value: float | int | bool, dtype: DType) -> Held:
        """Return a constant."""
        if dtype.name == "f32":
            return Held(f32_literal(float(value)), literal=value)
        if dtype.name == "f64":
            return Held(f64_literal(float(value)), literal=value)
        if dtype.name == "f16":
            bits = int(dtype.numpy.type(value).view("u2"))
            return Held(f"0xH{bits:04X}", literal=value)
        if dtype.name == "bf16":
            return Held(str(int(dtype.numpy.type(value).view("u2"))), literal=value)
        if dtype.name == "boolean":
            return Held("true" if value else "false", literal=value)
        return Held(str(int(value)), literal=value)

    def uniform(self, value: Value) -> str:
        """Return the name of a uniform value."""
        held = self.held[value]
        assert held.kind == "uniform", value
        return held.name

    def is_varying(self, *values: Value) -> bool:
        """Whether any of the values differs between lanes."""
        return any(self.held[value].kind != "uniform" for value in values)

    def register(self, value: Value, *, varying: bool) -> str:
        """Return a value's name as a scalar or as a vector over the lanes."""
        if varying:
            return self.spread(self.held[value], value)
        return self.uniform(value)

    def spread(self, held: Held, value: Value) -> str:
        """Return a held value as a vector over the lanes."""
        if held.kind == "varying":
            return held.name
        if held.kind == "affine":
            return self.index_vector(held, "i64")
        assert isinstance(value.type, ScalarType | VectorType)
        element, count = element_type(value.type.dtype), element_count(value.type)
        if count == 1:
            return self.splat(element, held, self.lanes)
        order = ", ".join(f"i32 {j}" for _ in range(self.lanes) for j in range(count))
        kind = f"<{count} x {element}>"
        total = self.lanes * count
        return self.w.emit(
            f"shufflevector {kind} {held.name}, {kind} poison, <{total} x i32> <{order}>"
        )

    def splat(self, element: str, held: Held, count: int) -> str:
        """Return ``count`` copies of a uniform scalar."""
        if count == 1:
            return held.name
        if held.literal is not None:
            return f"splat ({element} {held.name})"
        kind = f"<{count} x {element}>"
        first = self.w.emit(f"insertelement {kind} poison, {element} {held.name}, i64 0")
        return self.w.emit(
            f"shufflevector {kind} {first}, {kind} poison, <{count} x i32> zeroinitializer"
        )

    def index_vector(self, held: Held, element: str) -> str:
        """Return an affine index as a vector of i64 or i32."""
        base = held
        if element == "i32":
            base = (
                Held(str((int(held.literal) + 2**31) % 2**32 - 2**31), literal=held.literal)
                if held.literal is not None
                else Held(self.w.emit(f"trunc i64 {held.name} to i32"))
            )
        steps = ", ".join(f"{element} {held.stride * lane}" for lane in range(self.lanes))
        kind = f"<{self.lanes} x {element}>"
        if base.literal == 0:
            return f"<{steps}>"
        return self.w.emit(f"add {kind} {self.splat(element, base, self.lanes)}, <{steps}>")

    def set(self, value: Value, name: str, *, varying: bool) -> None:
        """Record where a result is."""
        self.held[value] = Held(name, "varying" if varying else "uniform")

    # ---- index arithmetic on uniform and affine i64 values

    def add_index(self, a: Held, b: Held) -> Held:
        """Return the sum of two uniform or affine indices."""
        if a.kind == "varying" or b.kind == "varying":
            kind = f"<{self.lanes} x i64>"
            x, y = self._index(a), self._index(b)
            return Held(self.w.emit(f"add {kind} {x}, {y}"), "varying")
        base = self._fold("add", a, b)
        stride = a.stride + b.stride
        kind = "affine" if "affine" in {a.kind, b.kind} else "uniform"
        return Held(base.name, kind, stride, base.literal)

    def multiply_index(self, a: Held, b: Held) -> Held:
        """Return the product of two indices."""
        if b.kind != "uniform":
            a, b = b, a
        if a.kind == "uniform":
            return self._fold("mul", a, b)
        if a.kind == "affine" and b.literal is not None:
            base = self._fold("mul", a, b)
            return Held(base.name, "affine", a.stride * int(b.literal), base.literal)
        kind = f"<{self.lanes} x i64>"
        return Held(self.w.emit(f"mul {kind} {self._index(a)}, {self._index(b)}"), "varying")

    def _index(self, held: Held) -> str:
        if held.kind == "uniform":
            return self.splat("i64", held, self.lanes)
        return held.name if held.kind == "varying" else self.index_vector(held, "i64")

    def _fold(self, instruction: str, a: Held, b: Held) -> Held:
        if a.literal is not None and b.literal is not None:
            x, y = int(a.literal), int(b.literal)
            number = x + y if instruction == "add" else x * y
            return Held(str(number), literal=number)
        for constant, other in ((a, b), (b, a)):
            if instruction == "add" and constant.literal == 0:
                return Held(other.name, literal=other.literal)
            if instruction == "mul" and constant.literal == 1:
                return Held(other.name, literal=other.literal)
            if instruction == "mul" and constant.literal == 0:
                return Held("0", literal=0)
        return Held(self.w.emit(f"{instruction} i64 {a.name}, {b.name}"))

    def size(self, size: Size) -> Held:
        """Return a size expression as an i64."""
        if (number := size.constant) is not None:
            return Held(str(number), literal=number)
        if size.kind == "parameter":
            return self.scalars[size.name]
        a, b = (self.size(argument) for argument in size.arguments)
        if size.kind in {"add", "mul"}:
            return self._fold(size.kind, a, b)
        if size.kind in {"min", "max"}:
            return Held(
                self.w.intrinsic(
                    f"llvm.s{size.kind}.i64", "i64", [("i64", a.name), ("i64", b.name)]
                )
            )
        if size.kind == "ceildiv":  # sizes are not negative
            b_less = self.w.emit(f"sub i64 {b.name}, 1")
            a = Held(self.w.emit(f"add i64 {a.name}, {b_less}"))
        instruction = {"sub": "sub", "mod": "urem"}.get(size.kind, "udiv")
        return Held(self.w.emit(f"{instruction} i64 {a.name}, {b.name}"))

    # ---- memory

    def add_memory(
        self,
        value: Value,
        pointer: str,
        dtype: DType,
        extents: tuple[Size | None, ...],
        strides: tuple[Size, ...] | None,
    ) -> None:
        """Declare an array or a block of scratch; each overlaps no other that is written."""
        if strides is not None:
            found = tuple(self.size(stride) for stride in strides)
        else:
            steps = [Held("1", literal=1)]
            for extent in reversed(extents[1:]):
                assert extent is not None
                steps.append(self.multiply_index(steps[-1], self.size(extent)))
            found = tuple(reversed(steps))
        self.memories[value] = Memory(pointer, dtype, found, extents, f"#{len(self._scopes)}#")
        self._scopes.append(value.name)

    def alias_metadata(self) -> list[str]:
        """Return, for each memory, the metadata of its accesses."""
        domain = self.w.metadata("distinct !{$}")
        scopes = [self.w.metadata(f"distinct !{{$, {domain}}}") for _ in self._scopes]
        result: list[str] = []
        for own in scopes:
            mine = self.w.metadata(f"!{{{own}}}")
            others = ", ".join(scope for scope in scopes if scope != own)
            text = f", !alias.scope {mine}"
            if others:
                text += f", !noalias {self.w.metadata(f'!{{{others}}}')}"
            result.append(text)
        return result

    def memory(self, value: Value) -> Memory:
        """Return the array or scratch that a value names."""
        return self.memories[value]

    def offset(self, memory: Memory, indices: list[Value]) -> Held:
        """Return the element offset of an access."""
        total = Held("0", literal=0)
        for value, stride in zip(indices, memory.strides, strict=True):
            total = self.add_index(total, self.multiply_index(self.held[value], stride))
        return total

    def extent(self, value: Value, axis: int) -> Held:
        """Return an extent of an array."""
        found = value.type
        size = (
            found.shape[axis]
            if isinstance(found, ArrayType)
            else self.memories[value].extents[axis]
        )
        assert size is not None
        return self.size(size)
