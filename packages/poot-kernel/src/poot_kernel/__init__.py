"""The kernel language, its typed IR, verifier, interpreter and code generators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from poot_kernel.ir import (
    BOOLEAN,
    INDEX,
    IR_VERSION,
    OPCODES,
    ArrayType,
    Attribute,
    IRBuilder,
    KernelFunction,
    Layout,
    LayoutPart,
    Level,
    Location,
    MemoryType,
    Module,
    Op,
    OpSpec,
    Region,
    ScalarType,
    SharedType,
    Size,
    SizeLike,
    TileType,
    TokenType,
    Type,
    Uniformity,
    UniformityMap,
    Value,
    VectorType,
    analyse_uniformity,
    as_size,
    ceildiv,
    interleaved,
    parse_kernel,
    parse_module,
    print_kernel,
    print_module,
    structural_hash,
    structurally_equal,
    verify_kernel,
)

if TYPE_CHECKING:
    from poot_kernel.targets.build import compile_kernels
    from poot_kernel.targets.host import lower_host, scratch_size

__all__ = [
    "BOOLEAN",
    "INDEX",
    "IR_VERSION",
    "OPCODES",
    "ArrayType",
    "Attribute",
    "IRBuilder",
    "KernelFunction",
    "Layout",
    "LayoutPart",
    "Level",
    "Location",
    "MemoryType",
    "Module",
    "Op",
    "OpSpec",
    "Region",
    "ScalarType",
    "SharedType",
    "Size",
    "SizeLike",
    "TileType",
    "TokenType",
    "Type",
    "Uniformity",
    "UniformityMap",
    "Value",
    "VectorType",
    "analyse_uniformity",
    "as_size",
    "ceildiv",
    "compile_kernels",
    "interleaved",
    "lower_host",
    "parse_kernel",
    "parse_module",
    "print_kernel",
    "print_module",
    "scratch_size",
    "structural_hash",
    "structurally_equal",
    "verify_kernel",
]

_LATE = {
    "compile_kernels": "poot_kernel.targets.build",
    "lower_host": "poot_kernel.targets.host",
    "scratch_size": "poot_kernel.targets.host",
}


def __getattr__(name: str) -> Any:
    """Import the code generator when it is first asked for: a warm start never does."""
    if name in _LATE:
        from importlib import import_module

        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
