"""The way from a kernel to a target's code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poot_core import DType, UnsupportedError, i32, i64, u64
from poot_kernel.compile import KernelSplit
from poot_kernel.ir.core import KernelFunction, Op
from poot_kernel.ir.sizes import Size
from poot_kernel.ir.types import ArrayType, ScalarType, TileType
from poot_kernel.targets.common.control import CONTROL_HANDLERS
from poot_kernel.targets.common.copies import COPY_HANDLERS, Pointer
from poot_kernel.targets.common.exchange import EXCHANGE_HANDLERS
from poot_kernel.targets.common.faults import FAULT_HANDLERS
from poot_kernel.targets.common.lanes import LANE_HANDLERS
from poot_kernel.targets.common.lowering import Handler, Lowering, Products
from poot_kernel.targets.common.machine import Machine, Register
from poot_kernel.targets.common.maps import MAP_HANDLERS
from poot_kernel.targets.common.rows import ROW_HANDLERS
from poot_kernel.targets.common.solve import solve_layouts

__all__ = ["DeviceKernel", "TensorMap", "default_threads", "lower_kernel", "parameter_dtypes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMap:
    """A description of an array that the launcher encodes and passes by value.

    Attributes:
        parameter: Number of the array's parameter.
        shape: Its extents.
        box: Extents of one copy.
    """

    parameter: int
    shape: tuple[Size, ...]
    box: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKernel:
    """A kernel as a device takes it.

    Attributes:
        name: Entry point.
        code: Text or bytes: PTX, SPIR-V or LLVM IR.
        threads: Invocations of a workgroup.
        shared_bytes: Shared memory to ask for at launch (0 where it is declared in the code).
        parameters: ``pointer`` or a scalar dtype's name, in order.
        tensor_maps: Further parameters, after those.
        is_persistent: Workgroups loop over the grid: launch one for each multiprocessor, on x.
        split: How subgroups share a workgroup's chunks, settled at launch.
        depth: Workgroups of a cluster along z that share one place of the kernel's grid.
        cluster: Workgroups of a persistent kernel that run together and may share places of the grid.
    """

    name: str
    code: str | bytes
    threads: int
    shared_bytes: int
    parameters: tuple[str, ...]
    tensor_maps: tuple[TensorMap, ...] = ()
    is_persistent: bool = False
    split: KernelSplit | None = None
    depth: int = 1
    cluster: int = 1


def parameter_dtypes(kernel: KernelFunction) -> list[tuple[str, DType]]:
    """Return each parameter's kind, as ``DeviceKernel`` names it, and the dtype it arrives as."""
    found: list[tuple[str, DType]] = []
    for value in kernel.parameters:
        if isinstance(value.type, ArrayType):
            found.append(("pointer", u64))
            continue
        assert isinstance(value.type, ScalarType)
        found.append((value.type.dtype.name, value.type.dtype))
    return found


def _check_signatures(kernel: KernelFunction, known: tuple[str, ...]) -> None:
    """Refuse combine orders that tensor cores do not have or that are not built yet."""
    for op in kernel.body.walk():
        if op.opcode == "mma" and op.attributes["signature"] not in known:
            raise UnsupportedError(
                f"GPU targets do not multiply in the order {op.attributes['signature']!r} yet; "
                f"they do in {', '.join(map(repr, known))}"
            )


def _mma(low: Lowering, op: Op) -> None:
    found = low.products.multiply(low, op)
    solved = low.layouts.get(op.result)
    low.set(op.result, found if solved is None else found.fragment(low, solved))


HANDLERS: dict[str, Handler] = {
    **LANE_HANDLERS, **EXCHANGE_HANDLERS, **FAULT_HANDLERS, **COPY_HANDLERS, **MAP_HANDLERS,
    **CONTROL_HANDLERS, **ROW_HANDLERS, "mma": _mma,
}  # fmt: skip


def default_threads(kernel: KernelFunction, subgroup_size: int, share: int = 2048) -> int:
    """Return how many invocations a workgroup gets where the kernel leaves it open.

    A subgroup takes 16 rows where rows are reduced, else ``share`` elements of the largest
    product; up to eight subgroups.
    """
    if kernel.workgroup_size is not None:
        return kernel.workgroup_size
    accumulators = [op.result.type for op in kernel.body.walk() if op.opcode == "mma"]
    shapes = [t.shape for t in accumulators if isinstance(t, TileType)]
    groups = 4
    if shapes:
        reduces = any(op.opcode == "reduce" for op in kernel.body.walk())
        largest = max(m * n for m, n in shapes)
        rows = max(shape[0] for shape in shapes)
        groups = max(1, min(8, rows // 16 if reduces else largest // share))
    return groups * subgroup_size


def lower_kernel(
    kernel: KernelFunction, machine: Machine, products: Products, arguments: list[Register],
    *, threads: int, multiples: Mapping[str, int], index_bits: int | None = None,
) -> Lowering:  # fmt: skip
    """Emit a kernel's body into a machine.

    Args:
        kernel: A verified kernel.
        machine: Where code goes; ``arguments`` are its parameters' registers.
        products: How tiles are multiplied.
        arguments: One register for each parameter: an address or a scalar.
        threads: Invocations of a workgroup.
        multiples: What the caller promises of arguments, see ``Promises``.
        index_bits: 32 for a machine without 64-bit integers; the kernel's own without.

    Raises:
        UnsupportedError: If the kernel uses what GPU targets do not lower yet.
    """
    _check_signatures(kernel, products.signatures)
    if threads % machine.subgroup_size:
        raise UnsupportedError(
            f"kernel {kernel.name!r} has {threads} invocations a workgroup, no multiple of the "
            f"subgroup's {machine.subgroup_size}"
        )
    low = Lowering(kernel, machine, products, HANDLERS, threads=threads, multiples=multiples)
    low.index_dtype = i32 if (index_bits or kernel.index_bits) == 32 else i64
    machine.is_contracted = "contract" in kernel.fastmath
    machine.is_approximate = "approximate" in kernel.fastmath
    for value, register in zip(kernel.parameters, arguments, strict=True):
        if isinstance(value.type, ArrayType):
            low.set(value, Pointer(register, value.type))
            continue
        assert isinstance(value.type, ScalarType)
        if value.type.dtype.is_integer:
            with machine.at_entry():
                low.sizes[value.name] = low.arithmetic.convert(register, low.index_dtype)
            register = low.sizes[value.name] if value.type.dtype.bits == 64 else register
        low.set(value, register)
    low.layouts = solve_layouts(kernel, low)
    products.run(low)
    if low.shared_bytes > machine.shared_limit:
        raise UnsupportedError(
            f"kernel {kernel.name!r} needs {low.shared_bytes} bytes of shared memory, the target "
            f"has {machine.shared_limit}; use smaller tiles or fewer stages"
        )
    return low
