"""Kernel IR to a WGSL shader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poot_core import (
    CompileError,
    DeviceCaps,
    DType,
    PootError,
    Target,
    UnsupportedError,
    f32,
    i32,
    u32,
)
from poot_kernel.compile import CompileService, KernelPackage
from poot_kernel.ir.core import KernelFunction
from poot_kernel.ir.printer import print_kernel
from poot_kernel.ir.sizes import Size
from poot_kernel.ir.types import ArrayType
from poot_kernel.targets.common.arithmetic import Arithmetic
from poot_kernel.targets.common.lower import default_threads, lower_kernel, parameter_dtypes
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.products import FragmentProducts
from poot_kernel.targets.wgsl.bindings import ArrayAccess, array_section, table_line
from poot_kernel.targets.wgsl.machine import View, WgslMachine
from poot_kernel.targets.wgsl.text import used_helpers

__all__ = ["compile_wgsl", "package_kernels"]

_LANE_SHARE = 16  # elements of a product that a lane sums
_LEAST_THREADS = 128
_ELEMENTS: dict[View, str] = {"word": "u32", "quad": "vec4<u32>", "atomic": "atomic<u32>"}
_SHARED = {"word": ("u32", 4), "quad": ("vec4<u32>", 16), "atomic": ("atomic<u32>", 4)}


def package_kernels(
    functions: Sequence[KernelFunction], target: Target, caps: DeviceCaps, service: CompileService
) -> list[KernelPackage]:
    """Return the shaders of kernels, in order.

    Raises:
        UnsupportedError: If a kernel uses what WGSL or its generator does not have.
        CompileError: If the generator fails; it names where the kernel's IR is kept.
    """
    return [_package(function, target, caps, service) for function in functions]


def _package(
    function: KernelFunction, target: Target, caps: DeviceCaps, service: CompileService
) -> KernelPackage:
    try:
        return compile_wgsl(function, caps=caps, features=target.features)
    except PootError:
        raise
    except Exception as error:
        path = service.cache.keep_failed(f"{function.name}.kernel", print_kernel(function))
        raise CompileError(
            f"generating WGSL for {function.name!r} failed: {type(error).__name__}: {error}; its "
            f"kernel IR is kept at {path}",
            target=str(target),
            path=None if path is None else str(path),
        ) from error


def compile_wgsl(
    kernel: KernelFunction,
    *,
    caps: DeviceCaps,
    threads: int | None = None,
    multiples: Mapping[str, int] | None = None,
    features: frozenset[str] = frozenset({"exact", "subgroups"}),
) -> KernelPackage:
    """Return a kernel as a shader whose arguments are one u32 each in the uniform buffer of binding 0.

    An array's argument is the byte offset of its first element in its binding, an integer's is its
    value, an f32's its bits; a zero follows, then ``table_words``, both from a multiple of 16 bytes
    on. Arrays are bound at 1 and up, see ``bind_arrays``. Workgroups may be launched over x and y
    in any shape that has enough of them.

    Args:
        kernel: A verified kernel.
        caps: Subgroup size, workgroup memory and habits of the adapter.
        threads: Invocations of a workgroup; the kernel's own or chosen by its products without.
        multiples: What the caller promises of arguments, see ``Promises``.
        features: ``subgroups``: the adapter's subgroups have the size that ``caps`` tells;
            ``exact``: it leaves products and sums as they are written.

    Raises:
        UnsupportedError: If the kernel uses what WGSL or its generator does not have.
    """
    _refuse_wide(kernel)
    count = threads or _threads(kernel, caps)

    has_subgroups = "subgroups" in features

    def lowered(views: dict[int, View]) -> tuple[WgslMachine, int]:
        machine = WgslMachine(
            caps.subgroup_size, views,
            is_exact="exact" in features and not caps.may_contract,
            has_subgroups=has_subgroups,
        )  # fmt: skip
        machine.shared_limit = caps.shared_bytes - (0 if has_subgroups else 4 * count)
        return machine, _lower(kernel, machine, count, multiples or {})

    # Views of the arrays follow from how a first pass accesses them.
    views: dict[int, View] = {number: use.view for number, use in lowered({})[0].uses.items()}
    machine, shared_bytes = lowered(views)
    parameters = tuple(
        (value.name, kind)
        for value, (kind, _) in zip(kernel.parameters, parameter_dtypes(kernel), strict=True)
    )
    return KernelPackage(
        name=kernel.name,
        code=_shader(kernel, machine, views, count, shared_bytes).encode(),
        threads=count,
        parameters=parameters,
        grid=tuple(map(str, kernel.grid)),
    )


def _refuse_wide(kernel: KernelFunction) -> None:
    for value in kernel.parameters:
        if isinstance(value.type, ArrayType) and value.type.dtype.bits > 32:
            raise UnsupportedError(
                f"WGSL has no 64-bit elements; array {value.name!r} of {kernel.name!r} holds "
                f"{value.type.dtype.name}"
            )
    for op in kernel.body.walk():
        given = op.attributes.get("dtype")
        if op.opcode in ("load", "copy") and isinstance(given, DType) and given.bits > 32:
            raise UnsupportedError(
                f"WGSL has no 64-bit elements; {kernel.name!r} loads {given.name}"
            )


def _threads(kernel: KernelFunction, caps: DeviceCaps) -> int:
    """Return the invocations of a workgroup; rows that reduce want many of small subgroups."""
    size = caps.subgroup_size
    count = default_threads(kernel, size, _LANE_SHARE * size)
    if kernel.workgroup_size is None and any(op.opcode == "reduce" for op in kernel.body.walk()):
        count = max(count, min(_LEAST_THREADS, caps.max_workgroup))
    return count


def _lower(
    kernel: KernelFunction, machine: WgslMachine, threads: int, multiples: Mapping[str, int]
) -> int:
    """Emit a kernel's body and return its bytes of workgroup memory."""
    with machine.at_entry():
        arguments = [_argument(machine, number, kernel) for number in range(len(kernel.parameters))]
        sizes = {
            value.name: Register(argument.code, u32)
            for value, argument in zip(kernel.parameters, arguments, strict=True)
        }
        _place(machine, [_size(machine, size, sizes) for size in kernel.grid])
    low = lower_kernel(
        kernel, machine, FragmentProducts(), arguments,
        threads=threads, multiples=multiples, index_bits=32,
    )  # fmt: skip
    return low.shared_bytes


