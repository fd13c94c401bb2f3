"""The whole table through the planner and the NumPy meaning of its kernels."""

from __future__ import annotations

import pytest

from poot_core import Settings
from poot_executor_parity import CASES, run_case
from poot_graph_ir import PRIMITIVES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_planned_kernels_equal_the_oracle(case):
    outcome = run_case(case, "reference", Settings())
    assert outcome.is_equal, f"{outcome.error:.1e} is over {outcome.tolerance:.1e}"


def test_names_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)


def test_every_pointwise_primitive_has_a_case():
    names = " ".join(case.name for case in CASES)
    wanted = {
        name
        for name, primitive in PRIMITIVES.items()
        if primitive.category in {"unary", "binary", "compare"}
    } - {"dequantize", "convert", "logical_not", "logical_and", "logical_or"}
    assert not [name for name in wanted if name not in names]
