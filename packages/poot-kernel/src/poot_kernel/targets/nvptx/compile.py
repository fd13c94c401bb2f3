"""Kernel IR to PTX text."""

from __future__ import annotations

from collections.abc import Mapping

from poot_kernel.ir.core import KernelFunction
from poot_kernel.targets.common.lower import (
    DeviceKernel,
    default_threads,
    lower_kernel,
    parameter_dtypes,
)
from poot_kernel.targets.common.machine import Register
from poot_kernel.targets.common.products import FragmentProducts
from poot_kernel.targets.nvptx.machine import PtxMachine
from poot_kernel.targets.nvptx.warpgroup import (
    WarpgroupProducts,
    suits_warpgroups,
    warpgroup_rows,
)

__all__ = ["compile_ptx"]

PTX_VERSION = "8.4"


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
    machine = PtxMachine()
    known = multiples or {}
    is_specialised = arch == "sm_90a" and threads is None and suits_warpgroups(kernel, known)
    products = WarpgroupProducts() if is_specialised else FragmentProducts()
    count = threads or default_threads(kernel, machine.subgroup_size)
    if is_specialised:
        count = 2 * warpgroup_rows(kernel)
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
    low = lower_kernel(kernel, machine, products, arguments, threads=count, multiples=known)
    maps = tuple(products.tensor_maps) if isinstance(products, WarpgroupProducts) else ()
    parameters += [f"\t.param .align 64 .b8 map{number}[128]" for number in range(len(maps))]
    launched = count + 128 if is_specialised else count  # the loading warp's group
    lines = [
        f".version {PTX_VERSION}",
        f".target {arch}",
        ".address_size 64",
        ".extern .shared .align 1024 .b8 shared_block[];",
        f".visible .entry {kernel.name}(",
        ",\n".join(parameters),
        f")\n.maxntid {launched}, 1, 1",
        # Registers can only move between warpgroups where the binary sets them for one workgroup.
        *([".minnctapersm 1"] if is_specialised else []),
        "{",
        *machine.declarations(),
        *machine.entry,
        *machine.body,
        "\tret;",
        "}",
    ]
    names = tuple(kind for kind, _ in parameter_dtypes(kernel))
    return DeviceKernel(
        name=kernel.name, code="\n".join(lines) + "\n", threads=launched,
        shared_bytes=low.shared_bytes, parameters=names, tensor_maps=maps,
        is_persistent=is_specialised,
    )  # fmt: skip
