"""Readable text of kernel IR; ``parse_kernel`` is its inverse."""

from __future__ import annotations

import json
import math

from poot_core import DType
from poot_kernel.ir.core import Attribute, KernelFunction, Module, Op, Region, Value
from poot_kernel.ir.layouts import Layout
from poot_kernel.ir.sizes import Size

__all__ = ["print_kernel", "print_module"]


def print_module(module: Module) -> str:
    """Return the text of all kernels."""
    return "\n".join(print_kernel(kernel) for kernel in module.kernels)


def print_kernel(kernel: KernelFunction, *, locations: bool = False) -> str:
    """Return a kernel's text; values are numbered in order, parameters keep their names."""
    printer = _Printer(locations)
    parameters = ", ".join(
        f"{printer.define(value, value.name)}: {value.type}" for value in kernel.parameters
    )
    grid = ", ".join(f'"{size}"' for size in kernel.grid)
    facts = [f"level({kernel.level})", f"grid({grid})"]
    if kernel.workgroup_size is not None:
        facts.append(f"workgroup({kernel.workgroup_size})")
    if kernel.fastmath:
        facts.append(f"fastmath({', '.join(sorted(kernel.fastmath))})")
    facts.append(f"index({kernel.index_bits})")
    printer.lines.append(f"kernel @{kernel.name}({parameters}) {' '.join(facts)} {{")
    printer.operations(kernel.body, 1)
    printer.lines.append("}")
    return "\n".join(printer.lines) + "\n"


class _Printer:
    def __init__(self, locations: bool) -> None:
        self.lines: list[str] = []
        self._locations = locations
        self._names: dict[Value, str] = {}
        self._count = 0

    def define(self, value: Value, name: str | None = None) -> str:
        if name is None:
            name, self._count = str(self._count), self._count + 1
        self._names[value] = f"%{name}"
        return self._names[value]

    def use(self, value: Value) -> str:
        # A value that is not defined still prints, so that a broken kernel can be shown.
        return self._names.get(value, "%undefined")

    def operations(self, region: Region, depth: int) -> None:
        for op in region.operations:
            self._operation(op, depth)

    def _operation(self, op: Op, depth: int) -> None:
        indent = "  " * depth
        text = " ".join([op.opcode, ", ".join(map(self.use, op.operands))]).rstrip()
        if op.attributes:
            pairs = ", ".join(f"{k} = {_attribute(v)}" for k, v in op.attributes.items())
            text += f" {{{pairs}}}"
        start = len(self.lines)
        self.lines.append("")
        for number, region in enumerate(op.regions):
            arguments = ", ".join(f"{self.define(v)}: {v.type}" for v in region.arguments)
            self.lines.append(f"{indent}{'[' if number == 0 else '] ['} ({arguments})")
            self.operations(region, depth + 1)
        if op.regions:
            self.lines.append(f"{indent}]")
        if op.results:
            names = ", ".join(map(self.define, op.results))
            types = ", ".join(str(v.type) for v in op.results)
            text = f"{names} = {text} : {types}"
        if self._locations and op.location:
            at = op.location
            text += f" @({json.dumps(at.path)}, {at.line}, {at.column})"
        self.lines[start] = indent + text


def _attribute(value: Attribute) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _float(value)
        case str():
            return json.dumps(value)
        case DType():
            return value.name
        case Layout():
            return f'layout "{value}"'
        case Size():
            return f'size "{value}"'
        case tuple():
            return f"({', '.join(map(_attribute, value))})"


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)
