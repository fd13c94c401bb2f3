"""WGSL for WebGPU adapters: kernel IR to shader text."""

from poot_kernel.targets.wgsl.bindings import Binding, bind_arrays
from poot_kernel.targets.wgsl.compile import compile_wgsl, package_kernels

__all__ = ["Binding", "bind_arrays", "compile_wgsl", "package_kernels"]
