"""The launch of a kernel: its grid and scratch from the sizes that its own signature names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poot_core import VerifyError
from poot_executor._device import (
    Argument,
    BufferArgument,
    GridDim,
    KernelHandle,
    Launch,
    ScalarArgument,
    SymbolArgument,
)
from poot_executor._kernel_table import KernelRecord
from poot_kernel import Size

__all__ = ["grid_dims", "kernel_launch"]


def kernel_launch(
    handle: KernelHandle, record: KernelRecord, arguments: Sequence[Argument], label: str
) -> Launch:
    """Return the launch of a kernel with the given arguments.

    Raises:
        VerifyError: If the arguments are not those of the kernel's signature.
    """
    if len(arguments) != len(record.parameters):
        raise VerifyError(
            f"kernel {record.entry!r} of {label!r} takes {len(record.parameters)} arguments "
            f"({', '.join(record.parameters)}), the plan passes {len(arguments)}"
        )
    scalars: dict[str, int | str] = {}
    for name, argument in zip(record.parameters, arguments, strict=True):
        if isinstance(argument, SymbolArgument):
            scalars[name] = argument.symbol
        elif isinstance(argument, ScalarArgument) and isinstance(argument.value, int):
            scalars[name] = argument.value
        else:
            assert isinstance(argument, BufferArgument | ScalarArgument)
    axes = [grid_dims(Size.parse(text), scalars) for text in record.grid]
    known = {name: value for name, value in scalars.items() if isinstance(value, int)}
    return Launch(
        kernel=handle,
        arguments=tuple(arguments),
        grid=_axes(axes) if record.workgroup > 1 else _merged([d for axis in axes for d in axis]),
        grain=record.grain,
        scratch_bytes=Size.parse(record.scratch).evaluate(known),
        workgroup=(record.workgroup, 1, 1),
        label=label,
    )


def _axes(axes: Sequence[Sequence[GridDim]]) -> tuple[GridDim, ...]:
    """Return the axes that a GPU kernel knows by number, one dimension each."""
    merged = [_merged(axis) for axis in axes]
    if any(len(dims) != 1 for dims in merged):
        raise VerifyError(f"a GPU's grid has one dimension an axis, not {axes}")
    return tuple(dims[0] for dims in merged)


def grid_dims(size: Size, scalars: Mapping[str, int | str]) -> list[GridDim]:
    """Return axes whose product is the size, given numbers and symbols of scalar parameters.

    >>> from poot_kernel import ceildiv, as_size
    >>> grid_dims(ceildiv("M", 4) * "N", {"M": "T", "N": 6})
    [GridDim(coefficient=1, symbol='T', divisor=4), GridDim(coefficient=6, symbol=None, divisor=1)]

    Raises:
        VerifyError: If it is neither product nor rounded-up quotient of these.
    """
    numbers = {name: value for name, value in scalars.items() if isinstance(value, int)}
    if size.parameters() <= numbers.keys():
        return [GridDim(coefficient=size.evaluate(numbers))]
    if size.kind == "parameter":
        return [GridDim(symbol=str(scalars[size.name]))]
    if size.kind == "mul":
        return [dim for factor in size.arguments for dim in grid_dims(factor, scalars)]
    if size.kind == "ceildiv" and size.arguments[1].parameters() <= numbers.keys():
        divisor = size.arguments[1].evaluate(numbers)
        inner = _merged(grid_dims(size.arguments[0], scalars))
        if len(inner) == 1 and inner[0].divisor == 1:
            found = inner[0]
            return [GridDim(coefficient=found.coefficient, symbol=found.symbol, divisor=divisor)]
    raise VerifyError(f"a launch has no axis of {size} workgroups for {dict(scalars)}")


def _merged(dims: Sequence[GridDim]) -> tuple[GridDim, ...]:
    """Return the axes with constant ones folded into one, or into an axis without divisor."""
    constant = 1
    symbolic: list[GridDim] = []
    for dim in dims:
        if dim.symbol is None:
            constant *= dim.count({})
        else:
            symbolic.append(dim)
    if not symbolic:
        return (GridDim(coefficient=constant),)
    if constant == 1:
        return tuple(symbolic)
    first = symbolic[0]
    if first.divisor == 1:
        merged = GridDim(coefficient=first.coefficient * constant, symbol=first.symbol)
        return (merged, *symbolic[1:])
    return (*symbolic, GridDim(coefficient=constant))
