"""The NumPy meaning of every request: the semantic contract of kernels and the oracle of their tests.

Weights stay in a logical form here (``LogicalWeight``): how a target's bytes lie is the business of
whoever writes its kernels. Nothing here depends on how many rows are computed together: each row's
result is the same bits alone and among others.
"""

from poot_kernelgen.reference._activation import (
    BLOCK,
    QuantisedActivation,
    dequantise_activation,
    quantise_activation,
    round_to_bf16,
)
from poot_kernelgen.reference._argmax import argmax
from poot_kernelgen.reference._attend import attend, attend_partials, merge_partials
from poot_kernelgen.reference._contract import apply_epilogue, contract, gather
from poot_kernelgen.reference._kv import kv_pool_shape, kv_read, kv_write
from poot_kernelgen.reference._nodes import evaluate_node
from poot_kernelgen.reference._rows import run_row_program
from poot_kernelgen.reference._sample import sample, sampled_weights
from poot_kernelgen.reference._weight import LogicalWeight, stack_weights

__all__ = [
    "BLOCK",
    "LogicalWeight",
    "QuantisedActivation",
    "apply_epilogue",
    "argmax",
    "attend",
    "attend_partials",
    "contract",
    "dequantise_activation",
    "evaluate_node",
    "gather",
    "kv_pool_shape",
    "kv_read",
    "kv_write",
    "merge_partials",
    "quantise_activation",
    "round_to_bf16",
    "run_row_program",
    "sample",
    "sampled_weights",
    "stack_weights",
]
