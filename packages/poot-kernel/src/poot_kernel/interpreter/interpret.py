"""Runs a kernel on NumPy arrays: arguments, launch, workgroups in a chosen order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np

from poot_core import DTypeError, ShapeError
from poot_kernel.interpreter._control import CONTROL_RULES
from poot_kernel.interpreter._elements import ELEMENT_RULES
from poot_kernel.interpreter._lanes import LANE_RULES
from poot_kernel.interpreter._machine import Array, Machine, Rule, Workgroup
from poot_kernel.interpreter._memory import Memory
from poot_kernel.interpreter._tiles import TILE_RULES
from poot_kernel.ir import ArrayType, KernelFunction, ScalarType, Value

__all__ = ["INTERPRETER_RULES", "WorkgroupOrder", "interpret"]

WorkgroupOrder = Literal["ascending", "descending", "random"]

INTERPRETER_RULES: dict[str, Rule] = {
    **ELEMENT_RULES,
    **LANE_RULES,
    **CONTROL_RULES,
    **TILE_RULES,
}
"""Opcode -> rule, for every opcode but those that end a region."""

_DEFAULT_WORKGROUP = 64


def interpret(
    kernel: KernelFunction,
    arguments: Mapping[str, Any] | Sequence[Any],
    *,
    workgroup_order: WorkgroupOrder = "ascending",
    subgroup_size: int = 32,
    workgroup_size: int | None = None,
    check: bool = True,
    seed: int = 0,
) -> None:
    """Run a kernel; arrays that it writes are changed in place.

    Args:
        kernel: A verified kernel.
        arguments: By parameter name, or in order. An array has the declared dtype and shape, or is
            one-dimensional with enough elements; written ones are C-contiguous.
        workgroup_order: Order of workgroups, and of the writes of a workgroup's subgroups.
        subgroup_size: Invocations of a subgroup.
        workgroup_size: Invocations of a workgroup if the kernel leaves it open (default 64).
        check: Check extents, races, uninitialised workgroup memory and promised alignments.
            Without it only accesses outside of a buffer are refused.
        seed: For the random order.

    Raises:
        KernelFault: If the kernel does what it must not (bounds, race, uninitialised read).
        ShapeError: If an array argument does not fit.
        DTypeError: If an array has another dtype.
    """
    given = _by_name(kernel, arguments)
    scalars = {
        parameter.name: int(given[parameter.name])
        for parameter in kernel.parameters
        if isinstance(parameter.type, ScalarType) and parameter.type.dtype.is_integer
    }
    memories = {
        parameter: _bind(parameter, given[parameter.name], scalars, check=check)
        for parameter in kernel.parameters
        if isinstance(parameter.type, ArrayType)
    }
    sizes = [size.evaluate(scalars) for size in kernel.grid]
    x, y, z = (*sizes, 1, 1)[:3]
    numbers = np.arange(max(x, 0) * max(y, 0) * max(z, 0))
    generator = np.random.default_rng(seed)
    if workgroup_order == "random":
        generator.shuffle(numbers)
    elif workgroup_order == "descending":
        numbers = numbers[::-1]
    lanes = None
    if kernel.level == "lane":
        lanes = kernel.workgroup_size or workgroup_size or _DEFAULT_WORKGROUP
    with np.errstate(all="ignore"):
        for number in (int(each) for each in numbers):
            place = Workgroup(
                ids=(number % x, number // x % y, number // (x * y)),
                grid=(x, y, z),
                number=number,
                num_lanes=lanes,
                subgroup_size=subgroup_size,
                order=_lane_order(lanes or 1, subgroup_size, workgroup_order, generator),
            )
            _run(kernel, place, given, memories, scalars, check=check)


def _run(
    kernel: KernelFunction,
    place: Workgroup,
    given: Mapping[str, Any],
    memories: Mapping[Value, Memory],
    scalars: Mapping[str, int],
    *,
    check: bool,
) -> None:
    machine = Machine(kernel, INTERPRETER_RULES, place, scalars, check=check)
    for parameter in kernel.parameters:
        if parameter in memories:
            machine.set(parameter, memories[parameter])
        else:
            assert isinstance(parameter.type, ScalarType)
            item = np.asarray(given[parameter.name]).astype(parameter.type.dtype.numpy)
            machine.set(parameter, np.broadcast_to(item, machine.mask.shape))
    machine.memories.extend(memories.values())
    machine.run_body(kernel.body)
    for memory in memories.values():
        if memory.tracker is not None:
            memory.tracker.next_workgroup()


def _lane_order(
    lanes: int, subgroup_size: int, order: WorkgroupOrder, generator: np.random.Generator
) -> Array:
    """Return invocations so that whole subgroups come in the given order."""
    groups = [np.arange(lanes)[start : start + subgroup_size]
              for start in range(0, lanes, subgroup_size)]  # fmt: skip
    if order == "random":
        generator.shuffle(cast("Any", groups))
    elif order == "descending":
        groups.reverse()
    return np.concatenate(groups)


def _by_name(
    kernel: KernelFunction, arguments: Mapping[str, Any] | Sequence[Any]
) -> dict[str, Any]:
    names = [parameter.name for parameter in kernel.parameters]
    if isinstance(arguments, Mapping):
        if set(arguments) != set(names):
            raise ShapeError(
                f"kernel {kernel.name!r} takes {names}, got {sorted(arguments)}: name each parameter"
            )
        return dict(arguments)
    if len(arguments) != len(names):
        raise ShapeError(
            f"kernel {kernel.name!r} takes {len(names)} arguments {names}, got {len(arguments)}"
        )
    return dict(zip(names, arguments, strict=True))


def _bind(parameter: Value, item: Any, scalars: Mapping[str, int], *, check: bool) -> Memory:
    """Return an array argument as memory."""
    found = parameter.type
    assert isinstance(found, ArrayType)
    if not isinstance(item, np.ndarray):
        raise ShapeError(f"{parameter.name!r} must be a NumPy array, got {type(item).__name__}")
    array = cast("Array", item)
    if array.dtype != found.dtype.numpy:
        raise DTypeError(f"{parameter.name!r} must be {found.dtype.name}, got {array.dtype}")
    if not array.flags.c_contiguous:
        if found.access != "r":
            raise ShapeError(f"{parameter.name!r} is written, so it must be C-contiguous")
        array = np.ascontiguousarray(array)
    flat = array.reshape(-1)
    shape = [None if size is None else size.evaluate(scalars) for size in found.shape]
    if found.strides is not None:
        strides = [size.evaluate(scalars) for size in found.strides]
    else:
        inner = [1 if extent is None else extent for extent in shape]
        strides = [int(np.prod(inner[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
    known = [extent for extent in shape if extent is not None]
    last = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)
               if extent is not None)  # fmt: skip
    fits = 0 in known or flat.size > last
    exact = array.ndim == 1 or found.strides is not None or _same_shape(array.shape, shape)
    if not (fits and exact):
        raise ShapeError(
            f"{parameter.name!r} must have shape {tuple(shape)} and strides {tuple(strides)}, got "
            f"shape {array.shape}"
        )
    constant = found.access == "r"
    return Memory(
        parameter.name, found.dtype, _closed(shape, strides, flat.size), strides, flat,
        check=check, is_constant=constant,
    )  # fmt: skip


def _same_shape(got: tuple[int, ...], shape: Sequence[int | None]) -> bool:
    return len(got) == len(shape) and all(
        extent is None or extent == have for extent, have in zip(shape, got, strict=True)
    )


def _closed(shape: Sequence[int | None], strides: Sequence[int], size: int) -> list[int]:
    """Return extents with an unknown one taken from the buffer's size."""
    pairs = zip(shape, strides, strict=True)
    return [-(-size // max(stride, 1)) if extent is None else extent for extent, stride in pairs]
