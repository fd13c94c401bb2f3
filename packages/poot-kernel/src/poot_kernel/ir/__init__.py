"""Typed structured kernel IR: types, opcode table, builder, verifier, text and hash."""

from poot_kernel.ir.builder import IRBuilder
from poot_kernel.ir.core import (
    Attribute,
    KernelFunction,
    Level,
    Location,
    Module,
    Op,
    Region,
    Value,
)
from poot_kernel.ir.hashing import IR_VERSION, structural_hash, structurally_equal
from poot_kernel.ir.layouts import Layout, LayoutPart, interleaved
from poot_kernel.ir.opcodes import OPCODES
from poot_kernel.ir.parser import parse_kernel, parse_module
from poot_kernel.ir.printer import print_kernel, print_module
from poot_kernel.ir.sizes import Size, SizeLike, as_size, ceildiv
from poot_kernel.ir.specs import OpSpec, Uniformity
from poot_kernel.ir.types import (
    BOOLEAN,
    INDEX,
    ArrayType,
    MemoryType,
    ScalarType,
    SharedType,
    TileType,
    TokenType,
    Type,
    VectorType,
)
from poot_kernel.ir.uniformity import UniformityMap, analyse_uniformity
from poot_kernel.ir.verifier import verify_kernel

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
    "interleaved",
    "parse_kernel",
    "parse_module",
    "print_kernel",
    "print_module",
    "structural_hash",
    "structurally_equal",
    "verify_kernel",
]
