"""LLVM IR for AMD GPUs: kernel IR to text, which the compile service turns into objects."""

from poot_kernel.targets.amdgcn.atoms import target_features, wave_size
from poot_kernel.targets.amdgcn.compile import compile_amdgcn, package_kernels

__all__ = ["compile_amdgcn", "package_kernels", "target_features", "wave_size"]
