"""The verifier: types, dominance, level and uniformity of a finished kernel."""

from __future__ import annotations

from poot_core import VerifyError
from poot_kernel.ir.core import KernelFunction, Op, Region, Value
from poot_kernel.ir.opcodes import OPCODES, complete_attributes, infer_results
from poot_kernel.ir.specs import RuleError, Uniformity
from poot_kernel.ir.types import ArrayType, ScalarType, TokenType
from poot_kernel.ir.uniformity import UniformityMap, analyse_uniformity

__all__ = ["verify_kernel"]


def verify_kernel(kernel: KernelFunction) -> UniformityMap:
    """Check a kernel and return the uniformity of its values.

    Raises:
        VerifyError: If the kernel breaks a rule; names the operation and its place.
    """
    _check_parameters(kernel)
    _check_region(kernel, kernel.body, set(), in_map=False)
    if kernel.body.operations and OPCODES[kernel.body.terminator.opcode].is_terminator:
        raise _error(kernel, kernel.body.terminator, "stands outside of a region")
    uniformity = analyse_uniformity(kernel)
    for op in kernel.body.walk():
        _check_uniformity(kernel, op, uniformity)
    return uniformity


def _error(kernel: KernelFunction, op: Op | None, problem: str) -> VerifyError:
    where = f" at {op.location}" if op is not None and op.location else ""
    what = f"{op.opcode!r} " if op is not None else ""
    return VerifyError(
        f"kernel {kernel.name!r}: {what}{problem}{where}",
        kernel=kernel.name,
        opcode=op.opcode if op is not None else None,
        location=str(op.location) if op is not None and op.location else None,
    )


def _check_parameters(kernel: KernelFunction) -> None:
    names = [parameter.name for parameter in kernel.parameters]
    if len(set(names)) != len(names) or not all(name.isidentifier() for name in names):
        raise _error(kernel, None, f"parameter names must be distinct identifiers: {names}")
    scalars: set[str] = set()
    used = frozenset[str]().union(*(size.parameters() for size in kernel.grid))
    for parameter in kernel.parameters:
        match parameter.type:
            case ScalarType(dtype=dtype):
                if dtype.is_integer:
                    scalars.add(parameter.name)
            case ArrayType(shape=shape, strides=strides):
                if any(size is None for size in shape[1:]):
                    raise _error(kernel, None, f"only the first extent of {parameter!r} may be ?")
                if strides is not None and len(strides) != len(shape):
                    raise _error(kernel, None, f"{parameter!r} needs a stride for each axis")
                sizes = (*(s for s in shape if s is not None), *(strides or ()))
                used |= frozenset[str]().union(*(size.parameters() for size in sizes))
            case _:
                raise _error(kernel, None, f"parameter {parameter!r} must be an array or a scalar")
    if missing := sorted(used - scalars):
        raise _error(kernel, None, f"sizes use {missing}, which are no integer parameters")
    if not 1 <= len(kernel.grid) <= 3:
        raise _error(kernel, None, f"grid must have 1 to 3 axes, has {len(kernel.grid)}")


def _check_region(
    kernel: KernelFunction, region: Region, outer: set[Value], *, in_map: bool
) -> None:
    visible = outer | set(region.arguments)
    for index, op in enumerate(region.operations):
        spec = OPCODES.get(op.opcode)
        if spec is None:
            raise _error(kernel, op, "is no opcode")
        if spec.level not in {"both", kernel.level}:
            raise _error(
                kernel, op, f"belongs to {spec.level} kernels, this is a {kernel.level} one"
            )
        if in_map and not (spec.is_elementwise or spec.is_terminator):
            raise _error(kernel, op, "is no element operation, so it cannot stand in a map body")
        if spec.is_terminator and index != len(region.operations) - 1:
            raise _error(kernel, op, "must be the last operation of its region")
        for operand in op.operands:
            if operand not in visible:
                raise _error(kernel, op, f"uses {operand!r}, which is not defined before it")
            if in_map and operand in outer and not isinstance(operand.type, ScalarType):
                raise _error(kernel, op, f"may use scalars from outside of a map, not {operand!r}")
        for nested in op.regions:
            _check_region(kernel, nested, visible, in_map=op.opcode == "map")
        _check_types(kernel, op)
        visible.update(op.results)


def _check_types(kernel: KernelFunction, op: Op) -> None:
    spec = OPCODES[op.opcode]
    try:
        attributes = complete_attributes(spec, op.attributes)
        types = infer_results(spec, op.operands, attributes, op.regions)
    except RuleError as error:
        raise _error(kernel, op, str(error)) from error
    got = tuple(result.type for result in op.results)
    if got != types:
        raise _error(kernel, op, f"has results {got}, its rule gives {types}")
    if op.opcode == "for" and op.attributes.get("static"):
        constant = [o.definition is not None and o.definition.opcode == "constant"
                    for o in op.operands[:3]]  # fmt: skip
        if not all(constant):
            raise _error(kernel, op, "is static, so its bounds must be constants")
    if any(isinstance(t, TokenType) for t in types) and kernel.level != "tile":
        raise _error(kernel, op, "gives a token outside of a tile kernel")


def _check_uniformity(kernel: KernelFunction, op: Op, uniformity: UniformityMap) -> None:
    needed = Uniformity.WORKGROUP
    if op.opcode == "barrier" and op.attributes.get("scope") == "subgroup":
        needed = Uniformity.SUBGROUP
    if OPCODES[op.opcode].needs_uniform and uniformity.control(op) > needed:
        raise _error(
            kernel, op, f"needs {needed.name.lower()}-uniform control flow, "
            f"stands under {uniformity.control(op).name.lower()} control flow",
        )  # fmt: skip
    if kernel.level == "tile" and any(uniformity.of(v) > 0 for v in op.results):
        raise _error(kernel, op, "gives a varying value in a tile kernel")
