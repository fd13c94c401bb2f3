"""WGSL for WebGPU adapters: kernel IR to shader text."""

from poot_kernel.targets.wgsl.bindings import (
    ArrayAccess,
    Binding,
    array_accesses,
    array_section,
    bind_arrays,
    table_words,
)
from poot_kernel.targets.wgsl.compile import compile_wgsl, package_kernels

__all__ = [
    "ArrayAccess",
    "Binding",
    "array_accesses",
    "array_section",
    "bind_arrays",
    "compile_wgsl",
    "package_kernels",
    "table_words",
]
