"""Kernel IR to PTX text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from poot_core import DeviceCaps, Target
from poot_kernel.compile import CompileService, KernelPackage, KernelSplit, PackagedMap
from poot_kernel.ir.core import KernelFunction
from poot_kernel.ir.sizes import ceildiv
from poot_kernel.ir.types import ArrayType
from poot_kernel.targets.common.chunks import ChunkedProducts
from poot_kernel.targets.common.lower import (
    DeviceKernel,
    default_threads,
    lower_kernel,
    parameter_dtypes,
)
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.products import FragmentProducts
from poot_kernel.targets.nvptx.dealt import DealtProducts, most_turns, suits_dealt
from poot_kernel.targets.nvptx.fed import FedProducts, fed_threads, suits_fed
from poot_kernel.targets.nvptx.machine import REGION, PtxMachine, capability_of
from poot_kernel.targets.nvptx.split import (
    MAX_WARPS,
    SplitProducts,
    chunk_of,
    depth_of,
    suits_split,
)
from poot_kernel.targets.nvptx.warpgroup import (
    WarpgroupProducts,
    suits_warpgroups,
    warpgroup_rows,
)

__all__ = ["compile_ptx", "package_kernels"]


# The oldest PTX version that has an architecture and what is used of it: old drivers refuse newer text.
_VERSIONS = {89: "7.8", 90: "8.0", 100: "8.6", 101: "8.6", 103: "8.8", 120: "8.7", 121: "8.8"}


def _version(capability: int) -> str:
    if capability < 80:
        return "6.5"
    return _VERSIONS.get(capability, "7.4" if capability < 89 else "8.8")


def compile_ptx(
    kernel: KernelFunction,
    *,
    arch: str = "sm_90a",
    threads: int | None = None,
    multiples: Mapping[str, int] | None = None,
) -> DeviceKernel:
    """Return a kernel as PTX text.

    Args:
        kernel: A verified kernel.
        arch: GPU architecture.
        threads: Invocations of a workgroup; chosen by the products' shapes without.
        multiples: What the caller promises of arguments: integer scalars are multiples of these,
            array addresses are aligned by them in bytes.

    Raises:
        UnsupportedError: If the kernel uses what GPU targets do not lower yet.
    """
    machine = PtxMachine(arch)
    known = multiples or {}
    overlaps = machine.capability >= 90
    products, count = _schedule(kernel, machine, arch, known, threads, overlaps=overlaps)
    is_specialised = isinstance(products, WarpgroupProducts | FedProducts)
    machine.is_split = isinstance(products, SplitProducts | DealtProducts)
    parameters: list[str] = []
    arguments: list[Register] = []
    for number, (kind, dtype) in enumerate(parameter_dtypes(kernel)):
        parameters.append(f"\t.param .b{max(32, dtype.bits)} p{number}")
        with machine.at_entry():
            suffix = "f32" if dtype.name == "f32" else f"b{max(32, dtype.bits)}"
            found = machine.result(f"ld.param.{suffix}", dtype, f"[p{number}]")
            if kind == "pointer":
                found = machine.result("cvta.to.global.u64", dtype, found)
        arguments.append(found)
    if overlaps:
        # The next kernel may take the free places of this one's last wave; all wait for the writes
        # of those before them, so that order reaches over more than one.
        machine.line("griddepcontrol.launch_dependents")
        if not isinstance(products, SplitProducts):  # it fetches weights first
            machine.line("griddepcontrol.wait")
    low = lower_kernel(kernel, machine, products, arguments, threads=count, multiples=known)
    maps = (
        tuple(products.tensor_maps) if isinstance(products, WarpgroupProducts | FedProducts) else ()
    )
    parameters += [f"\t.param .align 64 .b8 map{number}[128]" for number in range(len(maps))]
    launched = count
    depth = products.workgroups if isinstance(products, DealtProducts) else 1
    cluster = products.pair * products.ranks if isinstance(products, WarpgroupProducts) else 1
    if is_specialised:
        launched += 128  # the loading warp's group
    elif machine.is_split:
        launched *= products.warps if isinstance(products, DealtProducts) else MAX_WARPS
    lines = [
        f".version {_version(machine.capability)}",
        f".target {arch}",
        ".address_size 64",
        ".extern .shared .align 1024 .b8 shared_block[];",
        *machine.tables,
        f".visible .entry {kernel.name}(",
        ",\n".join(parameters),
        f")\n.maxntid {launched}, 1, 1",
        # Registers can only move between warpgroups where the binary sets them for one workgroup.
        *([".minnctapersm 1"] if is_specialised else []),
        *([f".reqnctapercluster {cluster}, 1, 1"] if cluster > 1 else []),
        *([f".reqnctapercluster 1, 1, {depth}"] if depth > 1 else []),
        "{",
        *machine.declarations(),
        *(line.replace(REGION, str(low.shared_bytes)) for line in machine.entry),
        *(line.replace(REGION, str(low.shared_bytes)) for line in machine.body),
        "\tret;",
        "}",
    ]
    names = tuple(kind for kind, _ in parameter_dtypes(kernel))
    return DeviceKernel(
        name=kernel.name, code="\n".join(lines) + "\n", threads=launched,
        shared_bytes=low.shared_bytes, parameters=names, tensor_maps=maps,
        is_persistent=isinstance(products, WarpgroupProducts), split=_split(kernel, products),
        depth=depth, cluster=cluster,
    )  # fmt: skip


def _schedule(
    kernel: KernelFunction, machine: PtxMachine, arch: str, known: Mapping[str, int],
    threads: int | None, *, overlaps: bool,
) -> tuple[FragmentProducts, int]:  # fmt: skip
    """Return how tiles are multiplied, and by how many invocations."""
    if threads is None and arch == "sm_90a" and suits_warpgroups(kernel, known):
        return WarpgroupProducts(), 2 * warpgroup_rows(kernel)
    if threads is None and arch == "sm_90a" and suits_fed(kernel):
        return FedProducts(), fed_threads()
    if threads is None and machine.has_async_copy and suits_split(kernel):
        return SplitProducts(overlaps=overlaps), machine.subgroup_size
    if threads is None and suits_dealt(kernel):
        return DealtProducts(kernel, machine), machine.subgroup_size
    return ChunkedProducts(), threads or default_threads(kernel, machine.subgroup_size)


def _split(kernel: KernelFunction, products: FragmentProducts) -> KernelSplit | None:
    if isinstance(products, DealtProducts):
        turns = most_turns(kernel)
        each = -(-products.block_bytes // turns)
        return KernelSplit(
            chunks=str(turns), max_subgroups=min(products.warps, turns), partial_bytes=each
        )
    if not isinstance(products, SplitProducts):
        return None
    return KernelSplit(
        chunks=str(ceildiv(depth_of(kernel), chunk_of(kernel))),
        max_subgroups=MAX_WARPS,
        partial_bytes=products.partial_bytes,
    )


def package_kernels(
    functions: Sequence[KernelFunction],
    target: Target,
    caps: DeviceCaps,
    service: CompileService,
) -> list[KernelPackage]:
    """Return packages of PTX, in order.

    Args:
        functions: Verified kernels.
        target: A ``ptx`` target.
        caps: Facts of the device.
        service: Of no use: PTX is written without LLVM.

    Raises:
        UnsupportedError: If a kernel uses what is not lowered for GPUs.
    """
    del caps, service
    return [_package(function, target.arch) for function in functions]


def _package(function: KernelFunction, arch: str) -> KernelPackage:
    built = compile_ptx(function, arch=arch, multiples=promised(function))
    assert isinstance(built.code, str)
    return KernelPackage(
        name=built.name,
        code=built.code.encode(),
        threads=built.threads,
        shared_bytes=built.shared_bytes,
        parameters=tuple(
            (value.name, kind)
            for value, kind in zip(function.parameters, built.parameters, strict=True)
        ),
        grid=_grid(function, built.depth),
        tensor_maps=tuple(
            PackagedMap(parameter=m.parameter, shape=tuple(map(str, m.shape)), box=m.box)
            for m in built.tensor_maps
        ),
        is_persistent=built.is_persistent,
        cluster=built.cluster,
        is_overlapping=capability_of(arch) >= 90,
        split=built.split,
    )


def _grid(function: KernelFunction, depth: int) -> tuple[str, ...]:
    """Return the sizes of a launch: workgroups that share a place of the grid lie along z."""
    found = tuple(map(str, function.grid))
    return found if depth == 1 else (*found, *["1"] * (2 - len(found)), str(depth))


def promised(function: KernelFunction) -> dict[str, int]:
    """Return what a kernel's own text promises: arrays are aligned, scalars are multiples."""
    found = {
        value.name: value.type.alignment
        for value in function.parameters
        if isinstance(value.type, ArrayType)
    }
    for op in function.body.walk():
        if op.opcode == "assume_multiple" and op.operands[0] in function.parameters:
            factor = op.attributes["factor"]
            assert isinstance(factor, int)
            found[op.operands[0].name] = factor
    return found
