"""SPIR-V for Vulkan: kernel IR straight to binary words."""

from poot_kernel.targets.spirv.compile import compile_spirv

__all__ = ["compile_spirv"]
