"""The parity table: small graphs whose planned kernels must equal the oracle, on any backend."""

from poot_executor_parity._attention import ATTENTION_CASES
from poot_executor_parity._case import Case, Context
from poot_executor_parity._products import PRODUCT_CASES
from poot_executor_parity._rows import ROW_CASES
from poot_executor_parity._run import Outcome, open_case, run_case, step_inputs

__all__ = ["CASES", "Case", "Context", "Outcome", "open_case", "run_case", "step_inputs"]

CASES: tuple[Case, ...] = (*ROW_CASES, *PRODUCT_CASES, *ATTENTION_CASES)
"""Every case by unique name; each device runs them all in its lane."""
