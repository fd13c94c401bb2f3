"""Three algorithms that prove the kernel language: each is written once and names no target."""

from poot_kernelgen.proof.flash_attention import flash_attention
from poot_kernelgen.proof.gemm import gemm
from poot_kernelgen.proof.q4_k import INTERLEAVED, RAW, Q4KLayout, q4_k_matmul

__all__ = ["INTERLEAVED", "RAW", "Q4KLayout", "flash_attention", "gemm", "q4_k_matmul"]
