"""PTX for NVIDIA GPUs: kernel IR to text, and text to a binary where ptxas is installed."""

from poot_kernel.targets.nvptx.assemble import Assembly, assemble_ptx, find_ptxas
from poot_kernel.targets.nvptx.compile import compile_ptx, package_kernels

__all__ = ["Assembly", "assemble_ptx", "compile_ptx", "find_ptxas", "package_kernels"]
