"""The structure of kernel IR: values, operations, regions, kernels and modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from poot_core import DType
from poot_kernel.ir.layouts import Layout
from poot_kernel.ir.sizes import Size
from poot_kernel.ir.types import Type

__all__ = ["Attribute", "KernelFunction", "Level", "Location", "Module", "Op", "Region", "Value"]

Level = Literal["lane", "tile"]
Attribute = bool | int | float | str | DType | Layout | Size | tuple["Attribute", ...]


@dataclass(frozen=True, slots=True)
class Location:
    """A place in kernel source; not part of structural equality."""

    path: str
    line: int
    column: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


@dataclass(eq=False, slots=True)
class Value:
    """One SSA value: a result of an operation or an argument of a region; compared by identity.

    Attributes:
        type: Its type.
        name: The parameter's name, or a hint for readers.
        definition: The operation it results from; None for a region's argument.
    """

    type: Type
    name: str = ""
    definition: Op | None = None

    def __repr__(self) -> str:
        return f"%{self.name or '_'}: {self.type}"


@dataclass(eq=False, slots=True)
class Region:
    """A straight list of operations with arguments; nested ones end in ``yield``/``condition``."""

    arguments: list[Value] = field(default_factory=list["Value"])
    operations: list[Op] = field(default_factory=list["Op"])

    @property
    def terminator(self) -> Op:
        """The last operation."""
        return self.operations[-1]

    def walk(self) -> Iterator[Op]:
        """Yield every operation, nested ones after the operation that holds them."""
        for op in self.operations:
            yield op
            for region in op.regions:
                yield from region.walk()


@dataclass(eq=False, slots=True)
class Op:
    """One operation; its facts stand in ``OPCODES[opcode]``."""

    opcode: str
    operands: list[Value]
    results: list[Value]
    attributes: dict[str, Attribute]
    regions: list[Region]
    location: Location | None = None

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    def __repr__(self) -> str:
        where = f" at {self.location}" if self.location else ""
        return f"<{self.opcode}{where}>"


@dataclass(eq=False, slots=True, kw_only=True)
class KernelFunction:
    """One kernel; compare with ``structurally_equal``.

    Attributes:
        name: Entry-point name.
        body: Its arguments are the parameters in declaration order; no terminator.
        level: ``lane`` (SPMD) or ``tile`` (workgroup-uniform).
        grid: Workgroups along x (fastest), y, z: sizes over scalar parameters.
        workgroup_size: Invocations of a workgroup; None lets the target choose (the host always
            runs one subgroup).
        fastmath: Subset of ``contract``, ``reassociate``, ``approximate``; empty keeps IEEE order.
        index_bits: 32 promises that every index fits a u32, for GPUs.
    """

    name: str
    body: Region
    level: Level
    grid: tuple[Size, ...]
    workgroup_size: int | None = None
    fastmath: frozenset[str] = frozenset()
    index_bits: int = 64

    @property
    def parameters(self) -> list[Value]:
        """The kernel's parameters."""
        return self.body.arguments


@dataclass(eq=False, slots=True)
class Module:
    """Kernels compiled together; helper functions have been inlined while building."""

    kernels: list[KernelFunction] = field(default_factory=list["KernelFunction"])

    def kernel(self, name: str) -> KernelFunction:
        """Return the kernel of that name.

        Raises:
            KeyError: If there is none.
        """
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise KeyError(name)
