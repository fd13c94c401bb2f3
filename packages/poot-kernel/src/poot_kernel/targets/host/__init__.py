"""Host code generation: kernel IR to LLVM IR for SIMD processors, and batches of it to objects."""

from poot_kernel.targets.host.build import compile_kernels
from poot_kernel.targets.host.entry import lower_host, scratch_size

__all__ = ["compile_kernels", "lower_host", "scratch_size"]
