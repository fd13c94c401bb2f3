"""The NumPy oracle: evaluates a graph tensor by tensor."""

from poot_eval._evaluate import EvalResult, evaluate
from poot_eval._interpreter import evaluate_equation
from poot_eval._packed import Packed
from poot_eval._program import OracleProgram
from poot_eval._static import Weights
from poot_eval._step import trim_block_tables

__all__ = [
    "EvalResult",
    "OracleProgram",
    "Packed",
    "Weights",
    "evaluate",
    "evaluate_equation",
    "trim_block_tables",
]
