"""SPIR-V for Vulkan: a direct writer, lane kernels and KHR cooperative matrices."""

from poot_kernel.targets.spirv.compile import compile_spirv, package_kernels

__all__ = ["compile_spirv", "package_kernels"]