def _argument(machine: WgslMachine, number: int, kernel: KernelFunction) -> Register:
    kind = kernel.parameters[number].type
    if isinstance(kind, ArrayType):
        return machine.array(number, f"p.a{number}", u32)
    (_, dtype) = parameter_dtypes(kernel)[number]
    if dtype is f32:
        return machine.result(f"bitcast<f32>(p.a{number})", f32)
    return Register(f"p.a{number}", dtype)


def _place(machine: WgslMachine, grid: list[Register]) -> None:
    """Find the workgroup's coordinates; the first axis varies fastest."""
    ops = Arithmetic(machine)
    rest = Register("workgroup", u32)
    total = grid[0]
    for extent in grid[1:]:
        total = ops.mul(total, extent)
    machine.line(f"if (workgroup >= {total.code}) {{ return; }}")
    for extent in grid[:-1]:
        machine.place.append(machine.binary("rem", rest, extent))
        rest = machine.binary("div", rest, extent)
    machine.place.append(rest)
    machine.grid.extend(grid)
    one, zero = machine.constant(1, u32), machine.constant(0, u32)
    while len(machine.grid) < 3:
        machine.place.append(zero)
        machine.grid.append(one)


def _size(machine: WgslMachine, size: Size, sizes: Mapping[str, Register]) -> Register:
    """Return a size over integer parameters."""
    ops = Arithmetic(machine)
    if size.kind == "constant":
        assert size.value is not None
        return machine.constant(size.value, u32)
    if size.kind == "parameter":
        return sizes[size.name]
    a, b = (_size(machine, argument, sizes) for argument in size.arguments)
    if size.kind == "ceildiv":
        return ops.integer("div", ops.add(ops.add(a, b), machine.constant(-1, u32)), b)
    if size.kind == "sub":  # a difference may be negative on the way
        a, b = (Register(x.code, i32, x.literal) for x in (a, b))
    return ops.integer({"floordiv": "div", "mod": "rem"}.get(size.kind, size.kind), a, b)


def _shader(
    kernel: KernelFunction,
    machine: WgslMachine,
    views: dict[int, View],
    threads: int,
    shared_bytes: int,
) -> str:
    lines = machine.lines
    fields = "".join(f"  a{number}: u32,\n" for number in range(len(kernel.parameters)))
    fields += "  zero: u32,\n"
    for number, words in enumerate(machine.tables):
        fields += f"  table{number}: array<vec4<u32>, {-(-len(words) // 4)}>,\n"
    head = [
        f"// {kernel.name}\n",
        *(table_line(words) for words in machine.tables),
        f"struct Arguments {{\n{fields}}}\n",
        "@group(0) @binding(0) var<uniform> p: Arguments;\n",
    ]
    arrays: dict[int, ArrayAccess] = {}
    for number, value in enumerate(kernel.parameters):
        if isinstance(value.type, ArrayType) and number in machine.uses:
            view, kinds = views[number], tuple(sorted(machine.uses[number].kinds))
            is_written = value.type.access != "r" or view == "atomic"
            arrays[number] = ArrayAccess(_ELEMENTS[view], is_written, kinds)
    head.append(array_section(arrays))
    if shared_bytes:
        element, size = _SHARED[views.get(-1, "word")]
        extent = -(-shared_bytes // size)
        head.append(f"var<workgroup> shared_memory: array<{element}, {extent}>;\n")
    if machine.does_exchange:
        head.append(f"var<workgroup> exchange: array<u32, {threads}>;\n")
    body = "\n".join(lines)
    return (
        "".join(head) + used_helpers(lines) + f"@compute @workgroup_size({threads})\n"
        "fn main(\n"
        "  @builtin(local_invocation_index) thread: u32,\n"
        "  @builtin(workgroup_id) group: vec3<u32>,\n"
        "  @builtin(num_workgroups) groups: vec3<u32>,\n"
        ") {\n"
        "  let workgroup = group.y * groups.x + group.x;\n"
        f"{body}\n}}\n"
    )
